"""Look-alikes of documents in each row of a batch: what is carried from row to row, marks that are looked for again."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("i[2,T]")
def one_vector_gone_over_twice(tokens: Tensor) -> list[Tensor]:
    """All marks, then all but the last one."""
    places, out = torch.arange(tokens.shape[1])[tokens[0] % 4 == 0], []
    for less in range(2):
        ids, start = torch.zeros_like(tokens[0]), 0
        for j in range(max(places.shape[0] - less, 0)):
            ids[start : places[j]] = j
            start = places[j]
        out.append(ids)
    return out


@leave("i[2,T] f[2,T]")
def start_kept_from_row_to_row(tokens: Tensor, x: Tensor) -> list[Tensor]:
    out, start = [], 0
    for b in range(tokens.shape[0]):
        places = torch.arange(tokens.shape[1])[tokens[b] % 4 == 0]
        parts = [x[b, :0]]
        for j in range(places.shape[0]):
            parts.append(x[b, start : places[j]])
            start = places[j]
        out.append(torch.cat(parts))
    return out


@leave("i[2,T]")
def marks_changed_by_the_loop(tokens: Tensor) -> Tensor:
    tokens = tokens.clone()
    for b in range(tokens.shape[0]):
        start = 0
        for end in (tokens[b] % 8 == 0).nonzero().flatten().tolist():
            tokens[:, start:end] = 8
            start = end
    return tokens


@leave("i[2,T] f[2,T]")
def other_lengths_beside(tokens: Tensor, x: Tensor) -> list[Tensor]:
    """The second row counts on by the lengths of the first one as well."""
    out = []
    before = tokens[0][:0]
    for b in range(tokens.shape[0]):
        kept = (tokens[b] % 3)[tokens[b] % 3 > 0]
        both, start, parts = torch.cat([before, kept]), 0, [x[b, :0]]
        for j in range(both.numel()):
            parts.append(x[b, start : start + both[j]])
            start = start + both[j]
        before = kept
        out.append(torch.cat(parts))
    return out
