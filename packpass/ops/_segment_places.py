"""``segment_places``, ``gather_places``, ``scatter_places`` (internal): documents that lie elsewhere in another tensor.

    places = full(T, -1)                                 # for every slot of the row, where it lies in the other tensor
    for d, (start, stop) in enumerate(pairwise(cu_seqlens)):
        places[start:stop] = begins[d] + arange(stop - start)

    gather_places(x, places)[p] = x[places[p]]           # 0 where there is no place
    scatter_places(x, rows, places)[places[p]] = rows[p] # x where nothing goes; of two slots with one place the later

Packed rows with other gaps between their documents, padded rows ``[N, L]`` (flat, from ``d * L`` on), and windows
within documents are all read and written so. Both directions are gathers, backward as well, but for a tensor that is
read at one place by several slots, whose gradient is a sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

from packpass.ops._library import define, differentiable
from packpass.ops._segment_geometry import along, documents_of, slots_of, spread


def _places_kernel(cu_seqlens: Tensor, begins: Tensor, total: int) -> Tensor:
    slots = slots_of(cu_seqlens, total)
    ahead = begins.long() - cu_seqlens.long()
    here = torch.arange(total, device=cu_seqlens.device)
    return torch.where(slots.inside, spread(ahead, slots) + here, -1)


segment_places_op = define(
    "segment_places(Tensor cu_seqlens, Tensor begins, SymInt total) -> Tensor",
    fake=lambda cu_seqlens, begins, total: cu_seqlens.new_empty([total], dtype=torch.int64),
    kernel=_places_kernel,
    decomposition=_places_kernel,
)


def _mask_kernel(mask: Tensor, cu_seqlens: Tensor, total: int) -> Tensor:
    slots, counts = slots_of(cu_seqlens, total), mask.sum(1)
    # One entry more than documents; a row without one is not read.
    before = torch.nn.functional.pad(counts.cumsum(0), (1, 0))[: cu_seqlens.shape[0]]
    own = torch.nn.functional.pad(counts, (0, 1))[: cu_seqlens.shape[0]]
    here = torch.arange(total, device=cu_seqlens.device) - spread(cu_seqlens.long(), slots)
    # A row with one true place alone broadcasts, as in eager.
    number = spread(before, slots) + torch.minimum(here, (spread(own, slots) - 1).clamp(min=0))
    found = torch.searchsorted(mask.flatten().long().cumsum(0), number + 1)
    return torch.where(slots.inside, found, -1)


mask_places_op = define(
    "mask_places(Tensor mask, Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=lambda mask, cu_seqlens, total: cu_seqlens.new_empty([total], dtype=torch.int64),
    kernel=_mask_kernel,
    decomposition=_mask_kernel,
)
"""For every slot of the row, where in the flat ``mask [N, S]`` the true place lies that has its number within the
document; -1 outside of documents."""


def _interleaved_kernel(cu_seqlens: Tensor, pieces: int, total: int) -> Tensor:
    slots = slots_of(cu_seqlens * pieces, total * pieces)
    starts, lengths = cu_seqlens.long(), documents_of(cu_seqlens).lengths
    own = torch.arange(total * pieces, device=cu_seqlens.device) - spread(starts * pieces, slots)
    length = spread(lengths, slots).clamp(min=1)
    found = own // length * total + spread(starts, slots) + own % length
    return torch.where(slots.inside, found, -1)


interleaved_places_op = define(
    "interleaved_places(Tensor cu_seqlens, int pieces, SymInt total) -> Tensor",
    fake=lambda cu_seqlens, pieces, total: cu_seqlens.new_empty([total * pieces], dtype=torch.int64),
    kernel=_interleaved_kernel,
    decomposition=_interleaved_kernel,
)
"""Of ``pieces`` rows of one length, one behind the other, the slots in the order of documents: all pieces of the first,
then all of the second."""


def _resized(x: Tensor, dim: int, size: int) -> Tensor:
    """An empty tensor like ``x`` but for its size along ``dim``."""
    shape = list(x.shape)
    shape[dim] = size
    return x.new_empty(shape)


def _to_look_up(x: Tensor, dim: int) -> Tensor:
    """``x``, with a slot more where it may have none: a place that stands for none is looked up all the same."""
    if statically_known_true(x.shape[dim] > 0):
        return x
    return torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim % x.dim()) + (0, 1))


def _gather_kernel(x: Tensor, places: Tensor, dim: int) -> Tensor:
    if guard_or_false(x.shape[dim] == 0):
        return _resized(x, dim, places.shape[0]).zero_()
    x = _to_look_up(x, dim)
    taken = x.index_select(dim, places.clamp(0, x.shape[dim] - 1))
    return torch.where(along(places >= 0, taken, dim), taken, torch.zeros((), dtype=x.dtype, device=x.device))


def _gather_fake(x: Tensor, places: Tensor, dim: int) -> Tensor:
    return _resized(x, dim, places.shape[0])


gather_places_op = define(
    "gather_places(Tensor x, Tensor places, int dim) -> Tensor",
    fake=_gather_fake,
    kernel=_gather_kernel,
    decomposition=_gather_kernel,
)


def _sum_kernel(rows: Tensor, places: Tensor, dim: int, size: int) -> Tensor:
    """The gradient of `gather_places`: every slot of ``rows`` added where it came from."""
    # What has no place goes to a slot behind the last, which is cut off.
    out = _resized(rows, dim, size + 1).zero_()
    out.index_add_(dim, torch.where(places >= 0, places, size).clamp(max=size), rows)
    return out.narrow(dim, 0, size).contiguous()


def _sum_fake(rows: Tensor, places: Tensor, dim: int, size: int) -> Tensor:
    return _resized(rows, dim, size)


sum_places_op = define(
    "sum_places(Tensor rows, Tensor places, int dim, SymInt size) -> Tensor", fake=_sum_fake, kernel=_sum_kernel
)


def _sources_kernel(places: Tensor, size: int) -> Tensor:
    """int64 ``[size]``: the last slot with this place, -1 for none."""
    out = places.new_full([size + 1], -1)
    here = torch.arange(places.shape[0], device=places.device)
    return out.scatter_reduce_(0, torch.where(places >= 0, places, size).clamp(max=size), here, "amax")[:size].clone()


sources_of_places_op = define(
    "sources_of_places(Tensor places, SymInt size) -> Tensor",
    fake=lambda places, size: places.new_empty([size]),
    kernel=_sources_kernel,
)


def _not_overwritten_kernel(places: Tensor, before: Tensor, cu_seqlens: Tensor, size: int) -> Tensor:
    if guard_or_false(size == 0):
        return places.clone()
    slots = slots_of(cu_seqlens, places.shape[0])
    sources = sources_of_places_op(before, size)
    # One entry more, so that there is one to be looked up where there are no slots.
    entries = torch.nn.functional.pad(slots.entry, (0, 1))
    last = torch.where(sources >= 0, entries.index_select(0, sources.clamp(min=0)), -1)
    last = _to_look_up(last, 0)
    return torch.where(last.index_select(0, places.clamp(0, last.shape[0] - 1)) > slots.entry, -1, places)


not_overwritten_places_op = define(
    "not_overwritten_places(Tensor places, Tensor before, Tensor cu_seqlens, SymInt size) -> Tensor",
    fake=lambda places, before, cu_seqlens, size: places.new_empty(places.shape),
    kernel=_not_overwritten_kernel,
    decomposition=_not_overwritten_kernel,
)
"""``places`` but for those to which a later document went ``before``: in eager that one writes after this."""


def _scatter_kernel(x: Tensor, rows: Tensor, places: Tensor, dim: int) -> Tensor:
    if guard_or_false(rows.shape[dim] == 0):
        return x.clone(memory_format=torch.contiguous_format)
    sources = sources_of_places_op(places, x.shape[dim])
    rows = _to_look_up(rows, dim)
    taken = rows.index_select(dim, sources.clamp(0, rows.shape[dim] - 1))
    return torch.where(along(sources >= 0, x, dim), taken, x).contiguous()


scatter_places_op = define(
    "scatter_places(Tensor x, Tensor rows, Tensor places, int dim) -> Tensor",
    fake=lambda x, rows, places, dim: x.new_empty(x.shape),
    kernel=_scatter_kernel,
    decomposition=_scatter_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, places, ctx.dim = inputs
    ctx.size = x.shape[ctx.dim]
    ctx.save_for_backward(places)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (places,) = ctx.saved_tensors
    return sum_places_op(grad, places, ctx.dim, ctx.size), None, None


def _sum_setup(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
    _, places, ctx.dim, _ = inputs
    ctx.save_for_backward(places)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    (places,) = ctx.saved_tensors
    return gather_places_op(grad, places, ctx.dim), None, None, None


def _scatter_setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
    _, _, places, ctx.dim = inputs
    ctx.save_for_backward(places)


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
    (places,) = ctx.saved_tensors
    sources = sources_of_places_op(places, grad.shape[ctx.dim])
    zero = torch.zeros((), dtype=grad.dtype, device=grad.device)
    kept = torch.where(along(sources >= 0, grad, ctx.dim), zero, grad)
    return kept, gather_places_op(grad, _winning(places, sources), ctx.dim), None, None


def _winning(places: Tensor, sources: Tensor) -> Tensor:
    """The places of those slots that are not overwritten by a later one."""
    if guard_or_false(sources.shape[0] == 0):
        return torch.full_like(places, -1)
    last = sources.index_select(0, places.clamp(min=0))
    here = torch.arange(places.shape[0], device=places.device)
    return torch.where((places >= 0) & (last == here), places, -1)


differentiable("gather_places", _backward, _setup)
differentiable("sum_places", _sum_backward, _sum_setup)
differentiable("scatter_places", _scatter_backward, _scatter_setup)
