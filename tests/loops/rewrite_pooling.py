"""Loops that must be rewritten: one slot of every row of a padded batch, and batches of one row.

The third of the counted sizes has one document: that a loop over it is captured, and no frame is given up, shows in the
number of graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[N,T,2] cu", tail=False)
def last_tokens(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([h[i, n - 1] for i, n in enumerate(cu.diff().tolist())])


@program("f[N,T,2] cu", tail=False)
def last_tokens_of_rows(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([row[n - 1].tanh() for row, n in zip(h, cu.diff())])


@program("f[N,T,2] cu", tail=False)
def last_tokens_by_entries(h: Tensor, cu: Tensor) -> Tensor:
    lengths, parts = cu.diff(), []
    for i in range(h.shape[0]):
        parts.append(h[i, lengths[i] - 1])
    return torch.stack(parts)


@program("f[N,2,T,3] cu", tail=False)
def last_tokens_behind_heads(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([h[i, :, n - 1] * n for i, n in enumerate(cu.diff().tolist())])


@program("f[2,N,T] cu", tail=False, graphs=3)
def rows_in_the_second_dimension(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([h[:, i, n - 1] for i, n in enumerate(cu.diff().tolist())])


@program("f[N,T] cu i[N,T]", exact=False)
def scores_of_last_tokens(logp: Tensor, cu: Tensor, ids: Tensor) -> Tensor:
    total = logp.new_zeros(())
    lengths = cu.diff()
    for i in range(len(lengths)):
        total = total + logp[i, lengths[i] - 1] * ids[i, lengths[i] - 1]
    return total


@program("f[N,T,2] cu f[T,2]", exact=False, tail=False, graphs=3)
def last_token_of_a_row_and_a_document(h: Tensor, cu: Tensor, x: Tensor) -> Tensor:
    parts = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        parts.append(h[i, e - s - 1] + x[s:e].sum(0))
    return torch.stack(parts)


@program("f[N,T+3] cu", tail=False, exact=False)
def windows_of_rows(logp: Tensor, cu: Tensor) -> Tensor:
    starts = cu.diff() // 2
    ends = cu.diff() + 2
    return torch.stack([logp[i, s:e].sum() for i, (s, e) in enumerate(zip(starts.tolist(), ends.tolist()))])


@program("f[N,T+3] cu", tail=False, exact=False)
def windows_of_rows_by_entries(logp: Tensor, cu: Tensor) -> Tensor:
    starts, ends, parts = cu.diff() // 2, cu.diff() + 2, []
    for i in range(logp.size(0)):
        parts.append(logp[i][starts[i] : ends[i]].sum())
    return torch.stack(parts)


@program("f[N,T,2] cu", tail=False, exact=False, min_len=1, lead_empty=False)
def first_and_mean_of_rows(h: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([torch.cat([row[0], row[:n].mean(0)]) for row, n in zip(h, cu.diff().tolist())])
