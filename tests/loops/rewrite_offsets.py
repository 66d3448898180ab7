"""Loops that must be rewritten: a local counts on by the lengths of documents, lists of numbers made from lengths
(`packpass.capture.offsets`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False)
def offset_and_append(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for length in torch.diff(cu).tolist():
        parts.append(torch.roll(x[start : start + length], -1, 0))
        start += length
    return torch.cat(parts)


@program("f[2,T] cu", tail=False)
def offset_by_its_end(x: Tensor, cu: Tensor) -> Tensor:
    out, begin = x.clone(), 0
    for _, n in enumerate((cu[1:] - cu[:-1]).tolist()):
        end = begin + n
        out[:, begin:end] = x[:, begin:end] - x[:, begin:end].sum(-1, keepdim=True)
        begin = end
    return out


@program("i[T] cu", tail=False)
def offset_added_first(ids: Tensor, cu: Tensor) -> Tensor:
    labels, stop = torch.full_like(ids, -100), 0
    for n in cu.diff().tolist():
        stop = n + stop
        labels[stop - n : stop] = ids[stop - n : stop].roll(1)
    return labels


@program("i[T] cu64", tail=False)
def offset_for_positions(ids: Tensor, cu: Tensor) -> Tensor:
    positions, at = torch.zeros_like(ids), 0
    for n in cu.diff().tolist():
        positions[at : at + n] = torch.arange(n)
        at += n
    return positions


@program("f[2,T] cu", tail=False)
def two_offsets(x: Tensor, cu: Tensor) -> Tensor:
    out, source, target = torch.zeros_like(x), 0, 0
    for n in cu.diff().tolist():
        out[:, target : target + n] = x.narrow(1, source, n).flip(-1)
        source += n
        target += n
    return out


@program("f[2,T] cu", tail=False)
def offset_of_halves(x: Tensor, cu: Tensor) -> Tensor:
    """Halves of the lengths, rounded down: rows of their own, not halves of the boundaries."""
    out, start = x.clone(), 0
    for n in cu.diff().tolist():
        half = n // 2
        out[:, start : start + half] = x[:, start : start + half].roll(-1, -1)
        start += half
    return out


@program("f[T] cu", tail=False)
def offset_from_one(x: Tensor, cu: Tensor) -> Tensor:
    padded, start = torch.nn.functional.pad(x, (1, 0)), 1
    out = padded.clone()
    for n in cu.diff().tolist():
        out[start : start + n] = padded[start : start + n].cumsum(0)
        start += n
    return out


# ---------------------------------------------------------------- lists of numbers


@program("f[T,3] cu", tail=False)
def split_by_a_list_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    rows = torch.cat([x, x])
    parts = rows.split([2 * n for n in cu.diff().tolist()])
    return torch.cat([part.flip(0) for part in parts])


@program("f[2,T] cu", tail=False)
def list_of_numbers_looped_over(x: Tensor, cu: Tensor) -> Tensor:
    lengths = []
    for n in cu.diff().tolist():
        lengths.append(n // 2)
    out, start = x.clone(), 0
    for n in lengths:
        out[:, start : start + n] = x[:, start : start + n].roll(-1, -1)
        start += n
    return out


# ---------------------------------------------------------------- where the last document ended


@program("f[T,2] cu", tail=False, reads=1)
def last_end_as_a_number(x: Tensor, cu: Tensor) -> Any:
    out, start = x.clone(), 0
    for end in cu[1:].tolist():
        out[start:end] = x[start:end].cumsum(0)
        start = end
    return out, start


@program("f[T,2] cu", tail=False)
def last_end_as_a_tensor(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for end in cu[1:]:
        out.append(x[start:end].flip(0) * (end - start))
        start = end
    return torch.cat(out)


@program("f[T] cu64", tail=False)
def last_end_by_position(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for i in range(1, len(cu)):
        end = cu[i].item()
        out.append(x[start:end].roll(1, 0))
        start = end
    return torch.cat(out)


@program("f[T] cu", tail=False)
def last_end_of_summed_lengths(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for end in cu.diff().cumsum(0).tolist():
        out.append(x[start:end].sum() + start)
        start = end
    return torch.stack(out)


@program("f[2,T] cu")
def offset_with_gaps(x: Tensor, cu: Tensor) -> Tensor:
    """Documents of half the length, with a slot between them."""
    out, start = x.clone(), 0
    for n in (cu.diff() // 2).tolist():
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n + 1
    return out


@program("f[T] cu")
def start_at_the_first_boundary(x: Tensor, cu: Tensor) -> Tensor:
    bounds, parts = cu.tolist(), [x[:0]]
    start = bounds[0]
    for end in bounds[1:]:
        parts.append(x[start:end].cumsum(0))
        start = end
    return torch.cat(parts)


@program("f[T] cu64")
def start_at_the_first_boundary_as_tensor(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), cu[0]
    for end in cu[1:]:
        out[start:end] = x[start:end].flip(0)
        start = end
    return out


@program("f[T,3] cu", tail=False)
def boundaries_from_a_running_total(x: Tensor, cu: Tensor) -> Any:
    bounds, total = [0], 0
    for n in cu.diff().tolist():
        total += n
        bounds.append(total)
    parts = [x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]
    return torch.cat(parts), torch.tensor(bounds, dtype=torch.int32)


@program("f[T,3] cu", tail=False)
def starts_in_a_list(x: Tensor, cu: Tensor) -> Any:
    starts, at, lengths = [], 0, cu.diff().tolist()
    for n in lengths:
        starts.append(at)
        at += n
    return torch.cat([x[s : s + n].flip(0) for s, n in zip(starts, lengths)]), torch.tensor(starts)


# ---------------------------------------------------------------- by entries of a tensor


@program("f[T,3] cu", tail=False)
def offset_by_entries_that_are_read(x: Tensor, cu: Tensor) -> Tensor:
    lengths, parts, start = cu.diff(), [], 0
    for i in range(len(lengths)):
        n = lengths[i].item()
        parts.append(x[start : start + n].cumsum(0))
        start += n
    return torch.cat(parts)


@program("f[T,3] cu", tail=False, reads=1)
def offset_by_entries_read_by_int(x: Tensor, cu: Tensor) -> Any:
    out, start = torch.zeros_like(x), 0
    for n in cu[1:] - cu[:-1]:
        end = start + int(n)
        out[start:end] = x[start:end].flip(0)
        start = end
    return out, start


@program("f[T,3] cu", tail=False)
def offset_by_entries_themselves(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for n in cu.diff():
        parts.append(x[start : start + n].cumsum(0))
        start += n
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def offset_that_is_a_tensor_and_a_list_of_them(x: Tensor, cu: Tensor) -> Any:
    lengths, parts, ends, start = cu.diff(), [], [], 0
    for i in range(lengths.shape[0]):
        parts.append(x[start : start + lengths[i]].cumsum(0))
        start = start + lengths[i]
        ends.append(start)
    return torch.cat(parts), torch.stack(ends), start


@program("f[T,3] cu", tail=False)
def offset_by_differences_of_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for i in range(len(cu) - 1):
        n = int(cu[i + 1] - cu[i])
        parts.append(x[start : start + n].roll(1, 0))
        start += n
    return torch.cat(parts)


@program("d[T] cu", tail=False, exact=False)
def offset_behind_a_gap(x: Tensor, cu: Tensor) -> Tensor:
    """Documents begin behind the first slot, and lie one slot apart."""
    row, lengths, total, start = torch.nn.functional.pad(x, (1, len(cu))), cu.diff(), x.new_zeros(()), 1
    for i in range(len(lengths)):
        n = lengths[i].item()
        total = total + row[start : start + n].square().sum()
        start += n + 1
    return total


@program("f[T,3] cu", tail=False, unfit=True, reads=1)
def running_total_and_one_more(x: Tensor, cu: Tensor) -> Any:
    bounds, total = [0], 0
    for n in cu.diff().tolist():
        total += n
        bounds.append(total + 1)
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]), bounds[-1]


@program("f[T,3] cu", tail=False, unfit=True)
def running_total_behind_another_number(x: Tensor, cu: Tensor) -> Any:
    bounds, total = [1], 0
    for n in cu.diff().tolist():
        total += n
        bounds.append(total)
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T,3] cu", tail=False, unfit=True)
def running_total_before_it_grows(x: Tensor, cu: Tensor) -> Any:
    bounds, total = [0], 0
    for n in cu.diff().tolist():
        bounds.append(total)
        total += n
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])
