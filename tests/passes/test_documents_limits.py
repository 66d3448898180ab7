"""Per-document values: what is left alone, what raises as in eager, what must not leak from one document to another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

import packpass
from packpass.engine.verify import VerificationError, _same

EAGER: dict[str, Any] = {"packpass.inner_backend": "eager"}
CU = torch.tensor([0, 3, 4, 9, 12])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist())


def refused(fn: Callable[..., Any], *args: Any) -> str:
    """The refusal's code; results must be eager's and nothing may be rewritten."""
    want = tree_leaves(fn(*(a.clone() for a in args)))
    report = packpass.explain(fn, options=EAGER)(*(a.clone() for a in args))
    assert not report.rewrites
    for a, b in zip(want, tree_leaves(report.result), strict=True):
        assert torch.equal(a, b)
    return report.refusals[0].code


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend=packpass.backend, options={**EAGER, **options}, fullgraph=True)


def rewritten(fn: Callable[..., Any], *args: Any) -> None:
    """Rewritten and equal, in-place writes to arguments included."""
    mine, theirs = tuple(a.clone() for a in args), tuple(a.clone() for a in args)
    report = packpass.explain(fn, options=EAGER)(*mine)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"], report.refusals
    for a, b in zip(tree_leaves((fn(*theirs), theirs)), tree_leaves((report.result, mine)), strict=True):
        torch.testing.assert_close(b, a, equal_nan=True)


class TestLeavesAlone:
    def test_mode(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].mode(0).values for s, e in spans(cu)])

        assert refused(f, torch.randn(12), CU) == "no-rule"

    def test_segments_that_happen_to_be_of_one_length(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e] for s, e in spans(cu)])

        assert refused(f, torch.randn(12, 4), torch.tensor([0, 4, 8, 12])) == "list-use"

    def test_row_of_another_document(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            pooled = torch.zeros(len(cu), 4)
            for i in range(len(cu) - 1):
                pooled[i + 1] = pooled[i] + x[cu[i] : cu[i + 1]].sum(0)
            return pooled

        assert refused(f, torch.randn(12, 4), CU) == "aliasing"

    def test_rows_of_a_tensor_that_is_also_read_whole(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            pooled = torch.zeros(len(cu) - 1, 4)
            for i in range(len(cu) - 1):
                pooled[i] = x[cu[i] : cu[i + 1]].sum(0) + pooled.sum()
            return pooled

        assert refused(f, torch.randn(12, 4), CU) == "aliasing"

    def test_slot_of_a_tensor_that_the_loop_writes(self) -> None:
        """An empty document would read what the document before it has written."""

        def f(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(len(cu) - 1):
                last = out[cu[i + 1] - 1]
                out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] + last
            return out

        assert refused(f, torch.randn(12, 4), torch.tensor([0, 3, 3, 12])) == "aliasing"

    def test_views_stacked_after_their_tensor_changed(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            x, ys = x * 1, []
            for s, _ in spans(cu):
                ys.append(x[s])
            x += 1
            return torch.stack(ys)

        assert refused(f, torch.randn(12, 4), CU) == "aliasing"

    def test_part_of_a_row(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            pooled = torch.zeros(len(cu) - 1, 4)
            for i in range(len(cu) - 1):
                row = pooled[i]
                row[[0, 2]] = x[cu[i] : cu[i + 1]].sum()
            return pooled

        assert refused(f, torch.randn(12, 4), CU) in ("partial-write", "write-through-view")

    def test_stale_view_of_a_pooled_value(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for s, e in spans(cu):
                m = x[s:e].sum(0)
                wide = m.expand(e - s, -1)
                m += 1
                out[s:e] = wide
            return out

        assert refused(f, torch.randn(12, 4), CU) == "stale-view"

    def test_skipped_documents_stay_out_of_the_gradient(self) -> None:
        """The root of a short document is 0, its derivative infinite, and eager never takes it."""

        def f(x: Tensor, cu: Tensor) -> Tensor:
            pooled = torch.zeros(len(cu) - 1, 4)
            for i, (s, e) in enumerate(spans(cu)):
                if e - s < 3:
                    continue
                pooled[i] = x[s:e].sqrt().sum(0)
            return pooled

        x = torch.ones(12, 4)
        x[3] = 0
        given = [x.clone().requires_grad_() for _ in range(2)]
        report = packpass.explain(f, options=EAGER)(given[0], CU)
        report.result.sum().backward()
        f(given[1], CU).sum().backward()
        assert report.rewrites
        assert torch.equal(given[0].grad, given[1].grad)
        assert given[0].grad[3].eq(0).all()

    def test_what_skipped_documents_worked_out_before(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            pooled = torch.zeros(len(cu) - 1, 4)
            for i, (s, e) in enumerate(spans(cu)):
                roots = x[s:e].sqrt()
                if e - s < 3:
                    continue
                pooled[i] = roots.sum(0)
            return pooled

        assert refused_with_gradient(f, torch.ones(12, 4)) == "skip-condition"

    def test_a_value_used_after_the_loop(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            m = x[0]
            for s, e in spans(cu):
                m = x[s:e].sum(0)
            return m

        assert refused(f, torch.randn(12, 4), CU) == "leaked-local"

    def test_a_reduction_of_the_whole_row(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for s, e in spans(cu):
                out[s:e] = x[s:e] - out.sum()
            return out

        assert refused(f, torch.randn(12), CU) == "aliasing"


def _method(t: Tensor, name: str, **kwargs: Any) -> Tensor:
    out: Tensor = getattr(t, name)(0, **kwargs)
    return out


def gradient(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad


def refused_with_gradient(fn: Callable[..., Any], x: Tensor) -> str:
    x = x.requires_grad_()
    report = packpass.explain(fn, options=EAGER)(x, CU)
    assert not report.rewrites
    return report.refusals[0].code


class TestRaises:
    """Where eager raises for a document that is too short, an asynchronous check does."""

    @pytest.mark.parametrize("what", ["max", "amin", "argmax", "first", "third"])
    def test_short_documents(self, what: str) -> None:
        def largest(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].max() for s, e in spans(cu)])

        def amin(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].amin(0) for s, e in spans(cu)])

        def argmax(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].argmax(0) for s, e in spans(cu)])

        def first(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e][0] for s, e in spans(cu)])

        def third(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e][2] for s, e in spans(cu)])

        fn = {"max": largest, "amin": amin, "argmax": argmax, "first": first, "third": third}[what]
        run, x = compiled(fn), torch.randn(12)
        good = torch.tensor([0, 3, 6, 12])
        assert torch.equal(run(x, good), fn(x, good))
        bad = torch.tensor([0, 2, 6, 12]) if what == "third" else torch.tensor([0, 6, 6, 12])
        with pytest.raises((RuntimeError, IndexError)):
            fn(x, bad)
        with pytest.raises(RuntimeError, match="packpass|slot"):
            run(x, bad)

    def test_division_by_a_length_of_zero(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].sum() * (1 / (e - s)) for s, e in spans(cu)])

        run, x = compiled(f), torch.randn(12)
        torch.testing.assert_close(run(x, CU), f(x, CU))
        bad = torch.tensor([0, 6, 6, 12])
        with pytest.raises(ZeroDivisionError):
            f(x, bad)
        with pytest.raises(RuntimeError, match="division by zero"):
            run(x, bad)

    def test_checks_do_not_ask_skipped_documents(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            pooled = torch.zeros(len(cu) - 1)
            for i, (s, e) in enumerate(spans(cu)):
                if s == e:
                    continue
                pooled[i] = x[s:e].max() / (e - s) + x[s] * (1 / (e - s))
            return pooled

        rewritten(f, torch.randn(12), torch.tensor([0, 3, 3, 12, 12]))


class TestStaysInItsDocument:
    """NaN and infinities of one document, or of no document, reach neither values nor gradients of another."""

    @pytest.mark.parametrize(
        "op",
        ["mean", "std", "norm", "logsumexp", "softmax", "log_softmax", "cumsum", "cumprod", "max", "prod", "normalize"],
    )
    def test_poisoned_neighbour(self, op: str) -> None:
        ops: dict[str, Callable[[Tensor], Tensor]] = {
            "normalize": lambda t: F.normalize(t, dim=0),
            "max": lambda t: t.max(0, keepdim=True).values,
            **{n: functools.partial(_method, name=n) for n in ("softmax", "log_softmax", "cumsum", "cumprod")},
            **{n: functools.partial(_method, name=n, keepdim=True) for n in ("mean", "logsumexp", "prod")},
            "std": lambda t: t.std(0, correction=0, keepdim=True),
            "norm": lambda t: t.norm(dim=0, keepdim=True),
        }
        along = ops[op]

        def f(x: Tensor, cu: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            for s, e in spans(cu):
                out[s:e] = along(x[s:e]) * x[s:e]
            return out

        cu = torch.tensor([1, 4, 5, 9, 11] if op == "max" else [1, 4, 5, 5, 9, 11])
        value = torch.rand(12, 3) + 0.5
        value[[0, 11]], value[4], value[6, 1] = float("nan"), float("inf"), float("nan")
        grads, outs = [], []
        for fn in (f, compiled(f)):
            x = value.clone().requires_grad_()
            out = fn(x, cu)
            torch.where(out.isfinite(), out, 0.0)[[1, 2, 3, 9, 10]].sum().backward()
            grads.append(gradient(x))
            outs.append(out.detach())
        torch.testing.assert_close(outs[1], outs[0], equal_nan=True)
        torch.testing.assert_close(grads[1], grads[0], equal_nan=True)
        assert torch.isfinite(grads[1][[0, 1, 2, 3, 9, 10, 11]]).all()

    def test_constant_documents_have_no_gradient_of_nan(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].std(0, correction=0) + x[s:e].norm(dim=0) for s, e in spans(cu)])

        grads = []
        for fn in (f, compiled(f)):
            x = torch.zeros(12, 2, requires_grad=True)
            fn(x, CU).sum().backward()
            grads.append(gradient(x))
        assert torch.equal(*grads) and torch.isfinite(grads[0]).all()

    def test_ties_share_the_gradient_as_in_eager(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            ys = [
                x[s:e].amax(0).sum() + x[s:e].amax() + x[s:e].max() + x[s:e].max(0).values.sum() for s, e in spans(cu)
            ]
            return torch.stack(ys)

        grads = []
        for fn in (f, compiled(f)):
            x = torch.tensor([[1.0, 2.0], [2.0, 2.0], [2.0, 0.0]] * 4).requires_grad_()
            fn(x, torch.tensor([0, 3, 9, 12])).sum().backward()
            grads.append(gradient(x))
        torch.testing.assert_close(grads[1], grads[0])


class TestReads:
    def test_slots_of_empty_documents_are_eagers(self) -> None:
        """Boundaries repeated at the end, or in the middle: ``x[e - 1]`` is then a token of the document before."""

        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[e - 1] for s, e in spans(cu)])

        rewritten(f, torch.randn(12, 4), torch.tensor([0, 5, 5, 9, 9, 9]))
        rewritten(f, torch.randn(12, 4), torch.tensor([0, 0, 5, 9]))

    def test_slots_of_a_batch_of_one(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[0, e - 1] + x[0][s] for s, e in spans(cu)])

        rewritten(f, torch.randn(1, 12, 4), CU)

    def test_dtypes_promote_as_in_eager(self) -> None:
        def f(x: Tensor, n: Tensor, cu: Tensor) -> list[Tensor]:
            a, b, c, d = torch.zeros(12), torch.zeros(12).double(), torch.zeros(12), torch.zeros(12, dtype=torch.int32)
            for i, (s, e) in enumerate(spans(cu)):
                total = x[s:e].sum()
                a[s:e] = n[s:e] * total + n[s:e] / (e - s)
                b[s:e] = x[s:e].double() * total + (n[s:e].sum() * i)
                c[s:e] = x[s:e] * total.double()
                d[s:e] = n[s:e] // (i + 2) + (n[s:e] % (e - s)) * i
            return [a, b, c, d]

        rewritten(f, torch.randn(12), torch.arange(12, dtype=torch.int32), CU)

    def test_an_input_with_rows_is_written_in_place(self) -> None:
        def f(table: Tensor, x: Tensor, cu: Tensor) -> None:
            for i in range(len(cu) - 1):
                table[0, i] = x[cu[i] : cu[i + 1]].mean(0)

        rewritten(f, torch.randn(2, 7, 3), torch.randn(12, 3), CU)

    def test_segment_ids(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.cat([torch.full_like(x[s:e], i) for i, (s, e) in enumerate(spans(cu))])

        rewritten(f, torch.randn(12), CU)


class TestVerify:
    def test_sums_in_another_order_pass(self) -> None:
        def f(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for s, e in spans(cu):
                out[s:e] = (x[s:e] - x[s:e].mean(0)) / x[s:e].std(0, correction=0).clamp(min=0.1)
            return out

        run = compiled(f, **{"packpass.verify": True})
        run(torch.randn(4096, 8) + 3, torch.tensor([0, 1000, 1003, 4096]))

    def test_a_wrong_sum_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from passes.document_loops import rules_reductions

        def wrong(found: Any) -> Any:
            return found.apply(torch.mul, right(found), 1.001, dim_of_term=0)

        right = rules_reductions.mean
        monkeypatch.setattr(rules_reductions, "mean", wrong)

        def f(x: Tensor, cu: Tensor) -> Tensor:
            return torch.stack([x[s:e].mean(0) for s, e in spans(cu)])

        run = compiled(f, **{"packpass.verify": True})
        with pytest.raises(VerificationError):
            run(torch.randn(12, 4), CU)

    def test_integers_stay_exact(self) -> None:
        assert not bool(_same(torch.tensor([1 << 40]), torch.tensor([(1 << 40) + 1]), True).all())
