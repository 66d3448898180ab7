"""``segment_sort``, ``segment_pick``, ``segment_topk``, ``segment_median`` (internal): slots in order of their values.

    values, positions = x.clone(), zeros(x.shape)
    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        values[start:stop], positions[start:stop] = sort(x[start:stop], 0)
        picked[d] = topk(x[start:stop], k).indices      # or the one index of kthvalue, median, nanmedian
        best[start : start + counts[d]] = topk(x[start:stop], counts[d]).indices
        middle[d] = median(x[start:stop])               # or nanmedian, of a row without other dimensions

Positions count from the document's start. Where several slots are equal, torch's own choice on the CPU is neither the
first nor the last of them (its sorts are not stable from 17 slots on) and decides which of them gets the gradient. So
the CPU kernels ask torch, document by document; on other devices the first ones are chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from packpass.ops._boundaries_passed import boundaries_passed
from packpass.ops._library import define, differentiable
from packpass.ops._segment_geometry import back, column, documents_of, front, inside_along, reach, slots_of, spread

PICKS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "largest": lambda x, k, dim: torch.topk(x, k, dim).indices,
    "smallest": lambda x, k, dim: torch.topk(x, k, dim, largest=False).indices,
    "kth": lambda x, k, dim: torch.kthvalue(x, k, dim, keepdim=True).indices,
    "median": lambda x, k, dim: torch.median(x, dim, keepdim=True).indices,
    "nanmedian": lambda x, k, dim: torch.nanmedian(x, dim, keepdim=True).indices,
}


def _parts(cu_seqlens: Tensor, least: int = 1) -> Iterator[tuple[int, int, int]]:
    """``(document, start, length)`` of the documents that have so many slots; reads the boundaries."""
    for document, (start, stop) in enumerate(pairwise(cu_seqlens.tolist())):
        if stop - start >= max(least, 1):
            yield document, start, stop - start


# === Sorting =================================================================================================


class _Order(NamedTuple):
    """Slots in the order of their documents and, in each of these, of their values: int64 ``[T, *rest]``."""

    slots: Tensor
    positions: Tensor


def _order(rows: Tensor, cu_seqlens: Tensor, descending: bool) -> _Order:
    """Any device, no host read: sorted by value, then stably by document."""
    total = rows.shape[0]
    by_value = rows.sort(dim=0, descending=descending, stable=True).indices
    document = column(boundaries_passed(cu_seqlens, total), rows).expand(rows.shape)
    again = document.gather(0, by_value).sort(dim=0, stable=True).indices
    here = column(torch.arange(total, device=rows.device), rows)
    slots = torch.where(inside_along(rows, cu_seqlens, 0), by_value.gather(0, again), here)
    return _Order(slots, slots - here + column(reach(cu_seqlens, total, False), rows))


def _sort_kernel(x: Tensor, cu_seqlens: Tensor, descending: bool, stable: bool, dim: int) -> tuple[Tensor, Tensor]:
    rows = front(x, dim)
    found = _order(rows, cu_seqlens, descending)
    return back(rows.gather(0, found.slots), dim).clone(), back(found.positions, dim).clone()


def _sort_cpu(x: Tensor, cu_seqlens: Tensor, descending: bool, stable: bool, dim: int) -> tuple[Tensor, Tensor]:
    values, positions = _sort_fake(x, cu_seqlens, descending, stable, dim)
    values.copy_(x)
    positions.zero_()
    for _, start, length in _parts(cu_seqlens):
        found = torch.sort(x.narrow(dim, start, length), dim=dim, descending=descending, stable=stable)
        values.narrow(dim, start, length).copy_(found.values)
        positions.narrow(dim, start, length).copy_(found.indices)
    return values, positions


def _sort_fake(x: Tensor, cu_seqlens: Tensor, descending: bool, stable: bool, dim: int) -> tuple[Tensor, Tensor]:
    values = torch.empty_like(x, memory_format=torch.contiguous_format)
    return values, torch.empty_like(values, dtype=torch.int64)


segment_sort_op = define(
    "segment_sort(Tensor x, Tensor cu_seqlens, bool descending, bool stable, int dim) -> (Tensor, Tensor)",
    fake=_sort_fake,
    kernel=_sort_kernel,
    cpu_kernel=_sort_cpu,
)


def _sort_setup(ctx: Any, inputs: tuple[Tensor, Tensor, bool, bool, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.dim = inputs[-1]
    ctx.save_for_backward(inputs[1], output[1])


def _sort_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None, None]:
    """Every slot's gradient goes back to where the slot came from: each is written once."""
    cu_seqlens, positions = ctx.saved_tensors
    rows, places = grad.movedim(ctx.dim, 0), positions.movedim(ctx.dim, 0)
    total = rows.shape[0]
    starts = torch.arange(total, device=rows.device) - reach(cu_seqlens, total, False)
    moved = torch.zeros_like(rows).scatter(0, places + column(starts, places), rows)
    return moved.movedim(0, ctx.dim), None, None, None, None


differentiable("segment_sort", _sort_backward, _sort_setup)

# === Single slots ============================================================================================


def _pick_kernel(x: Tensor, cu_seqlens: Tensor, op: str, k: int, dim: int) -> Tensor:
    rows = front(x, dim)
    starts, ends = documents_of(cu_seqlens)
    if rows.shape[0] == 0:
        return _pick_fake(x, cu_seqlens, op, k, dim).zero_()
    order = _order(rows, cu_seqlens, op == "largest")
    lengths = column(ends - starts, rows).expand([-1, *rows.shape[1:]])
    if op in ("median", "nanmedian"):
        numbers = lengths - _nans(rows, cu_seqlens)
        middle = (numbers - 1).clamp(min=0).div(2, rounding_mode="floor")
        # NaN are the largest, so that the first of them is behind all numbers.
        places = middle if op == "nanmedian" else torch.where(numbers < lengths, numbers, middle)
        places = places.unsqueeze(1)
    else:
        wanted = torch.tensor([k - 1], device=x.device) if op == "kth" else torch.arange(k, device=x.device)
        places = wanted.view([1, -1] + [1] * (rows.dim() - 1)).expand([lengths.shape[0], -1, *rows.shape[1:]])
    slots = (places + column(starts, places)).clamp(max=rows.shape[0] - 1)
    found = order.positions.gather(0, slots.flatten(0, 1)).unflatten(0, slots.shape[:2])
    return torch.where(places < lengths.unsqueeze(1), found, 0)


def _nans(rows: Tensor, cu_seqlens: Tensor) -> Tensor:
    """How many of a document's slots are NaN: int64 ``[N + 1, *rest]``."""
    found: Tensor = torch.ops.packpass.segment_reduce.default(rows.isnan().long(), cu_seqlens, "sum", 0)
    return found


def _pick_cpu(x: Tensor, cu_seqlens: Tensor, op: str, k: int, dim: int) -> Tensor:
    out = _pick_fake(x, cu_seqlens, op, k, dim).zero_()
    for document, start, length in _parts(cu_seqlens, k):
        out[document] = PICKS[op](x.narrow(dim, start, length), k, dim).movedim(dim, 0)
    return out


def _pick_fake(x: Tensor, cu_seqlens: Tensor, op: str, k: int, dim: int) -> Tensor:
    if op not in PICKS:
        raise ValueError(f"op must be one of {', '.join(PICKS)}, got {op!r}")
    shape = list(x.shape)
    del shape[dim]
    return x.new_empty([cu_seqlens.shape[0], k if op in ("largest", "smallest") else 1, *shape], dtype=torch.int64)


segment_pick_op = define(
    "segment_pick(Tensor x, Tensor cu_seqlens, str op, int k, int dim) -> Tensor",
    fake=_pick_fake,
    kernel=_pick_kernel,
    cpu_kernel=_pick_cpu,
)

# === As many slots as a document asks for ====================================================================


def _topk_kernel(x: Tensor, cu_seqlens: Tensor, counts: Tensor, largest: bool, in_order: bool) -> Tensor:
    return _order(x, cu_seqlens, largest).positions.clone()


def _topk_cpu(x: Tensor, cu_seqlens: Tensor, counts: Tensor, largest: bool, in_order: bool) -> Tensor:
    out, numbers = _topk_fake(x, cu_seqlens, counts, largest, in_order).zero_(), counts.tolist()
    for document, start, length in _parts(cu_seqlens):
        k = min(max(numbers[document], 0), length)
        found = torch.topk(x.narrow(0, start, length), k, 0, largest, in_order)
        out.narrow(0, start, k).copy_(found.indices)
    return out


def _topk_fake(x: Tensor, cu_seqlens: Tensor, counts: Tensor, largest: bool, in_order: bool) -> Tensor:
    return torch.empty_like(x, dtype=torch.int64, memory_format=torch.contiguous_format)


segment_topk_op = define(
    "segment_topk(Tensor x, Tensor cu_seqlens, Tensor counts, bool largest, bool in_order) -> Tensor",
    fake=_topk_fake,
    kernel=_topk_kernel,
    cpu_kernel=_topk_cpu,
)

# === The median of everything ================================================================================


def _median_kernel(x: Tensor, cu_seqlens: Tensor, ignore_nan: bool) -> Tensor:
    op = "nanmedian" if ignore_nan else "median"
    at = segment_pick_op(x, cu_seqlens, op, 1, 0)[:, 0]
    starts, ends = documents_of(cu_seqlens)
    padded = torch.cat([x, x.new_full((1,), float("nan"))])
    return padded.index_select(0, torch.where(starts < ends, starts + at, x.shape[0]))


def _median_fake(x: Tensor, cu_seqlens: Tensor, ignore_nan: bool) -> Tensor:
    return x.new_empty([cu_seqlens.shape[0]])


segment_median_op = define(
    "segment_median(Tensor x, Tensor cu_seqlens, bool ignore_nan) -> Tensor",
    fake=_median_fake,
    kernel=_median_kernel,
)


def _median_setup(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output)


def _median_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    """Shared evenly by the slots that hold the median, as torch does it."""
    x, cu_seqlens, out = ctx.saved_tensors
    slots = slots_of(cu_seqlens, x.shape[0])
    middle = spread(out, slots)
    chosen = slots.inside & ((x == middle) | (x.isnan() & middle.isnan()))
    count = torch.ops.packpass.segment_reduce.default(chosen.to(grad.dtype), cu_seqlens, "sum", 0)
    return torch.where(chosen, spread(grad / count.clamp(min=1), slots), 0), None, None


differentiable("segment_median", _median_backward, _median_setup)
