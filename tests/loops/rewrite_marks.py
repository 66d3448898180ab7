"""Loops that must be rewritten: documents in each row of a batch, found by marks or masks, a loop within the loop."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("i[2,T] f[2,T]", graphs=3)
def rows_cut_at_their_marks(tokens: Tensor, x: Tensor) -> list[Tensor]:
    out = []
    for b in range(tokens.shape[0]):
        places = torch.arange(tokens.shape[1])[tokens[b] % 4 == 0]
        start, parts = 0, [x[b, :0]]
        for j in range(places.shape[0]):
            end = places[j]
            parts.append(x[b, start:end].flip(0))
            start = end
        out.append(torch.cat(parts))
    return out


@program("i[2,T] f[2,T]", exact=False, graphs=3)
def lengths_that_are_not_0(numbers: Tensor, x: Tensor) -> Tensor:
    """Each row has lengths of its own, one behind the other."""
    numbers, total = (numbers % 3).clamp(max=1), x.new_zeros(())
    for b in range(numbers.shape[0]):
        start, kept = 0, numbers[b, numbers[b] > 0]
        for j in range(kept.numel()):
            n = kept[j]
            total = total + x[b, start : start + n].sum()
            start = start + n
    return total


@program("i[2,T]", graphs=3, reads=2)
def numbers_of_documents_in_rows(tokens: Tensor) -> Tensor:
    out = []
    for b in range(tokens.shape[0]):
        start, ids = 0, torch.zeros_like(tokens[b])
        for k, end in enumerate((tokens[b] % 8 == 0).nonzero().flatten().tolist()):
            ids[start : end + 1] = k
            start = end + 1
        ids[start:] = -1
        out.append(ids)
    return torch.stack(out)


@program("i[2,T]", graphs=3)
def masks_of_rows_with_marks(tokens: Tensor) -> Tensor:
    out = []
    for row in tokens:
        ends = torch.where(row % 8 == 0)[0] + 1
        cu = torch.cat([ends.new_zeros(1), ends, ends.new_tensor([row.numel()])])
        mask = torch.zeros(row.numel(), row.numel(), dtype=torch.bool)
        for i in range(len(cu) - 1):
            mask[cu[i] : cu[i + 1], cu[i] : cu[i + 1]] = True
        out.append(mask)
    return torch.stack(out)
