"""Loops that must be rewritten: masks of squares on the diagonal (`passes.document_loops.blocks`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T,4] cu", tail=False, exact=False)
def attention_with_a_mask(x: Tensor, cu: Tensor) -> Tensor:
    """Vision towers of transformers, before 4.53."""
    total = x.shape[0]
    mask = torch.zeros([1, total, total], device=x.device, dtype=torch.bool)
    for i in range(1, len(cu)):
        mask[..., cu[i - 1] : cu[i], cu[i - 1] : cu[i]] = True
    q = x.unsqueeze(0)
    return F.scaled_dot_product_attention(q, q * 2, q, mask).squeeze(0)


@program("f[T,4] cu")
def bias_of_minus_infinity(x: Tensor, cu: Tensor) -> Tensor:
    bias = torch.full([x.shape[0], x.shape[0]], torch.finfo(x.dtype).min)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        bias[s:e, s:e] = 0
    return bias + x.sum() * 0


@program("f[T] cu")
def distances_within_documents(x: Tensor, cu: Tensor) -> Tensor:
    pairs = x[:, None] - x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pairs[s:e, s:e] = 5
    return pairs


@program("f[T] f[T] cu")
def in_one_of_several_squares(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = (x[:, None] * y[None, :]).repeat(3, 1, 1)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[1, s:e, s:e] = 0.5
    return out
