"""Loops beside those of `rewrite_inner`: what numbers of a document cut, where it means something else."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_inner import EVEN, any_numbers, pairs, small_numbers


@leave("f[T,3] i[N] cu", wrap=any_numbers, mutates=True)
def a_part_written_before_it_is_read(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        head = part[: numbers[i]]
        part.mul_(2)
        out.append(head.sum(0))
    return torch.stack([x.new_zeros(3), *out])


@leave("f[T,3] i[N] cu", wrap=any_numbers, mutates=True)
def a_part_written_through(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        head = x[cu[i] : cu[i + 1]][: numbers[i]]
        column = head[:, 0]
        column += 1
        head[:, 1].mul_(2)
    return x


@leave("f[T,3] i[N] cu", wrap=small_numbers, tail=False)
def numbers_that_the_loop_changes(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    numbers, out = numbers.clone(), []
    for i in range(len(cu) - 1):
        numbers[i] = numbers[i] + 1
        out.append(x[cu[i] : cu[i + 1]][: numbers[i]].sum(0))
    return torch.stack(out)


@leave("f[T] i[N] cu", wrap=small_numbers, tail=False)
def lengths_that_the_loop_changes(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    lengths, start, out = (cu[1:] - cu[:-1]).clone(), 0, []
    for i in range(len(lengths)):
        lengths[i] = lengths[i] - 1
        n = lengths[i].item()
        out.append(x[start : start + n].sum())
        start += n
    return torch.stack(out)


@leave("f[T,3] i[N] cu", wrap=any_numbers, tail=False)
def slots_in_steps(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] : cu[i + 1]][numbers[i] :: 2] for i in range(len(cu) - 1)])


@leave("f[T,3] i[N] cu", wrap=small_numbers, tail=False, unfit=True)
def beyond_the_document(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e, n in zip(cu[:-1].tolist(), cu[1:].tolist(), numbers.tolist(), strict=True):
        out.append(x[s : e + n].sum(0))
    return torch.stack(out)


@leave("f[T,3] i[N] cu", wrap=small_numbers, tail=False)
def counted_in_the_row(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    """A number of the row, and not of the document, is what is left out."""
    out = []
    for s, e, n in zip(cu[:-1].tolist(), cu[1:].tolist(), numbers.tolist(), strict=True):
        out.append(x[max(s - n, 0) : e].sum(0))
    return torch.stack(out)


@leave("f[T] cu", tail=False)
def a_remainder_that_may_be_nothing(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rest = (e - s) % 4
        part = x[s:e][:-rest] if rest else x[s:e]
        out.append(part.sum())
    return torch.stack(out)


@leave("f[T,3] cu", wrap=pairs, tail=False, shapes=EVEN)
def neighbours_of_every_second(x: Tensor, cu: Tensor) -> Tensor:
    """Three documents of four: what is behind the pair is another document's."""
    out = []
    for i in range(0, len(cu) - 3, 2):
        out.append(x[cu[i] : cu[i + 1]].sum(0) + x[cu[i + 2] : cu[i + 3]].sum(0) * 2)
    return torch.stack([x.new_zeros(3), *out])


@leave("f[T] cu", tail=False)
def cut_where_there_is_nothing_to_cut(x: Tensor, cu: Tensor) -> Tensor:
    """Without the branch's number, ``part[:-0]`` is nothing at all."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, over = x[s:e], e - s - 3
        if over >= 0:
            part = part[:-over]
        out.append(part)
    return torch.cat(out)


@leave("f[T] cu", tail=False)
def cut_by_another_number(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, over = x[s:e], e - s - 3
        if over > 0:
            part = part[over + 1 :]
        out.append(part)
    return torch.cat(out)


@leave("f[T] i[N] cu", wrap=any_numbers, tail=False)
def cut_by_a_number_that_may_be_negative(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e, n in zip(cu[:-1].tolist(), cu[1:].tolist(), numbers.tolist(), strict=True):
        part = x[s:e]
        if n != 0:
            part = part[n:]
        out.append(part)
    return torch.cat(out)


@leave("f[T,5] i[N] cu", wrap=small_numbers, tail=False, min_len=3, exact=False)
def a_loss_of_as_many(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    """Scores of one slot more than there are classes wanted, but for documents that say nothing: eager raises."""
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        scores = x[cu[i] : cu[i + 1]]
        wanted = (scores[:, 0] * 8).long().remainder(5)
        n = numbers[i] * 0 + 1
        total = total + torch.nn.functional.cross_entropy(scores[n:], wanted[:-n], reduction="sum")
    return total


@leave("f[T,3] cu", tail=False, min_len=1)
def as_long_as_one_slot_and_others(x: Tensor, cu: Tensor) -> Tensor:
    """Torch takes the size of one slot for that of what it and all others make."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        made = part[:1] * part
        out.append(made.sum() + len(made))
    return torch.stack(out)


@leave("f[T,3] i[N] cu", wrap=small_numbers, tail=False, min_len=3)
def as_long_as_nobody_looks(x: Tensor, numbers: Tensor, cu: Tensor) -> Tensor:
    lengths = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        made = part[:1] * part[numbers[i] :]
        lengths.append(made.shape[0])
    return torch.tensor(lengths)
