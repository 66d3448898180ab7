"""New memory that is not the document's own, or of which the program sees more than one document's."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", tail=False, must_refuse=True, why="all documents fill one tensor, and each keeps what it found")
def one_memory_for_all(x: Tensor, cu: Tensor) -> Tensor:
    found, out = torch.zeros(3), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found[0] += x[s:e].sum()
        out.append(found.exp())
    return torch.stack(out)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the view shows what was written after it was made")
def seen_through_an_older_view(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = x.new_zeros(2, 3)
        row = made[0]
        made.copy_(x[s:e].sum(0).expand(2, 3))
        out.append(row * 2)
    return torch.stack(out)


@leave("f[T,3] cu", tail=False)
def two_views_written_in_turn(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = x.new_zeros(2, 3)
        row, column = made[0], made[:, 1]
        row += x[s:e].detach().sum(0)
        column *= 2
        column += 1
        out.append(made + row + x[s:e].sum(0))
    return torch.stack(out)


@leave("f[T,3] i[N] cu", tail=False)
def at_a_number_of_the_document(x: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        made = torch.zeros(4)
        made[kinds[i] % 4] = x[cu[i] : cu[i + 1]].sum()
        out.append(made)
    return torch.stack(out)


@leave("f[T,3] cu", tail=False)
def appended_before_it_is_filled(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    first, second = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = torch.zeros(3)
        first.append(made)
        made += x[s:e].sum(0)
        second.append(made.clone())
        made[0] = 3
    return torch.stack(first), torch.stack(second)


@leave("f[T,3] cu", tail=False)
def one_entry_too_many(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = torch.zeros(2, 3)
        made[0:1] = x[s:e].sum(0, keepdim=True)
        made[1] = x[s:e].sum(0, keepdim=True)
        out.append(made)
    return torch.stack(out)


@leave("f[T,3] cu", tail=False)
def a_list_of_numbers(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        made = torch.zeros(4)
        made[[0, 2]] = x[s:e].sum(0)[:2]
        out.append(made)
    return torch.stack(out)


@leave("f[T,3] cu", tail=False)
def no_numbers_of_the_document(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum(0) * torch.tensor([[1.0, e - s, 2.0], [e, s, 0.0]]).sum(0))
    return torch.stack(out)


@leave("f[T,3] cu", tail=False, must_refuse=True, why="the view is of a table that all documents change")
def a_view_of_a_table(x: Tensor, cu: Tensor) -> Tensor:
    out, table = [], torch.arange(6.0).view(2, 3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mine = table.view(3, 2)[0]
        mine *= 0.5
        mine += x[s:e, :2].sum(0).detach()
        out.append(mine + x[s:e, :2].sum(0))
    return torch.stack(out) + table.sum()
