"""Loops that must be rewritten: masks of squares on the diagonal (`passes.document_loops.blocks`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("d[T,4] cu", exact=False)
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


@program("d[T,2,4] cu", tail=False, exact=False)
def several_layers_with_one_mask(x: Tensor, cu: Tensor) -> Tensor:
    total = x.shape[0]
    mask = torch.full([1, total, total], torch.finfo(x.dtype).min, device=x.device, dtype=x.dtype)
    for i in range(1, len(cu)):
        mask[..., cu[i - 1] : cu[i], cu[i - 1] : cu[i]] = 0
    for _ in range(2):
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (x, x * 2, x + 1))
        x = F.scaled_dot_product_attention(q, k, v, mask.unsqueeze(0), dropout_p=0.0).squeeze(0).transpose(0, 1)
    return x


@program("d[2,T,4] cu", exact=False)
def mask_of_triangles(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[1], x.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = torch.tril(torch.ones(e - s, e - s, dtype=torch.bool))
    return F.scaled_dot_product_attention(x, x * 2, x, attn_mask=mask)


@program("d[2,T,4] cu", exact=False)
def squares_and_a_triangle(x: Tensor, cu: Tensor) -> Tensor:
    """Documents by a loop, and what comes later for the whole row."""
    mask = torch.ones(x.shape[1], x.shape[1])
    seen = mask.tril() == 1
    allowed = torch.zeros_like(seen)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        allowed[s:e, s:e] = True
    return F.scaled_dot_product_attention(x, x, x * 2, attn_mask=(allowed & seen)[None], scale=0.3)


@program("d[T] cu")
def numbers_by_distance(x: Tensor, cu: Tensor) -> Tensor:
    """The mask itself is the result."""
    out = x[:, None] * x[None, :]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = torch.arange(e - s)
        out[s:e, s:e] = ((here[:, None] - here[None, :]).abs() <= 2).to(x.dtype)
    return out


@program("d[2,T,4] cu", exact=False)
def slots_of_no_document_see_all(x: Tensor, cu: Tensor) -> Tensor:
    """The lowest number hides, which it does not where it is everywhere. (Nothing is differentiated.)"""
    x = x.detach()
    mask = torch.full([x.shape[1], x.shape[1]], torch.finfo(x.dtype).min, dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = 0
    return F.scaled_dot_product_attention(x, x * 2, x + 1, mask)


@program("f[T] cu", tail=False)
def joined_by_block_diag(x: Tensor, cu: Tensor) -> Tensor:
    """torchtune's masks of packed rows."""
    squares = [torch.tril(torch.ones(n, n, dtype=torch.bool, device=x.device)) for n in (cu[1:] - cu[:-1]).tolist()]
    return torch.block_diag(*squares)


@program("d[1,2,T,4] cu", exact=False)
def viewed_as_attention_leaves_it(x: Tensor, cu: Tensor) -> Tensor:
    """Heads lie one behind the other in memory, and a view says so."""
    mask = torch.zeros(x.shape[2], x.shape[2], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return F.scaled_dot_product_attention(x, x, x * 2, attn_mask=mask).view(-1, 4)


def _lengths_of(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    return x, cu.diff()


@program("f[T,3] cu64", wrap=_lengths_of, depends=False, graphs=3, exact=False, tail=False)
def block_mask_by_ends_and_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    ends = lengths.cumsum(-1)
    starts = ends - lengths
    mask = torch.full((len(x), len(x)), float("-inf"))
    for s, e in zip(starts, ends):
        mask[s:e, s:e] = 0
    return mask


@program("f[T,3] cu64", wrap=_lengths_of, depends=False, graphs=3, exact=False, tail=False)
def block_mask_of_lists_of_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    counts = lengths.tolist()
    ends = torch.tensor(counts).cumsum(-1)
    starts = torch.tensor([0] + counts[:-1]).cumsum(-1)
    mask = torch.full((len(x), len(x)), float("-inf"))
    for s, e in zip(starts, ends):
        mask[s:e, s:e] = 0
    return mask[None, None].expand(2, 1, -1, -1)


@program("f[T,3] cu64", wrap=_lengths_of, depends=False, graphs=3, exact=False, tail=False)
def softmax_by_lists_of_lengths(x: Tensor, lengths: Tensor) -> Tensor:
    counts = lengths.tolist()
    ends, starts = torch.tensor(counts).cumsum(0), torch.tensor([0] + counts[:-1]).cumsum(0)
    return torch.cat([x[s:e].softmax(0) for s, e in zip(starts, ends)])
