"""Loops that must be rewritten: boundaries without the first one or without the last, as people write them.

The first document has a number of its own where the others read their neighbour's, or the last one has; numbers are put
in front of a list or behind it; a document begins behind the last slot of the one before.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


def ends_of(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, cu[1:]


def starts_of(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x[: int(cu[-1])], cu[:-1]


# === A number of its own for the first document, or the last =================================================


@program("f[T,3] cu", tail=False, wrap=ends_of, graphs=3)
def nothing_before_the_first(x: Tensor, ends: Tensor) -> Tensor:
    parts = []
    for i in range(ends.shape[0]):
        start = 0 if i == 0 else ends[i - 1]
        parts.append(x[start : ends[i]].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False, lead_empty=True, min_len=1, wrap=ends_of, graphs=3)
def pooled_by_offsets(x: Tensor, offset: Tensor) -> Tensor:
    """As point clouds are packed."""
    pooled = []
    for i in range(offset.shape[0]):
        if i == 0:
            start, end, count = 0, offset[0], offset[0]
        else:
            start, end, count = offset[i - 1], offset[i], offset[i] - offset[i - 1]
        pooled.append(x[start:end].sum(0, True) / count)
    return torch.cat(pooled, 0)


@program("f[T,3] cu", tail=False, exact=False, wrap=ends_of, graphs=3)
def nothing_before_the_first_of_a_list(x: Tensor, ends: Tensor) -> Tensor:
    numbers, parts = ends.tolist(), []
    for i, end in enumerate(numbers):
        start = numbers[i - 1] if i > 0 else 0
        parts.append(x[start:end].softmax(0))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def set_before_the_branch(x: Tensor, cu: Tensor) -> Tensor:
    ends, out = cu[1:], torch.zeros_like(x)
    for i in range(ends.numel()):
        start = 0
        if i:
            start = int(ends[i - 1].item())
        out[start : int(ends[i])] = x[start : int(ends[i])].flip(0)
    return out


@program("f[T,3] cu", tail=False)
def asked_in_a_function(x: Tensor, cu: Tensor) -> Tensor:
    ends = cu[1:]

    def bounds(i: int) -> slice:
        return slice(0 if i == 0 else ends[i - 1].item(), ends[i].item())

    return torch.cat([x[bounds(i)].cumsum(0) for i in range(len(ends))])


@program("f[T,3] cu", tail=False, depends=False)
def counted_by_a_while(x: Tensor, cu: Tensor) -> Tensor:
    ends, parts, i = cu[1:], [], 0
    while i < len(ends):
        start = ends[i - 1] if i != 0 else 0
        parts.append(x[start : ends[i]] * 2)
        i += 1
    return torch.cat(parts)


@program("f[T,3] cu", tail=False, wrap=starts_of, graphs=3)
def the_row_s_end_behind_the_last(x: Tensor, starts: Tensor) -> Tensor:
    parts = []
    for i in range(len(starts)):
        end = starts[i + 1] if i + 1 < len(starts) else x.shape[0]
        parts.append(x[starts[i] : end].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def the_row_s_end_behind_the_last_of_a_list(x: Tensor, cu: Tensor) -> Tensor:
    starts, parts = cu[:-1].tolist(), []
    for i, start in enumerate(starts):
        if i == len(starts) - 1:
            end = len(x)
        else:
            end = starts[i + 1]
        parts.append(x[start:end].flip(0))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def a_given_end_behind_the_last(x: Tensor, cu: Tensor) -> Tensor:
    starts, total, parts = cu[:-1], cu[-1], []
    for i in range(starts.numel()):
        end = total if i == starts.numel() - 1 else starts[i + 1]
        parts.append(x[starts[i] : end].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def lengths_by_the_next_start(x: Tensor, cu: Tensor) -> Tensor:
    starts, lengths = cu[:-1].tolist(), []
    for i in range(len(starts)):
        following = starts[i + 1] if i + 1 < len(starts) else x.size(0)
        lengths.append(following - starts[i])
    return torch.cat([part.cumsum(0) for part in x.split(lengths)])


def a_row_of_positions(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, torch.cat([torch.arange(n) for n in cu.diff().tolist()])


@program("f[T,3] cu", tail=False, min_len=1, wrap=a_row_of_positions)
def where_positions_begin_anew(x: Tensor, position_ids: Tensor) -> Tensor:
    starts, parts = (position_ids == 0).nonzero().flatten(), []
    for i in range(len(starts)):
        end = starts[i + 1] if i + 1 < len(starts) else x.shape[0]
        parts.append(x[starts[i] : end].cumsum(0))
    return torch.cat(parts)


# === Numbers that are put in front of a list, or behind it ===================================================


@program("f[T,3] cu", tail=False, wrap=ends_of, graphs=3)
def zero_in_front_of_all_but_the_last(x: Tensor, ends: Tensor) -> Tensor:
    numbers = ends.tolist()
    return torch.cat([x[s:e].cumsum(0) for s, e in zip([0] + numbers[:-1], numbers)])


@program("f[T,3] cu", tail=False, wrap=starts_of, graphs=3)
def the_row_s_end_behind_all_but_the_first(x: Tensor, starts: Tensor) -> Tensor:
    numbers = starts.tolist()
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(numbers, numbers[1:] + [x.shape[0]])])


@program("f[T,3] cu", tail=False)
def written_out_with_a_star(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [*cu[:-1].tolist(), x.shape[0]]
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(bounds, bounds[1:])])


@program("f[T,3] cu", tail=False)
def appended_behind(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu[:-1].tolist()
    bounds.append(x.shape[0])
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T,3] cu", tail=False)
def inserted_in_front(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu[1:].tolist()
    bounds.insert(0, 0)
    parts = []
    for i in range(len(bounds) - 1):
        parts.append(x[bounds[i] : bounds[i + 1]].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def added_in_place(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu[:-1].tolist()
    alias = bounds
    bounds += [len(x)]
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(alias[:-1], alias[1:])])


@program("f[T,3] cu", tail=False, depends=False)
def extended_behind_a_slice(x: Tensor, cu: Tensor) -> Tensor:
    """The slice was made before, and has no more entries."""
    ends = cu[:-1].tolist()
    starts = ends[:]
    ends.extend([x.shape[0]])
    return torch.cat([x[s:e] * 2 for s, e in zip(starts, ends[1:])])


@program("f[T,3] cu", tail=False, min_len=1, wrap=a_row_of_positions)
def places_with_the_row_s_end(x: Tensor, position_ids: Tensor) -> Tensor:
    bounds = (position_ids == 0).nonzero(as_tuple=True)[0].tolist() + [x.shape[0]]
    return torch.cat([x[s:e].cumsum(0) for s, e in zip(bounds[:-1], bounds[1:])])


# === Behind the last slot of the document before =============================================================


@program("f[T,3] cu", tail=False, min_len=1)
def behind_the_last_slot(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for last in (cu[1:] - 1).tolist():
        parts.append(x[start : last + 1].cumsum(0))
        start = last + 1
    return torch.cat(parts)


def a_row_with_ends(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    ends = torch.zeros(x.shape[0], dtype=torch.bool)
    ends[cu[1:].long() - 1] = True
    return x, ends


@program("f[T,3] cu", tail=False, min_len=1, wrap=a_row_with_ends)
def cut_behind_every_end_of_text(x: Tensor, ends: Tensor) -> Tensor:
    parts, start = [], 0
    for at in ends.nonzero().squeeze(-1).tolist():
        parts.append(x[start : at + 1] - x[start : at + 1].mean(0))
        start = at + 1
    return torch.cat(parts)


@program("f[T,3] cu", tail=False, min_len=1)
def behind_the_last_slot_as_a_tensor(x: Tensor, cu: Tensor) -> Tensor:
    lasts, parts, start = cu[1:] - 1, [], 0
    for i in range(len(lasts)):
        stop = lasts[i] + 1
        parts.append(x[start:stop].cumsum(0))
        start = stop
    return torch.cat(parts)
