"""Programs that need inputs of their own: rows without slots, NaN, and lists of images that leave the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass


def row(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    x = torch.randn(sum(lengths), 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    return x, torch.tensor([0, *lengths]).cumsum(0)


def images(sizes: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    return row([h * w for h, w in sizes])[0], torch.tensor(sizes)


def run(fn: Callable[..., Any], x: Tensor, *rest: Any) -> tuple[list[Tensor], Tensor | None]:
    """The tensors that a call returns, and the gradient of all of them."""
    x.grad = None
    out = fn(x, *rest)
    found = [out] if isinstance(out, Tensor) else list(out)
    if any(t.requires_grad for t in found):
        torch.stack([(t * 3).sum() for t in found if t.requires_grad]).sum().backward()
    return [t.detach() for t in found], x.grad


def hold(fn: Callable[..., Any], batches: Sequence[tuple[Any, ...]]) -> packpass.Report:
    """Values and gradients are eager's in every call, one after the other; the report of the last."""
    torch._dynamo.reset()
    options = {"packpass.inner_backend": "eager"}
    compiled = torch.compile(fn, backend=packpass.backend, options=options)
    for batch in batches:
        want, got = run(fn, *batch), run(compiled, *batch)
        torch.testing.assert_close(got, want, equal_nan=True)
    torch._dynamo.reset()
    report: packpass.Report = packpass.explain(fn, options=options)(*batches[-1])
    return report


def first_slots(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.stack([x[s] * 2 if e > s else x.new_zeros(4) for s, e in zip(bounds[:-1], bounds[1:])])


def slot_before(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] + (x[s - 1] if s > 0 else 0)
    return out


def less_the_last(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e > s:
            out[s:e] = x[s:e] - x[e - 1]
    return out


@pytest.mark.parametrize("fn", [first_slots, slot_before, less_the_last])
@pytest.mark.parametrize("lengths", [[[0, 0], [3, 2]], [[3, 2], [0, 0], [2, 2, 1]]], ids=["first", "later"])
def test_rows_without_slots(fn: Callable[..., Any], lengths: list[list[int]]) -> None:
    assert hold(fn, [row(each) for each in lengths]).rewrites


def largest(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].max() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


def smallest(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].min() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


def largest_of_columns(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].amax(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@pytest.mark.parametrize("fn", [largest, smallest, largest_of_columns])
def test_gradients_of_extremes_among_nan(fn: Callable[..., Any]) -> None:
    nan = float("nan")
    x = torch.tensor([[nan, 1, 2, 3], [4, 5, 6, 7], [1, nan, nan, 0], [5, 5, 1, 1]], requires_grad=True)
    assert hold(fn, [(x, torch.tensor([0, 2, 3, 4]))]).rewrites


def by_offset(x: Tensor, sizes: Tensor) -> list[Tensor]:
    out, start = [], 0
    for h, w in sizes.tolist():
        out.append(x[start : start + h * w] * 2)
        start += h * w
    return out


def pooled(x: Tensor, sizes: Tensor) -> list[Tensor]:
    out, start = [], 0
    for h, w in sizes.tolist():
        out.append(x[start : start + h * w].view(h, w, -1).mean(0))
        start += h * w
    return out


def turned(x: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
    out, start = [], 0
    for h, w in sizes.tolist():
        out.append(x[start : start + h * w].t() * 1.5)
        start += h * w
    return tuple(out)


def split_by_products(x: Tensor, sizes: Tensor) -> Tensor:
    parts = x.split(sizes.prod(-1).tolist())
    return torch.cat([part.view(h, w, -1).sin().flatten(0, 1) for part, (h, w) in zip(parts, sizes.tolist())])


@pytest.mark.parametrize("fn", [by_offset, pooled, turned, split_by_products])
def test_images_of_several_sizes(fn: Callable[..., Any]) -> None:
    sizes = [[(2, 3), (1, 4)], [(3, 3), (2, 2), (4, 1)], [(2, 2), (2, 5)]]
    report = hold(fn, [images(each) for each in sizes])
    assert report.rewrites
    assert not report.refusals


def folded(x: Tensor, sizes: Tensor) -> Tensor:
    """The last size is the number of slots of a place, times the width."""
    parts = x.split((4 * sizes.prod(-1)).tolist())
    return torch.cat([part.view(h, w, -1).sum((0, 1)) for part, (h, w) in zip(parts, sizes.tolist())])


def test_what_is_left_over_is_not_the_width() -> None:
    sizes = [[(2, 3), (1, 4)], [(3, 3), (2, 2), (4, 1)]]
    hold(folded, [(row([4 * h * w for h, w in each])[0], torch.tensor(each)) for each in sizes])


def left_and_skipped(x: Tensor, lengths: Tensor) -> Tensor:
    total, start = x.sum(0), 0
    for n in lengths.tolist():
        if n == -5:
            break
        if n < 0:
            continue
        total = total + x[start : start + n].sum(0)
        start += n
    return total


def left_and_counted(x: Tensor, lengths: Tensor) -> Tensor:
    start, number, out = 0, 1, torch.zeros_like(x)
    for n in lengths.tolist():
        if n <= 0:
            break
        if n > 2:
            out[start : start + n] = number
            number += 1
        else:
            out[start : start + n] = 5
        start += n
    return out * number


def two_lists(x: Tensor, cu: Tensor) -> Tensor:
    sums, sizes = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e > s:
            sizes.append(e - s)
            sums.append(x[s:e].sum(0))
    return torch.stack(sums) * len(sizes) + sum(sizes)


@pytest.mark.parametrize(
    ("fn", "numbers"),
    [
        (left_and_skipped, [[3, -1, 5], [-5, 1], [3, 7], [3, -5, 5]]),
        (left_and_counted, [[3, 5], [0, 5], [2, 4, 0]]),
        (two_lists, [[0, 3, 8], [0, 3, 8, 0, 0], [0, 5, 3, 8], [-5, -2, 8]]),
    ],
)
def test_calls_that_do_not_fit(fn: Callable[..., Any], numbers: list[list[int]]) -> None:
    """No document in front of the one that leaves, slices that the row cuts off, boundaries that fall."""
    x, _ = row([8])
    assert hold(fn, [(x, torch.tensor(each)) for each in numbers]).rewrites


@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: torch.nn.functional.dropout(x, 0.5)])
def test_random_numbers_are_drawn_once(draw: Callable[[Tensor], Tensor]) -> None:
    """A call that does not fit runs as it is written, with the numbers that eager draws."""

    def fn(x: Tensor, cu: Tensor) -> Tensor:
        x = x + draw(x)
        return torch.stack([x[s:e].sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()) if e > s])

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x, _ = row([8])
    for bounds in ([0, 3, 8], [0, 3, 8, 0, 0]):
        found = []
        for one in (fn, compiled):
            torch.manual_seed(5)
            found.append((one(x, torch.tensor(bounds)), torch.rand(1)))  # and what is drawn next
        torch.testing.assert_close(*found)


def test_a_list_of_no_numbers_is_of_floating_point_numbers() -> None:
    def fn(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor([n for n in lengths.tolist() if n > 0]), x * 2

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    x, _ = row([8])
    for lengths in ([3, 0, 5], [2, 6], [0, 0]):
        want, got = fn(x, torch.tensor(lengths)), compiled(x, torch.tensor(lengths))
        assert got[0].dtype is want[0].dtype
        torch.testing.assert_close(got, want)
