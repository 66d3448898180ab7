"""vectorize_segments on graphs: op counts before and after, what is emitted, what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import packpass
from packpass.engine.backend import Backend

from .programs import checked

CU = torch.tensor([0, 3, 4, 4, 9, 12], dtype=torch.int32)


class Recorder(Backend):
    """A packpass backend with an eager inner backend that keeps the graphs it hands on."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []

    def __call__(self, gm: fx.GraphModule, inputs: Any, **kwargs: Any) -> Callable[..., Any]:
        kwargs["options"] = {**(kwargs.get("options") or {}), "packpass.inner_backend": "eager"}
        compiled = super().__call__(gm, inputs, **kwargs)
        self.graphs.append(gm)
        return compiled

    def count(self, name: str) -> int:
        """Nodes whose target is this op, method or function, over all graphs."""
        found = 0
        for gm in self.graphs:
            for node in gm.graph.nodes:
                target = node.target
                text = target if isinstance(target, str) else getattr(target, "__name__", "")
                found += text == name or str(target) == f"packpass.{name}.default"
        return found


@pytest.fixture(autouse=True)
def _reset() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(fn: Callable[..., Any], *args: Any) -> Recorder:
    recorder = Recorder()
    compiled = torch.compile(fn, backend=recorder, fullgraph=True)
    assert torch.equal(compiled(*args), fn(*args))
    return recorder


def roll_and_fill(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        r = torch.roll(x[..., s:e], -1, -1)
        r[..., -1:] = 7
        out[..., s:e] = r
    return out


def test_roll_and_fill_is_one_op_and_nothing_else() -> None:
    recorder = check(roll_and_fill, torch.randn(2, 12), CU)
    assert recorder.count("packed_roll") == 1
    assert recorder.count("check_cu_seqlens") == recorder.count("fit_boundaries") == 1
    assert [n.op for n in recorder.graphs[0].graph.nodes if n.op != "placeholder"] == [
        "call_function",
        "call_function",
        "call_function",
        "output",
    ]
    (roll,) = [n for n in recorder.graphs[0].graph.nodes if "packed_roll" in str(n.target)]
    assert roll.args[2:] == (-1, -1, 7, None)


def test_no_boundary_is_read_on_the_host() -> None:
    recorder = check(roll_and_fill, torch.randn(2, 12), CU)
    for name in ("item", "_assert_scalar", "sym_size", "loop_begin"):
        assert recorder.count(name) == 0


def test_fields_of_one_loop_share_one_check() -> None:
    def two_fields(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
        a, b = x.clone(), y.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            a[s:e] = x[s:e].roll(1, 0)
            b[s:e] = y[s:e].flip(0)
        c = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            c[s:e] = x[s:e].roll(2, 0)
        return a + b + c

    recorder = check(two_fields, torch.randn(12), torch.randn(12), CU)
    assert recorder.count("check_cu_seqlens") == 1
    assert recorder.count("packed_roll") == 2 and recorder.count("packed_flip") == 1


def test_mixed_shifts_become_rolls_with_the_fill_of_the_idiom() -> None:
    def slices(ids: Tensor, cu: Tensor) -> Tensor:
        labels = torch.full_like(ids, -1)
        for i in range(cu.numel() - 1):
            s, e = int(cu[i]), int(cu[i + 1])
            seg = labels[s:e]
            seg[:-1] = ids[s:e][1:]
            seg[-1:] = -100
        return labels

    recorder = check(slices, torch.arange(12), CU)
    (roll,) = [n for n in recorder.graphs[0].graph.nodes if "packed_roll" in str(n.target)]
    assert roll.args[2:] == (-1, -1, -100, None)


def test_an_input_written_in_place_stays_written() -> None:
    def in_place(x: Tensor, cu: Tensor) -> None:
        for s, e in zip(cu[:-1], cu[1:]):
            x[s:e] = x[s:e].flip(0) * 2

    recorder = Recorder()
    compiled = torch.compile(in_place, backend=recorder)
    a, b = torch.randn(12), torch.empty(0)
    b = a.clone()
    in_place(a, CU)
    compiled(b, CU)
    assert torch.equal(a, b) and recorder.count("packed_flip") == 1


def test_user_checks_survive_the_rewrite() -> None:
    recorder = Recorder()
    compiled = torch.compile(checked, backend=recorder)
    good, bad = torch.tensor([0, 4, 8, 12]), torch.tensor([0, 8, 9, 12])
    x = torch.randn(12)
    assert torch.equal(compiled(x, good), checked(x, good))
    assert recorder.count("packed_roll") == 1 and recorder.count("_assert_async") >= 2
    with pytest.raises(Exception, match="assert"):
        compiled(x, bad)


def test_gradient_of_garbage_slots_stays_out() -> None:
    """0/0 in slots that no document owns must not reach the gradient through a masked result."""

    def root(x: Tensor, cu: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for s, e in zip(cu[:-1], cu[1:]):
            out[s:e] = (x[s:e].roll(1, 0) * x[s:e]).sqrt() / x[s:e]
        return out

    cu = torch.tensor([2, 5, 9])
    value = torch.rand(12) + 1
    value[[0, 10]] = 0
    grads = []
    for fn in (root, torch.compile(root, backend=Recorder(), fullgraph=True)):
        x = value.clone().requires_grad_()
        fn(x, cu).sum().backward()
        grads.append(x.grad)
    assert torch.isfinite(grads[0]).all() and torch.equal(*grads)


@pytest.mark.parametrize("name", ["vectorize_segments"])
def test_a_disabled_pass_leaves_the_loop_to_replay(name: str) -> None:
    x = torch.randn(2, 12)
    report = packpass.explain(roll_and_fill, options={"packpass.disable": [name], "packpass.inner_backend": "eager"})(
        x, CU
    )
    assert torch.equal(report.result, roll_and_fill(x, CU))
    assert not report.rewrites


def two(x: Tensor, cu: Tensor, cu2: Tensor) -> Tensor:
    """Documents of one row, taken out of another one with boundaries of its own."""
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu2[i] : cu2[i + 1]]
    return out


class TestOnlySlotBySlot:
    """There is no whole-row form, but what documents write into their own slots is put in at once."""

    def rewritten(self, fn: Callable[..., Any], *args: Any, others: Sequence[tuple[Any, ...]] = ()) -> None:
        report = packpass.explain(fn, options={"packpass.inner_backend": "eager"})(*args)
        assert [r.rule for r in report.rewrites] == ["ragged_grids"], report.refusals
        assert torch.equal(report.result, fn(*args))
        compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
        for batch in (args, *others):
            assert torch.equal(compiled(*batch), fn(*batch))

    def test_partial_coverage(self) -> None:
        def but_the_first(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(1, len(cu) - 1):
                out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
            return out

        x = torch.randn(12)
        self.rewritten(but_the_first, x, CU, others=[(x, torch.tensor([2, 3, 3, 9])), (x, torch.tensor([0, 12]))])

    def test_rows_of_different_lengths(self) -> None:
        def longer(x: Tensor, cu: Tensor) -> Tensor:
            out = x.new_zeros(cu[-2] + 12)
            for s, e in zip(cu[:-1], cu[1:]):
                out[s:e] = x[s:e] * 2
            return out

        x = torch.randn(12)
        self.rewritten(longer, x, CU, others=[(x, torch.tensor([2, 3, 3, 9])), (x, torch.tensor([0, 12]))])

    def test_two_sets_of_boundaries(self) -> None:
        x, apart = torch.randn(12), (torch.tensor([0, 4, 6]), torch.tensor([3, 7, 9]))
        self.rewritten(two, x, CU, CU.clone(), others=[(x, *apart)])

    def test_a_document_that_does_not_fit(self) -> None:
        """Two lengths that differ are an error, as in eager, but for one slot, which goes to all places."""
        compiled = torch.compile(two, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
        x, cu = torch.randn(12), torch.tensor([0, 4, 6])
        assert torch.equal(compiled(x, cu, cu + 3), two(x, cu, cu + 3))
        with pytest.raises(RuntimeError, match="must match"):
            two(x, cu, torch.tensor([3, 5, 9]))
        with pytest.raises((RuntimeError, ValueError), match="must match|does not fit"):
            compiled(x, cu, torch.tensor([3, 5, 9]))
        one = torch.tensor([3, 4, 6])  # the one slot goes to all places of the first document
        assert torch.equal(compiled(x, cu, one), two(x, cu, one))


class TestLeavesAlone:
    """The graph of a refused loop is what stock torch, or the replay, makes of it: never a packed op."""

    def refused(self, fn: Callable[..., Any], *args: Any) -> str:
        report = packpass.explain(fn, options={"packpass.inner_backend": "eager"})(*args)
        assert not report.rewrites
        want = fn(*args)
        assert all(
            torch.equal(a, b)
            for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(report.result))
        )
        return report.refusals[0].code

    def test_op_without_a_rule(self) -> None:
        def shifted(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for s, e in zip(cu[:-1], cu[1:]):
                out[s:e] = torch.fft.fftshift(x[s:e])
            return out

        assert self.refused(shifted, torch.randn(12), CU) == "no-rule"

    def test_index_as_a_number(self) -> None:
        def scaled(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(len(cu) - 1):
                out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * 2**i
            return out

        assert self.refused(scaled, torch.randn(12), CU) == "index-as-number"

    def test_window_beyond_the_document(self) -> None:
        def two_documents(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(len(cu) - 2):
                out[cu[i] : cu[i + 2]] = x[cu[i] : cu[i + 2]].flip(0)
            return out

        assert self.refused(two_documents, torch.randn(12), CU) == "not-a-segment"

    def test_aliasing_source(self) -> None:
        def shifted_view(x: Tensor, cu: Tensor) -> Tensor:
            base = x.clone()
            out, source = base[:-1], base[1:]
            for s, e in zip(cu[:-1], cu[1:]):
                out[s:e] = source[s:e] + 1
            return base

        assert self.refused(shifted_view, torch.randn(13), CU) == "aliasing"

    def test_carried_state(self) -> None:
        def running(x: Tensor, cu: Tensor) -> Tensor:
            out, total = x.clone(), 0.0
            for s, e in zip(cu[:-1], cu[1:]):
                out[s:e] = x[s:e] + total
                total = total + 1.0
            return out

        assert self.refused(running, torch.randn(12), CU) == "carried-state"

    def test_leaked_local(self) -> None:
        def leak(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for s, e in zip(cu[:-1], cu[1:]):
                seg = x[s:e] * 2
                out[s:e] = seg
            return out.sum() + seg.sum()

        assert self.refused(leak, torch.randn(12), CU) == "leaked-local"
