"""Loops that must keep eager's results: a local that nearly counts on by the lengths of documents."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[2,T] cu", must_refuse=True, why="the length before is where the next document starts")
def offset_is_the_last_length(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for n in (cu.diff() // 2).tolist():
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start = n
    return out


@leave("f[2,T] cu", tail=False)
def offset_after_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for n in cu.diff().tolist():
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n
    return out * start


@leave("f[2,T] cu", tail=False)
def offset_and_count(x: Tensor, cu: Tensor) -> Tensor:
    out, start, count = x.clone(), 0, 0
    for n in cu.diff().tolist():
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1) * count
        start += n
        count += 1
    return out


@leave("f[2,T] cu", tail=False)
def offset_of_split_parts(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for part in x.split(cu.diff().tolist(), -1):
        out[:, start : start + part.shape[1]] = part.softmax(-1)
        start += part.shape[1]
    return out


@leave("f[2,T] cu", tail=False, why="every document is put where half of those before it end; the later ones win")
def offset_of_another_length(x: Tensor, cu: Tensor) -> Tensor:
    out, start, at = x.clone(), 0, 0
    for n in cu.diff().tolist():
        out[:, at : at + n] = x[:, start : start + n].roll(1, -1)
        start += n
        at += n // 2
    return out


@leave("f[2,T] cu", tail=False)
def offset_of_changed_lengths(x: Tensor, cu: Tensor) -> Tensor:
    out, start, lengths = x.clone(), 0, cu.diff()
    for i, n in enumerate(lengths.tolist()):
        lengths[i] = 0
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n
    return out + lengths.sum()


@leave("f[2,T] cu", tail=False)
def offset_after_a_skip(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for n in cu.diff().tolist():
        if n < 2:
            continue
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n
    return out


@leave("f[2,T] cu", tail=False)
def offset_before_a_skip(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for n in cu.diff().tolist():
        start += n
        if n < 2:
            continue
        out[:, start - n : start] = x[:, start - n : start].roll(1, -1)
    return out


@leave("f[2,T] cu", tail=False)
def offset_in_a_branch(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for n in cu.diff().tolist():
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        if n >= 2:
            start += n
    return out


@leave("f[2,T] cu", tail=False)
def offset_reset_between_loops(x: Tensor, cu: Tensor) -> Tensor:
    out, start, lengths = x.clone(), 0, cu.diff().tolist()
    for n in lengths:
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n
    start = 0
    for n in lengths:
        out[:, start : start + n] = out[:, start : start + n].flip(-1)
        start += n
    return out


@leave("f[2,T] cu", tail=False)
def offset_goes_on_in_a_second_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, start, lengths = x.clone(), 0, (cu.diff() // 2).tolist()
    for n in lengths:
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n
    for n in lengths:
        out[:, start : start + n] = x[:, start : start + n].flip(-1)
        start += n
    return out


@leave("f[2,T] cu", tail=False)
def offset_in_a_closure(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0

    def step(n: int) -> None:
        nonlocal start
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n

    for n in cu.diff().tolist():
        step(n)
    return out


@leave("f[2,T] cu", tail=False)
def offset_of_reversed_lengths(x: Tensor, cu: Tensor) -> Tensor:
    out, start = x.clone(), 0
    for n in reversed(cu.diff().tolist()):
        out[:, start : start + n] = x[:, start : start + n].roll(1, -1)
        start += n
    return out


# ---------------------------------------------------------------- lists of numbers


@leave("f[2,T] cu", tail=False)
def list_of_numbers_is_summed(x: Tensor, cu: Tensor) -> Tensor:
    halves = [n // 2 for n in cu.diff().tolist()]
    return x[:, : sum(halves)] * len(halves)


@leave("f[2,T] cu", tail=False)
def list_of_some_numbers(x: Tensor, cu: Tensor) -> Tensor:
    lengths = [n for n in cu.diff().tolist() if n > 2]
    out, start = x.clone(), 0
    for n in lengths:
        out[:, start : start + n] = x[:, start : start + n].roll(-1, -1)
        start += n
    return out


@leave("f[2,T] cu", tail=False)
def list_of_other_numbers(x: Tensor, cu: Tensor) -> Tensor:
    lengths = [min(n, 3) for n in cu.diff().tolist()]
    out, start = x.clone(), 0
    for n in lengths:
        out[:, start : start + n] = x[:, start : start + n].roll(-1, -1)
        start += n
    return out


@leave("f[T,3] cu", tail=False)
def list_of_numbers_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    lengths = [n // 2 for n in cu.diff().tolist()]
    lengths.append(x.shape[0] - sum(lengths))
    return torch.cat([part.flip(0) for part in x.split(lengths)])


@leave("f[2,T] cu", tail=False)
def list_of_numbers_and_tensors(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    counts = []
    for s, e in zip(cu.tolist()[:-1], cu.tolist()[1:]):
        parts.append(x[:, s:e].flip(-1))
        counts.append(e - s)
    return torch.cat([torch.cat(parts, -1), x.new_tensor(counts).expand(2, -1)], -1)


# ---------------------------------------------------------------- where the last document ended, nearly


@leave("f[T] cu", tail=False, must_refuse=True, why="the first document would begin behind its start")
def last_end_from_one(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 1
    for end in cu[1:].tolist():
        out.append(x[start:end].sum())
        start = end
    return torch.stack(out)


@leave("f[T] cu", tail=False, must_refuse=True, why="short documents are joined to the next one")
def last_end_of_long_documents(x: Tensor, cu: Tensor) -> Tensor:
    out, start = [], 0
    for end in cu[1:].tolist():
        out.append(x[start:end].sum())
        if end - start > 3:
            start = end
    return torch.stack(out)


@leave("f[T] cu", tail=False, must_refuse=True, why="the end before the last one is where a document begins")
def last_end_but_one(x: Tensor, cu: Tensor) -> Tensor:
    out, start, before = [], 0, 0
    for end in cu[1:].tolist():
        out.append(x[before:end].sum())
        before, start = start, end
    return torch.stack(out)


@leave("f[T] cu", tail=False, must_refuse=True, why="the ends are changed while the loop goes over them")
def last_end_of_ends_that_change(x: Tensor, cu: Tensor) -> Tensor:
    ends = cu[1:].clone()
    out, start = [], 0
    for end in ends:
        out.append(x[start:end].sum())
        start = end
        ends += 0
    return torch.stack(out)


@leave("f[T] cu cu64", must_refuse=True, why="the first document starts where other boundaries do")
def start_at_the_first_of_other_boundaries(x: Tensor, cu: Tensor, other: Tensor) -> Tensor:
    out, start = x.clone(), (other // 2 + 1).tolist()[0]
    for end in cu[1:].tolist():
        out[start:end] = x[start:end] * 2
        start = end
    return out


@leave("f[T] cu", why="the boundaries change after a start was read, which is a number behind the break")
def start_before_boundaries_change(x: Tensor, cu: Tensor) -> Tensor:
    cu, out = cu.clone(), x.clone()
    start = cu[0].item()
    cu[0] = 3
    for end in cu[1:].tolist():
        out[start:end] = x[start:end] * 2
        start = end
    return out


@leave("f[T] cu", must_refuse=True, why="the first document starts at the last boundary")
def start_at_the_last_boundary(x: Tensor, cu: Tensor) -> Tensor:
    bounds, out = cu.tolist(), x.clone()
    start = bounds[-1]
    for end in bounds[1:]:
        out[start:end] = x[start:end] * 2
        start = end
    return out


@leave("f[T,3] cu", tail=False, why="documents without slots are not in the list")
def running_total_without_some(x: Tensor, cu: Tensor) -> Any:
    bounds, total = [0], 0
    for n in cu.diff().tolist():
        if n == 0:
            continue
        total += n
        bounds.append(total)
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the same number for every document")
def one_number_for_each(x: Tensor, cu: Tensor) -> Any:
    ones, out = [], torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ones.append(1)
        out[s:e] = x[s:e].flip(0)
    return out, ones


@leave("f[T,3] cu", tail=False, must_refuse=True, why="all entries of the list are one tensor, which goes on changing")
def tensor_offset_in_a_list_that_changes(x: Tensor, cu: Tensor) -> Any:
    parts, ends, start = [], [], 0
    for n in cu.diff():
        parts.append(x[start : start + n].cumsum(0))
        start += n
        ends.append(start)
    return torch.cat(parts), torch.stack(ends)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the start is the end, which is added to in place")
def tensor_offset_under_two_names(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for n in cu.diff():
        begin = start
        start += n
        parts.append(x[begin:start].cumsum(0))
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="lengths are changed by the loop")
def offset_by_entries_that_change(x: Tensor, cu: Tensor) -> Any:
    lengths, out, start = cu.diff(), torch.zeros_like(x), 0
    for i in range(len(lengths)):
        n = lengths[i].item()
        out[start : start + n] = x[start : start + n].flip(0)
        lengths[i] = 0
        start += n
    return out, lengths


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the offset grows by the next document's length")
def offset_by_the_next_entry(x: Tensor, cu: Tensor) -> Tensor:
    lengths, parts, start = torch.nn.functional.pad(cu.diff(), (0, 1)), [], 0
    for i in range(len(lengths) - 1):
        n = lengths[i].item()
        parts.append(x[start : start + n].cumsum(0))
        start += lengths[i + 1].item()
    return torch.cat(parts)
