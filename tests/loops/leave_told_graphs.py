"""Loops over as many documents as a given number says, that must keep eager's results."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave
from .rewrite_told_graphs import _told


def _out_of_order(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, int]:
    """Some slots belong to none of the documents, and the others are in no order."""
    row, ids, number = _told(x, cu)
    return row, (ids * 7 + torch.arange(len(ids)) * 5) % (number + 2) - 1, number


@leave("f[T,2] cu", wrap=_told, exact=False, must_refuse=True, why="carries a value from one document to the next")
def carried_through_as_many_as_told(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    held, outs = x.new_zeros(2), [x.new_zeros(2)]
    for i in range(num_graphs):
        rows = x[ids == i]
        outs.append((rows - held).sum(0))
        held = rows.sum(0).tanh() + held * 0.5
    return torch.stack(outs)


@leave("f[T,2] cu", wrap=_told, exact=False, must_refuse=True, why="singular values of a document")
def singular_values_of_as_many_as_told(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    outs = [x.new_zeros(())]
    for i in range(num_graphs):
        rows = x[ids == i]
        outs.append(torch.linalg.svdvals(rows).sum())
    return torch.stack(outs)


@leave("f[T,2] cu", wrap=_out_of_order, exact=False)
def told_and_out_of_order(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    return torch.stack([x.new_zeros(2), *(x[ids == i].sum(0) for i in range(num_graphs))])


@leave("f[T,2] cu", wrap=_out_of_order, exact=False)
def written_out_of_order(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    out = x.clone()
    for i in range(num_graphs):
        here = (ids == i).nonzero().squeeze(-1)
        out[here] = x[here] * 2 + i
    return out


@leave("f[T,6] cu", wrap=_told, exact=False)
def number_that_is_a_width_as_well(x: Tensor, ids: Tensor, heads: int) -> Tensor:
    outs = [x.new_zeros(6)]
    for i in range(heads):
        outs.append(x[ids == i].sum(0) * heads / (i + 1))
    return torch.stack(outs).reshape(heads + 1, -1)
