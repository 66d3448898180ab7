"""Look-alikes of rows with documents of their own: states from row to row or from document to document, matrices that
change, columns, numbers of rows that are no lengths."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_in_rows import lengths, rows


@leave("f[2,T,3] cu64", wrap=lengths, tail=False, exact=False)
def a_state_from_row_to_row(x: Tensor, n: Tensor) -> Tensor:
    outs, state = [], x.new_zeros(3)
    for row in range(x.shape[0]):
        outs.append(torch.cat([part + state for part in x[row].split(n[row].tolist())]))
        state = outs[-1].sum(0)
    return torch.stack(outs)


@leave(
    "f[2,T,3] cu64", wrap=lengths, tail=False, min_len=1, lead_empty=False, must_refuse=True,
    why="every document begins with what the one before has left",
)  # fmt: skip
def a_state_from_document_to_document_of_rows(x: Tensor, n: Tensor) -> Tensor:
    outs = []
    for row in range(x.shape[0]):
        state, parts = x.new_zeros(3), []
        for part in x[row].split(n[row].tolist()):
            parts.append(part + state)
            state = state * 0.5 + part.sum(0)
        outs.append(torch.cat(parts))
    return torch.stack(outs)


@leave("f[2,T,3] cu64", wrap=lengths, tail=False)
def documents_of_the_other_row(x: Tensor, n: Tensor) -> Tensor:
    outs = []
    for row in range(x.shape[0]):
        outs.append(torch.cat([part.flip(0) for part in x[row].split(n[-1 - row].tolist())]))
    return torch.stack(outs)


@leave("f[2,T,3] cu64", wrap=rows, tail=False)
def boundaries_that_are_cleared(x: Tensor, cu: Tensor) -> Any:
    cu, out = cu.clone(), x.clone()
    for row in range(cu.shape[0]):
        for i in range(cu.shape[1] - 1):
            s, e = cu[row, i].item(), cu[row, i + 1].item()
            out[row, s:e] = x[row, s:e].flip(0)
        cu[row].zero_()
    return out, cu


@leave("f[2,T,3] cu64", wrap=lengths, tail=False)
def lengths_of_the_next_row_change(x: Tensor, n: Tensor) -> Tensor:
    n, outs = n.clone(), []
    for row in range(x.shape[0]):
        outs.append(torch.cat([part.flip(0) for part in x[row].split(n[row].tolist())]))
        n[1] = n[0]
    return torch.stack(outs)


@leave("f[2,T,3] cu64", wrap=lengths, tail=False, lead_empty=False)
def documents_by_columns(x: Tensor, n: Tensor) -> Tensor:
    """The first, the second, ... document of every row."""
    sums = [x[0, 0]]
    for k in range(n.shape[1]):
        for row, length in enumerate(n[:, k].tolist()):
            sums.append(x[row, :length].sum(0))
    return torch.stack(sums)


@leave("f[2,T,3] cu64", wrap=lengths, tail=False)
def numbers_that_are_multiplied(x: Tensor, n: Tensor) -> Any:
    products = []
    for own in n.tolist():
        product = 1
        for number in own:
            product = product * (number % 3 + 1) % 1001
        products.append(product)
    return torch.tensor(products), x.sum()


@leave("f[2,T,3] cu64", wrap=lengths, tail=False, lead_empty=False)
def left_before_the_end_of_a_row(x: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(x.shape[0]):
        start = 0
        for length in n[row].tolist():
            if length > 4:
                break
            out[row, start : start + length] = x[row, start : start + length].flip(0)
            start += length
    return out


@leave("f[T,3] i[T]", tail=False)
def starts_of_which_there_may_be_none(x: Tensor, at: Tensor) -> Tensor:
    """No position is 0: there are no documents, and yet one end."""
    starts = (at == 0).nonzero().flatten()
    ends = torch.cat([starts[1:], starts.new_full((1,), at.shape[0])])
    out = x.clone()
    for s, e in zip(starts.tolist(), ends.tolist()):
        out[s:e] = x[s:e].flip(0)
    return out


@leave("f[T,3] i[T]", tail=False, wrap=lambda x, at: (x, at % 5 * (torch.arange(at.shape[0]) > 0)))
def more_ends_than_starts(x: Tensor, at: Tensor) -> Tensor:
    starts = (at == 0).nonzero().flatten()
    ends = torch.cat([starts[1:], starts.new_full((1,), at.shape[0])])
    out = x.clone()
    for s, e in zip(starts.tolist(), ends.tolist(), strict=True):
        out[s:e] = x[s:e].flip(0)
    return out
