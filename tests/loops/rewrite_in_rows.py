"""Rows of a batch, each with documents of its own: the loop over the rows runs as it is written, and those over the
documents of a row are rewritten. Also documents whose number is data: the starts that positions show, lengths without
those that stand for none."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def rows(x: Tensor, cu: Tensor) -> Any:
    """Boundaries ``[2, N + 1]``; the documents of the second row are those of the first in the opposite order."""
    other = torch.cat([cu[:1], cu.diff().flip(0)]).cumsum(0)
    return x, torch.stack([cu, other])


def lengths(x: Tensor, cu: Tensor) -> Any:
    x, both = rows(x, cu)
    return x, both.diff(dim=1)


def padded(x: Tensor, cu: Tensor) -> Any:
    """Lengths ``[2, N + 2]``, in which zeros stand for no document."""
    x, both = lengths(x, cu)
    return x, F.pad(both, (1, 1))


ROWS = {"tail": False, "graphs": 3}


@program("f[2,T,3] cu64", wrap=lengths, **ROWS)
def rows_by_offsets(x: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(n.shape[0]):
        start = 0
        for length in n[row].tolist():
            out[row, start : start + length] = x[row, start : start + length].roll(-1, 0)
            start += length
    return out


@program("f[2,T,3] cu64", wrap=lengths, exact=False, **ROWS)
def rows_beside_lengths(x: Tensor, n: Tensor) -> Tensor:
    outs = []
    for row, own in zip(x, n):
        outs.append(torch.cat([part.softmax(0) for part in row.split(own.tolist())]))
    return torch.stack(outs)


@program("f[2,T,3] cu64", wrap=rows, **ROWS)
def rows_by_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for row in range(x.size(0)):
        parts = []
        for i in range(cu.size(1) - 1):
            s, e = cu[row, i].item(), cu[row, i + 1].item()
            parts.append(x[row, s:e].cumsum(0))
        outs.append(torch.cat(parts))
    return torch.stack(outs)


@program("f[2,T,3] cu64", wrap=lengths, **ROWS)
def rows_of_a_list_of_lists(x: Tensor, n: Tensor) -> Tensor:
    outs = []
    for row, own in zip(x, n.tolist()):
        outs.append(torch.cat([part.flip(0) for part in row.split(own)]))
    return torch.stack(outs)


@program("f[2,T,3] cu64", wrap=rows, **ROWS)
def rows_by_pairs(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for row in range(cu.shape[0]):
        for s, e in itertools.pairwise(cu[row].tolist()):
            out[row, s:e] = x[row, s:e].flip(0)
    return out


@program("f[2,T,3] cu64", wrap=rows, **ROWS)
def rows_by_slices_of_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for row in range(cu.shape[0]):
        for s, e in zip(cu[row, :-1], cu[row, 1:]):
            out[row, s:e] = x[row, s:e].roll(1, 0)
    return out


def one_row(row: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        parts.append(row[cu[i] : cu[i + 1]].cumsum(0))
    return torch.cat(parts)


@program("f[2,T,3] cu64", wrap=rows, where=(one_row,), **ROWS)
def rows_by_a_function(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([one_row(row, own) for row, own in zip(x, cu)])


@program("i[2,T] cu64", wrap=rows, min_len=2, **ROWS)
def labels_of_rows(ids: Tensor, cu: Tensor) -> Tensor:
    labels = torch.full_like(ids, -100)
    for row in range(cu.shape[0]):
        for i in range(cu.shape[1] - 1):
            s, e = cu[row][i], cu[row][i + 1]
            labels[row, s : e - 1] = ids[row, s + 1 : e]
    return labels


@program("f[2,T] cu64", wrap=rows, min_len=1, exact=False, **ROWS)
def loss_over_rows(x: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for row in range(cu.shape[0]):
        for s, e in zip(cu[row, :-1].tolist(), cu[row, 1:].tolist()):
            total = total + x[row, s:e].mean()
            count += 1
    return total / max(count, 1)


@program("f[2,T,3] cu64", wrap=rows, lead_empty=False, **ROWS)
def documents_of_all_rows_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    sums = [x[0, 0]]
    for row in range(cu.shape[0]):
        for s, e in zip(cu[row, :-1].tolist(), cu[row, 1:].tolist()):
            sums.append(x[row, s:e].sum(0))
    return torch.stack(sums)


@program("i[T] cu64", wrap=lambda x, cu: (torch.cat([x, x]), rows(x, cu)[1].diff(dim=1)), reads=1, **ROWS)
def ids_of_a_packed_row(x: Tensor, n: Tensor) -> Tensor:
    """Offsets and numbers go on from row to row."""
    out, start, number = torch.zeros_like(x), 0, 0
    for own in n.tolist():
        for length in own:
            out[start : start + length] = number
            start += length
            number += 1
    return out


@program("f[2,T,3] cu64", wrap=padded, **ROWS)
def rows_with_padded_lengths(x: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for row in range(x.shape[0]):
        start = 0
        for length in n[row].tolist():
            if length == 0:
                continue
            out[row, start : start + length] = x[row, start : start + length].flip(0)
            start += length
    return out


@program("f[2,T,3] cu64", wrap=padded, **ROWS)
def rows_of_lengths_that_count(x: Tensor, n: Tensor) -> Tensor:
    outs = []
    for row in range(x.shape[0]):
        own = n[row]
        own = own[own > 0]
        outs.append(torch.cat([part.flip(0) for part in x[row].split(own.tolist())]))
    return torch.stack(outs)


@program("m[2] cu64", wrap=lengths, **ROWS)
def masks_of_rows(x: Tensor, n: Tensor) -> Tensor:
    masks = []
    for row in range(len(n)):
        blocks = [torch.ones(length, length, dtype=torch.bool).tril() for length in n[row].tolist()]
        masks.append(torch.block_diag(*blocks).sum(0))
    return torch.stack(masks)


# === Documents whose number is data ============================================================================


def positions(x: Tensor, cu: Tensor) -> Any:
    n = cu[1:] - cu[:-1]
    return x, torch.cat([torch.arange(length) for length in [0, *n.tolist()]])


@program("f[T,3] cu64", wrap=positions, tail=False)
def starts_and_ends_of_positions(x: Tensor, at: Tensor) -> Tensor:
    starts = (at == 0).nonzero().flatten()
    ends = torch.cat([starts[1:], starts.new_full((1,), at.shape[0])])
    parts = [x[:1]]
    for s, e in zip(starts.tolist(), ends.tolist()):
        parts.append(x[s:e].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu64", wrap=lambda x, cu: (x, F.pad(cu.diff(), (1, 2))), tail=False)
def lengths_that_count(x: Tensor, n: Tensor) -> Tensor:
    parts = [x[:1]]
    for part in x.split(n[n > 0].tolist()):
        parts.append(part.cumsum(0))
    return torch.cat(parts)
