"""Loops that Dynamo unrolled (symbolic loops off, or a constant number of documents) give the same rewrites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

import packpass

OPTIONS = {"packpass.inner_backend": "eager", "packpass.symbolic_loops": False}
BOUNDARIES = ([0, 3, 4, 9, 12], [0, 12], [0, 2, 4, 4, 6, 8, 8, 12], [2, 5, 10], [1, 1, 4, 4])


def write_back(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        r = torch.roll(x[..., s:e], -1, -1)
        r[..., -1:] = 0
        out[..., s:e] = r
    return out


def positions(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].flip(-1) + torch.arange(e - s)
    return out


def two_fields(x: Tensor, cu: Tensor) -> Tensor:
    a, b = x.clone(), torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        a[:, s:e] = x[:, s:e].roll(1, -1)
        b[:, s:e] = a[:, s:e] * 2
    return a + b


def chain(x: Tensor, cu: Tensor) -> Tensor:
    for _ in range(2):
        y = x.clone()
        for i in range(len(cu) - 1):
            y[..., cu[i] : cu[i + 1]] = torch.roll(x[..., cu[i] : cu[i + 1]], 1, -1)
        x = y
    return x


@pytest.fixture(autouse=True)
def _reset() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def explain(fn: Callable[..., Any], *args: Any) -> packpass.Report:
    report = packpass.explain(fn, options=OPTIONS)(*(a.clone() for a in args))
    assert torch.equal(report.result, fn(*args))
    return report


@pytest.mark.parametrize("cu", BOUNDARIES, ids=str)
@pytest.mark.parametrize("fn", [write_back, positions, two_fields, chain])
def test_rewritten(fn: Callable[..., Any], cu: list[int]) -> None:
    report = explain(fn, torch.randn(2, 12), torch.tensor(cu, dtype=torch.int32))
    assert [r.rule for r in report.rewrites if r.rule == "vectorize_segments"]
    assert not report.refusals and report.graphs == 1


def test_split_and_cat() -> None:
    def halves(x: Tensor, cu: Tensor) -> Tensor:
        return torch.cat([d.flip(-1) for d in x.split((cu[1:] - cu[:-1]).tolist(), dim=-1)], dim=-1)

    report = explain(halves, torch.randn(2, 12), torch.tensor([0, 3, 9, 12]))
    assert report.rewrites and not report.refusals


class TestLeavesAlone:
    def refused(self, fn: Callable[..., Any], *args: Any) -> None:
        report = packpass.explain(fn, options=OPTIONS)(*(a.clone() for a in args))
        assert torch.equal(report.result, fn(*args))
        assert not report.rewrites

    def test_one_document_is_different(self) -> None:
        def first(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(len(cu) - 1):
                seg = x[cu[i] : cu[i + 1]]
                out[cu[i] : cu[i + 1]] = seg.flip(0) if i == 0 else seg * 2
            return out

        self.refused(first, torch.randn(12), torch.tensor([0, 3, 9, 12]))

    def test_partial(self) -> None:
        def some(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(1, len(cu) - 1):
                out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].flip(0)
            return out

        self.refused(some, torch.randn(12), torch.tensor([0, 3, 9, 12]))

    def test_neighbours(self) -> None:
        def previous(x: Tensor, cu: Tensor) -> Tensor:
            out = x.clone()
            for i in range(len(cu) - 1):
                out[cu[i] : cu[i + 1]] = out[cu[i] : cu[i + 1]] + out[: cu[i]].sum()
            return out

        self.refused(previous, torch.randn(12), torch.tensor([0, 3, 9, 12]))

    def test_boundaries_change_after_they_were_read(self) -> None:
        def cleared(x: Tensor, cu: Tensor) -> Tensor:
            bounds = cu.tolist()
            cu.zero_()
            out = x.clone()
            for s, e in zip(bounds[:-1], bounds[1:]):
                out[s:e] = x[s:e].flip(0)
            return out

        x, cu = torch.randn(12), torch.tensor([0, 3, 9, 12])
        report = packpass.explain(cleared, options=OPTIONS)(x, cu.clone())
        assert torch.equal(report.result, cleared(x, cu.clone()))
        assert not report.rewrites


# === Several loops, and what they join =======================================================================

X, Y, CU3 = torch.arange(12.0), torch.arange(12.0) + 100, torch.tensor([0, 3, 7, 12])
Both = tuple[Tensor, ...]


def documents(cu: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(cu[i], cu[i + 1]) for i in range(len(cu) - 1)]


def written_then_joined(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    out = x.clone()
    for s, e in documents(cu):
        out[s:e] = x[s:e].flip(0)
    return out * 2, torch.cat([y[s:e].flip(0) for s, e in documents(cu)])


def joined_twice(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    return torch.cat([y[s:e].flip(0) for s, e in documents(cu)]), torch.cat([x[s:e] * 2 for s, e in documents(cu)])


def joined_and_stacked(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    joined = torch.cat([y[s:e].flip(0) for s, e in documents(cu)])
    return joined, torch.stack([x[s:e].sum() for s, e in documents(cu)])


def joined_after_a_write(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    first = torch.cat([y[s:e].flip(0) for s, e in documents(cu)])
    y.add_(1)
    return first, torch.cat([y[s:e].flip(0) for s, e in documents(cu)])


def joined_then_used(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    first = torch.cat([y[s:e].flip(0) for s, e in documents(cu)])
    return first, torch.cat([first[s:e] + x[s:e].sum() for s, e in documents(cu)])


def second_has_no_rule(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    first = torch.cat([y[s:e].flip(0) for s, e in documents(cu)])
    return first, torch.cat([torch.fft.fft(x[s:e]).real for s, e in documents(cu)])


def second_is_shorter(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    out = x.clone()
    for s, e in documents(cu):
        out[s:e] = x[s:e].flip(0)
    return out * 2, torch.cat([y[s:e][1:] for s, e in documents(cu)])


def parts_used_again(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    parts = [y[s:e].flip(0) for s, e in documents(cu)]
    return torch.cat(parts), torch.cat([part * 2 for part in parts])


def every_other(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    return (torch.cat([y[s:e].flip(0) if i % 2 else y[s:e] * 2 for i, (s, e) in enumerate(documents(cu))]),)


def by_number(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    return (torch.cat([y[s:e] * i for i, (s, e) in enumerate(documents(cu))]),)


def one_from_another_row(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    return (torch.cat([(x if i else y)[s:e].flip(0) for i, (s, e) in enumerate(documents(cu))]),)


def one_of_two_values(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    pairs = [(y[s:e].flip(0), y[s:e] * 2) for s, e in documents(cu)]
    return (torch.cat([pairs[0][0], pairs[1][1], pairs[2][0]]),)


def largest_or_sum(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    return (torch.stack([y[s:e].sum() if i else y[s:e].amax() for i, (s, e) in enumerate(documents(cu))]),)


def in_another_order(x: Tensor, y: Tensor, cu: Tensor) -> Both:
    return (torch.cat([y[s:e].flip(0) for s, e in documents(cu)][::-1]),)


SEVERAL: list[tuple[Callable[..., Both], int]] = [
    (written_then_joined, 2),
    (joined_twice, 2),
    (joined_and_stacked, 2),
    (joined_after_a_write, 2),
    (joined_then_used, 1),
    (second_has_no_rule, 1),
    (second_is_shorter, 0),
    (parts_used_again, 0),
]
UNLIKE = [every_other, by_number, one_from_another_row, one_of_two_values, largest_or_sum, in_another_order]


def held_against_eager(fn: Callable[..., Both], verify: bool = False) -> packpass.Report:
    arguments = [(X.clone(), Y.clone(), CU3) for _ in range(3)]
    want = fn(*arguments[0])
    options = {**OPTIONS, "packpass.verify": verify}
    for a, b in zip(want, torch.compile(fn, backend=packpass.backend, options=options)(*arguments[1]), strict=True):
        torch.testing.assert_close(a, b)
    torch._dynamo.reset()
    return packpass.explain(fn, options=options)(*arguments[2])


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(("fn", "rewritten"), SEVERAL)
def test_several_loops(fn: Callable[..., Both], rewritten: int, verify: bool) -> None:
    """One is rewritten after the other, and what is refused stands as it was written, its cat included."""
    report = held_against_eager(fn, verify)
    assert len([r for r in report.rewrites if r.rule == "vectorize_segments"]) >= rewritten


@pytest.mark.parametrize("fn", UNLIKE)
def test_documents_that_are_not_alike(fn: Callable[..., Both]) -> None:
    """Each gives something else to the cat: no loop."""
    assert held_against_eager(fn).rewrites == []
