"""Loops that must be rewritten: sizes given as tensors of no dimensions (`packpass.capture.counts`), and boundaries of
which nobody knows how many there are before the graph runs (`packpass.capture.watch.watch_data_size`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T] cu", tail=False, depends=False)
def ids_of_documents(x: Tensor, cu: Tensor) -> Tensor:
    lens = cu[1:] - cu[:-1]
    return torch.cat([torch.full((n,), i) for i, n in enumerate(lens)])


@program("f[T] cu", tail=False, depends=False)
def ones_of_a_length(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[s:e] + torch.ones(e - s))
    return torch.cat(parts)


@program("f[T] cu", tail=False)
def expanded_to_a_length(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = x[s:e] - x[s:e].sum().expand(e - s)
    return out


@program("f[T] cu", tail=False, min_len=1, exact=False)
def frames_of_images(x: Tensor, cu: Tensor) -> Tensor:
    """As many documents as the numbers of frames add up to."""
    lens = cu[1:] - cu[:-1]
    frames = torch.repeat_interleave(lens, torch.ones_like(lens))
    inner = F.pad(frames.cumsum(0), (1, 0))
    return torch.cat([x[s:e].softmax(0) for s, e in zip(inner[:-1].tolist(), inner[1:].tolist())])


@program("f[T] cu", tail=False, min_len=1)
def starts_that_are_found(x: Tensor, cu: Tensor) -> Tensor:
    """Boundaries from where a mask is set."""
    starts = torch.zeros(x.shape[0], dtype=torch.int64).index_fill_(0, cu[:-1].long(), 1).nonzero().flatten()
    bounds = torch.cat([starts, torch.tensor([x.shape[0]])])
    out = x.clone()
    for i in range(len(bounds) - 1):
        out[bounds[i] : bounds[i + 1]] = x[bounds[i] : bounds[i + 1]].flip(0)
    return out


@program("f[T] cu", tail=False)
def squares_joined(x: Tensor, cu: Tensor) -> Tensor:
    return torch.block_diag(*[torch.tril(torch.ones(n, n)) for n in cu[1:] - cu[:-1]])


def _windows(lengths: Tensor) -> Tensor:
    """Lengths of the windows of 4 slots that documents have, each one's last as long as what is left."""
    each = torch.ceil(lengths / 4).long()
    windows = torch.full((each.sum(),), 4, dtype=torch.long)
    windows[F.pad(each, (1, 0), value=-1).cumsum(0)[1:]] = lengths.long() % 4
    return torch.where(windows == 0, 4, windows)


@program("f[T,3] cu", tail=False, min_len=1, reads=1, graphs=3)
def windows_padded(x: Tensor, cu: Tensor) -> Tensor:
    """As many windows as there fit into all documents, which numbers alone say."""
    parts = x.split(_windows(cu.diff()).tolist())
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


@program("f[T,3] cu", tail=False, min_len=1, reads=1, graphs=3)
def sums_in_windows(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part.cumsum(0) for part in x.split(_windows(cu.diff()).tolist())])


@program("f[T,3] cu64", tail=False)
def two_parts_of_each_document(x: Tensor, cu: Tensor) -> Tensor:
    """Twice as many lengths as documents."""
    lengths = cu.diff()
    parts = torch.stack([lengths // 2, lengths - lengths // 2], 1).flatten()
    return torch.cat([part.cumsum(0) for part in x.split(parts.tolist())])
