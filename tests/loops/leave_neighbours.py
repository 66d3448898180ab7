"""Loops beside those of `rewrite_neighbours` that mean something else, or nothing that can be proven."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_neighbours import a_row_of_positions, a_row_with_ends, ends_of, starts_of


@leave("f[T,3] cu", tail=False, wrap=ends_of, graphs=3)
def begins_at_the_second_slot(x: Tensor, ends: Tensor) -> Tensor:
    """A first document that begins elsewhere is one all the same."""
    parts = []
    for i in range(len(ends)):
        start = 1 if i == 0 else ends[i - 1]
        parts.append(x[start : ends[i]] * 2)
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, refusal=True)
def from_two_documents_before(x: Tensor, cu: Tensor) -> Tensor:
    """Each goes over two documents, the first over one."""
    parts = []
    for i in range(len(cu) - 1):
        start = 0 if i == 0 else cu[i - 1]
        parts.append(x[start : cu[i + 1]].cumsum(0))
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, wrap=ends_of, refusal=True)
def starts_that_are_returned(x: Tensor, ends: Tensor) -> tuple[Tensor, list[Any]]:
    """The first is a number, and the others are tensors."""
    parts, starts = [], []
    for i in range(len(ends)):
        start = 0 if i == 0 else ends[i - 1]
        starts.append(start)
        parts.append(x[start : ends[i]].cumsum(0))
    return torch.cat(parts), starts


@leave("f[T,3] cu", tail=False, wrap=ends_of, refusal=True)
def sums_of_starts_that_are_returned(x: Tensor, ends: Tensor) -> tuple[Tensor, list[Any]]:
    parts, starts = [], []
    for i in range(len(ends)):
        start = 0 if i == 0 else ends[i - 1]
        parts.append(x[start : ends[i]].cumsum(0))
        starts.append(start + 1)
    return torch.cat(parts), starts


@leave("f[T,3] cu", tail=False, wrap=ends_of, refusal=True)
def ends_that_are_written(x: Tensor, ends: Tensor) -> Tensor:
    """The next document reads what this one has written."""
    ends, parts = ends.clone(), []
    for i in range(len(ends)):
        start = 0 if i == 0 else ends[i - 1]
        parts.append(x[start : ends[i]].cumsum(0))
        ends[i] = ends[i] - 1
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, wrap=ends_of, refusal=True)
def starts_that_are_written(x: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """What is added to a start is added to the end of the document before."""
    ends, parts = ends.clone(), []
    for i in range(len(ends)):
        start = torch.zeros((), dtype=ends.dtype) if i == 0 else ends[i - 1]
        parts.append(x[start : ends[i]].cumsum(0))
        start += 1
    return torch.cat(parts), ends


@leave("f[T,3] cu", tail=False, refusal=True)
def kept_from_the_one_before(x: Tensor, cu: Tensor) -> Tensor:
    """Only the first document sets it in the branch; the others have what the one before has left."""
    parts, start = [], None
    for i in range(len(cu) - 1):
        if i == 0:
            start = 0
        parts.append(x[start : cu[i + 1]].cumsum(0))
        start = int(cu[i + 1]) // 2
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def another_body_for_the_first(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if i == 0:
            part = part * 2
        parts.append(part + 1)
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, wrap=ends_of)
def the_last_end_before_the_first(x: Tensor, ends: Tensor) -> Tensor:
    """Without the branch, -1 is the last entry."""
    parts = []
    for i in range(len(ends)):
        start = ends[i - 1]
        parts.append(x[start : ends[i]].cumsum(0))
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def the_second_has_its_own_number(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        start = 0 if i == 1 else cu[i]
        parts.append(x[start : cu[i + 1]].cumsum(0))
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, wrap=starts_of)
def less_than_the_row_behind_the_last(x: Tensor, starts: Tensor) -> Tensor:
    parts = []
    for i in range(len(starts)):
        end = starts[i + 1] if i + 1 < len(starts) else x.shape[0] - 1
        parts.append(x[starts[i] : end] * 2)
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, min_len=1, wrap=a_row_of_positions)
def all_but_the_last_that_may_be_none(x: Tensor, position_ids: Tensor) -> Tensor:
    """One document is none here, and the row is returned: that the list has entries is no fact."""
    starts, parts = (position_ids == 0).nonzero().flatten(), []
    for i in range(len(starts) - 1):
        parts.append(x[starts[i] : starts[i + 1]].cumsum(0))
    return torch.cat(parts) if parts else x


@leave("f[T,3] cu", tail=False, min_len=1, wrap=a_row_with_ends)
def two_slots_behind_every_end(x: Tensor, ends: Tensor) -> Tensor:
    parts, start = [], 0
    for at in ends.nonzero().squeeze(-1).tolist():
        parts.append(x[start : at + 1] * 2)
        start = at + 2
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def zipped_before_it_grows(x: Tensor, cu: Tensor) -> Tensor:
    """What is made of a list later sees what it gets later."""
    bounds = cu[:-1].tolist()
    pairs = zip(bounds, cu[1:].tolist() + [len(x)])
    bounds.append(len(x))
    return torch.cat([x[s:e] * 2 for s, e in pairs])


@leave("f[T,3] cu", tail=False)
def a_copy_that_does_not_grow(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu[:-1].tolist()
    copy = list(bounds)
    bounds.append(len(x))
    return torch.cat([x[:0]] + [x[s:e] * 2 for s, e in zip(copy[:-1], copy[1:])])


@leave("f[T,3] cu", tail=False)
def a_list_that_grows_and_is_returned(x: Tensor, cu: Tensor) -> tuple[Tensor, list[int]]:
    bounds = cu[:-1].tolist()
    bounds.append(len(x))
    return torch.cat([x[s:e] * 2 for s, e in zip(bounds, bounds[1:])]), bounds


@leave("f[T,3] cu", tail=False)
def a_fraction_behind_a_list(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu[:-1].tolist() + [len(x) / 1]
    return torch.cat([x[s : int(e)] * 2 for s, e in zip(bounds, bounds[1:])])


@leave("f[T,3] cu", tail=False)
def inserted_in_the_middle(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    bounds.insert(1, bounds[0])
    return torch.cat([x[s:e] * 2 for s, e in zip(bounds, bounds[1:])])


@leave("f[T,3] cu", tail=False, min_len=1)
def the_last_end_is_moved_by_the_others(x: Tensor, cu: Tensor) -> Tensor:
    starts, total, parts = cu[:-1], cu[-1].clone(), []
    for i in range(starts.numel()):
        if i == starts.numel() - 1:
            end = total
        else:
            end = starts[i + 1]
        parts.append(x[starts[i] : end] * 2)
        total -= 1 - 1
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def of_two_dtypes(x: Tensor, cu: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The last document's end is one of 64 bits."""
    starts, total, parts, lengths = cu[:-1], cu[-1].long(), [], []
    for i in range(starts.numel()):
        end = total if i == starts.numel() - 1 else starts[i + 1]
        parts.append(x[starts[i] : end].cumsum(0))
        lengths.append(end - starts[i])
    return torch.cat(parts), lengths


@leave("f[T,3] cu", tail=False)
def a_tensor_for_the_first_and_numbers_for_others(x: Tensor, cu: Tensor) -> tuple[Tensor, list[Any]]:
    ends, zero, parts, starts = cu[1:].tolist(), cu[0], [], []
    for i, end in enumerate(ends):
        start = zero if i == 0 else ends[i - 1]
        parts.append(x[start:end] * 2)
        starts.append(start + 0)
    return torch.cat(parts), starts


@leave("f[T,3] cu", tail=False)
def ends_that_the_body_makes(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        ends = cu[1:]
        start = 0 if i == 0 else ends[i - 1]
        parts.append(x[start : ends[i]].cumsum(0))
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, min_len=1)
def behind_the_last_slot_from_elsewhere(x: Tensor, cu: Tensor) -> Tensor:
    """The first begins where the vector does, and not behind nothing."""
    lasts, parts, start = cu - 1, [], cu[0]
    for i in range(len(lasts) - 1):
        parts.append(x[start : lasts[i + 1] + 1] * 2)
        start = lasts[i + 1] + 1
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def one_of_a_list_that_the_loop_fills(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for i in range(len(cu) - 1):
        before = 0 if i == 0 else parts[i - 1]
        parts.append(x[cu[i] : cu[i + 1]].sum(0) + before)
    return torch.stack(parts)
