"""A refused loop costs itself alone: loops before it, in other functions, and beside asserts and branches on data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import Refusal, Rewrite, collecting
from packpass.reports.report import Report

Fn = Callable[[Tensor, Tensor], Any]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def locations(found: Sequence[Rewrite | Refusal]) -> int:
    return len({item.location for item in found})


def good(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[s:e] = torch.roll(x[s:e], -1, 0)
    return out


def good_too(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)])


def decayed(x: Tensor, cu: Tensor) -> Tensor:
    """Refused: a document needs what the one before it left."""
    out, before = x.clone(), 0.0
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        value = x[s:e].sum() + before * 0.5
        out[s:e] = value
        before = value
    return out


def first_entry(x: Tensor, cu: Tensor) -> Tensor:
    """Refused after its loop: a list of documents is looked into."""
    parts = []
    for i in range(len(cu) - 1):
        parts.append(x[cu[i] : cu[i + 1]])
    return parts[0]


def before_a_refused_one(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one function, with names in common."""
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[s:e] = torch.roll(x[s:e], -1, 0)
    y, before = out * 2, 0.0
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        value = x[s:e].sum() + before * 0.5
        y[s:e] = value
        before = value
    return out, y


def around_a_refused_one(x: Tensor, cu: Tensor) -> Any:
    return good(x, cu), decayed(x, cu), good_too(x, cu)


def behind_a_refused_one(x: Tensor, cu: Tensor) -> Any:
    return decayed(x, cu), good(x, cu)


def before_a_look_into_a_list(x: Tensor, cu: Tensor) -> Any:
    return good(x, cu), first_entry(x, cu)


def around_an_assert(x: Tensor, cu: Tensor) -> Tensor:
    a = good(x, cu)
    assert cu[-1].item() == x.shape[0]
    return a + good_too(x, cu)


def around_a_branch_on_data(x: Tensor, cu: Tensor) -> Tensor:
    a = good(x, cu)
    if x.sum() > 0:
        a = a + 1
    return a + good_too(x, cu)


def around_a_branch_on_the_last_boundary(x: Tensor, cu: Tensor) -> Tensor:
    a = good(x, cu)
    if cu[-1].item() == x.shape[0]:
        a = a + 1
    return a + good_too(x, cu)


@pytest.mark.parametrize(
    ("fn", "rewritten", "refused"),
    [
        (before_a_refused_one, 1, 1),
        (around_a_refused_one, 2, 1),
        (behind_a_refused_one, 1, 1),
        (before_a_look_into_a_list, 1, 1),
        (around_an_assert, 2, 0),
        (around_a_branch_on_data, 2, 0),
        (around_a_branch_on_the_last_boundary, 2, 0),
    ],
)
def test_other_loops_stay(fn: Fn, rewritten: int, refused: int) -> None:
    sizes = ((8, [0, 3, 8]), (9, [0, 2, 5, 9]), (7, [0, 1, 2, 3, 7]))
    batches = [(torch.randn(n), torch.tensor(cu)) for n, cu in sizes]
    with collecting(Report()) as said:
        compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
        for x, cu in batches:
            torch.testing.assert_close(compiled(x, cu), fn(x, cu))
    assert (locations(said.rewrites), locations(said.refusals)) == (rewritten, refused)
    ours = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    stock = torch.compile(fn, backend="eager")
    for x, cu in batches:
        stock(x, cu)
    # Where stock torch runs all of a function eagerly, the loops that are rewritten have graphs: at most two each.
    assert ours <= max(torch._dynamo.utils.counters["stats"]["unique_graphs"], 2 * rewritten)


def refused_first(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing stands in front of the refused loop: the whole function is what stock torch makes of it."""
    y, before = x * 2, 0.0
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        value = x[s:e].sum() + before * 0.5
        y[s:e] = value
        before = value
    return y, good(x, cu)


def test_nothing_in_front() -> None:
    compiled = torch.compile(refused_first, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for n, cu in ((8, [0, 3, 8]), (9, [0, 2, 5, 9])):
        x, boundaries = torch.randn(n), torch.tensor(cu)
        torch.testing.assert_close(compiled(x, boundaries), refused_first(x, boundaries))


def used_by_both(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers that both loops go by must not outlive a graph."""
    edges = list(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True))
    a = torch.cat([x[s:e].flip(0) for s, e in edges])
    y, before = x * 2, 0.0
    for s, e in edges:
        value = x[s:e].sum() + before * 0.5
        y[s:e] = value
        before = value
    return a, y


def test_numbers_for_both_loops() -> None:
    compiled = torch.compile(used_by_both, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for n, cu in ((8, [0, 3, 8]), (9, [0, 2, 5, 9])):
        x, boundaries = torch.randn(n), torch.tensor(cu)
        torch.testing.assert_close(compiled(x, boundaries), used_by_both(x, boundaries))


def in_an_except(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    for i in range(len(cu) - 1):
        last = x[cu[i] : cu[i + 1]].flip(0)
        out[cu[i] : cu[i + 1]] = last
    torch._dynamo.graph_break()
    try:
        last = short(x)
    except ValueError:
        return out, last
    return out, last * 2


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def short(x: Tensor) -> Tensor:
    if x.shape[0] > 3:
        raise ValueError("too long")
    return x


@pytest.mark.parametrize("n", [8, 3])
def test_what_the_loop_has_assigned_is_read_after_an_error(n: int) -> None:
    """A name that the code behind a graph break assigns again is still there where that assignment fails."""
    x, cu = torch.randn(n), torch.tensor([0, 2, n])
    compiled = torch.compile(in_an_except, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    for got, want in zip(compiled(x, cu), in_an_except(x, cu), strict=True):
        assert torch.equal(got, want)
