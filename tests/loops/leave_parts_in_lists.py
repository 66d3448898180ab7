"""Look-alikes of parts of documents in lists: of other documents, changed in between, or used as a whole."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_parts_in_lists import spans


@leave("f[T,3] cu", refusal=True, tail=False, why="the first slots of the first document", min_len=1)
def firsts_of_the_first_document(x: Tensor, cu: Tensor) -> Tensor:
    firsts = [x[s:e][:1] for s, e in spans(cu)]
    return torch.cat([torch.cat([x[s:e][1:], firsts[0]]) for s, e in spans(cu)])


# The parts are a list of tensors that the second function is given where the first was left: its own loop over them may
# be rewritten, once two calls had other lengths.
@leave("f[T,3] cu", refusal=True, tail=False, why="the first slots of the document behind it", min_len=1)
def firsts_of_the_next_document(x: Tensor, cu: Tensor) -> Tensor:
    firsts = [x[s:e][:1] for s, e in spans(cu)]
    firsts = firsts[1:] + firsts[:1]
    return torch.cat([torch.cat([x[s:e][1:], first]) for (s, e), first in zip(spans(cu), firsts)])


@leave("f[T,3] cu", must_refuse=True, tail=False, why="the list holds views of a row that changes in between")
def firsts_of_a_row_that_changes(x: Tensor, cu: Tensor) -> Tensor:
    row = x.detach().clone()
    firsts = [row[s:e][:1] for s, e in spans(cu)]
    row *= 2
    return torch.cat([torch.cat([row[s:e][1:], first]) for (s, e), first in zip(spans(cu), firsts)])


@leave("f[T,3] cu", must_refuse=True, tail=False, why="the second loop changes what the first one's list shows")
def firsts_of_a_row_that_the_second_loop_writes(x: Tensor, cu: Tensor) -> Tensor:
    row = x.detach().clone()
    firsts = [row[s:e][:1] for s, e in spans(cu)]
    outs = []
    for (s, e), first in zip(spans(cu), firsts):
        row[s:e] += 1
        outs.append(torch.cat([row[s:e][1:], first]))
    return torch.cat(outs)


@leave("f[T,3] cu", refusal=True, tail=False, why="every document is compared with all that the first loop has left")
def firsts_beside_all_of_them(x: Tensor, cu: Tensor) -> Tensor:
    firsts = [x[s:e][:1] for s, e in spans(cu)]
    most = torch.cat(firsts).amax(0) if firsts else 0
    return torch.cat([torch.cat([x[s:e][1:], first - most]) for (s, e), first in zip(spans(cu), firsts)])


@leave("f[T,3] cu cu", refusal=True, tail=False, why="documents of other boundaries", min_len=1)
def firsts_by_other_boundaries(x: Tensor, cu: Tensor, other: Tensor) -> Tensor:
    firsts = [x[s:e][:1] for s, e in spans(other)]
    return torch.cat([torch.cat([x[s:e][1:], first]) for (s, e), first in zip(spans(cu), firsts)])


@leave("f[T] cu", tail=False, why="what the second loop changes in the list has been read as a whole before")
def sums_that_are_stacked_and_changed(x: Tensor, cu: Tensor) -> Tensor:
    sums = [x[s:e].detach().sum() for s, e in spans(cu)]
    before = torch.stack(sums)
    for total in sums:
        total.mul_(2)
    return torch.cat([before, torch.stack(sums)])


@leave("f[T,3] cu", tail=False, why="what the second loop changes in the list has been read as a whole before")
def parts_that_are_joined_and_changed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e].detach() * 2 for s, e in spans(cu)]
    before = torch.cat(parts)
    outs = []
    for part in parts:
        part.add_(1)
        outs.append(part.flip(0))
    return torch.cat(outs) + before


@leave("f[T,3] cu", tail=False, min_len=1, why="one document's part has been read before the second loop changes it")
def first_part_that_is_read_and_changed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e].detach() * 2 for s, e in spans(cu)]
    before = parts[0].sum(0)
    outs = []
    for part in parts:
        part.add_(1)
        outs.append(part.flip(0))
    return torch.cat(outs) + before


@leave("f[T,3] cu", tail=False, min_len=1, why="one document's part is changed before the second loop reads it")
def first_part_that_is_changed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e].detach() * 2 for s, e in spans(cu)]
    parts[0].zero_()
    return torch.cat([part.flip(0) + part[:1] for part in parts])


@leave("f[T,3] cu", tail=False, min_len=1, why="a view of one document's part is read after the second loop")
def last_part_that_is_seen_and_changed(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[s:e].detach() * 2 for s, e in spans(cu)]
    last = parts[-1].view(-1, 3)[-1]
    copy = last.clone()
    outs = []
    for part in parts:
        part.add_(1)
        outs.append(part.flip(0))
    return torch.cat(outs) + last - 2 * copy
