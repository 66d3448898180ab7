"""Loops that must keep eager's results where one slot, or a few, of a document stand beside all of them, and where what
is taken from an end reaches beyond the document; what is rewritten is in `rewrite_edges`."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", min_len=1)
def backwards_beyond_the_document(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[torch.arange(e - 1, s - 2, -1).clamp(min=0)] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([x[:0], *parts])
