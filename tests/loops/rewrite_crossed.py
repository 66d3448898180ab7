"""Attention between documents and something else: slots of another row, queries or keys that each document has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def longer(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    """The documents of the second row have a slot more each."""
    return x, y, cu, cu + torch.arange(cu.numel(), dtype=cu.dtype)


def by_lengths(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    return x, y, cu.diff(), cu.diff() + 1


TWO = {"exact": False, "wrap": longer}


@program("d[T,2,4] d[T+N,2,4] cu", **TWO)
def text_in_images(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        q = x[cu[i] : cu[i + 1]].transpose(0, 1)
        k = text[cu_text[i] : cu_text[i + 1]].transpose(0, 1)
        out[cu[i] : cu[i + 1]] = F.scaled_dot_product_attention(q, k, k * 0.5).transpose(0, 1)
    return out


@program("d[T,2,4] d[T+N,2,4] cu", tail=False, **TWO)
def text_in_images_that_are_joined(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    out = []
    for s, e, first, last in zip(cu[:-1].tolist(), cu[1:].tolist(), cu_text[:-1].tolist(), cu_text[1:].tolist()):
        q, k = x[s:e].transpose(0, 1)[None], text[first:last].permute(1, 0, 2).unsqueeze(0)
        out.append(F.scaled_dot_product_attention(q, k, k, scale=0.3).squeeze(0).transpose(0, 1))
    return torch.cat(out)


@program("d[T,2,4] d[T+N,2,4] cu", tail=False, exact=False, wrap=by_lengths, graphs=3, depends=False)
def two_splits(x: Tensor, text: Tensor, lengths: Tensor, of_text: Tensor) -> Tensor:
    q, k = (row.transpose(0, 1)[None] for row in (x, text))
    parts = zip(q.split(lengths.tolist(), 2), k.split(of_text.tolist(), 2))
    return torch.cat([F.scaled_dot_product_attention(a, b, b).transpose(1, 2) for a, b in parts], 1)


@program("d[T,2,4] d[T+N,2,4] d[8,8] cu", tail=False, exact=False, wrap=lambda x, y, w, cu: (*longer(x, y, cu), w))
def keys_of_a_matrix(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor, weight: Tensor) -> Tensor:
    out = []
    for i in range(cu.numel() - 1):
        own = F.linear(text[cu_text[i] : cu_text[i + 1]].flatten(1), weight).view(-1, 2, 4).transpose(0, 1)
        q = F.linear(x[cu[i] : cu[i + 1]].flatten(1), weight).view(-1, 2, 4).transpose(0, 1)
        out.append(F.scaled_dot_product_attention(q, own, own).transpose(0, 1).flatten(1))
    return torch.cat(out)


@program("d[T,2,4] d[T+N,2,4] cu", tail=False, **TWO)
def own_slots_then_text(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    out = []
    for i in range(cu.numel() - 1):
        own = x[cu[i] : cu[i + 1]].transpose(0, 1)
        own = own + F.scaled_dot_product_attention(own, own, own)
        k = text[cu_text[i] : cu_text[i + 1], :1].transpose(0, 1)
        out.append(F.scaled_dot_product_attention(own, k, k, enable_gqa=True).transpose(0, 1))
    return torch.cat(out)


@program("d[T,2,4] d[2,3,4] cu", tail=False, exact=False, min_len=1, lead_empty=False)
def resampled_by_shared_queries(x: Tensor, latents: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].transpose(0, 1)
        out.append(F.scaled_dot_product_attention(latents, own, own).transpose(0, 1).flatten(1))
    return torch.stack(out)


@program("d[T,2,4] d[N,2,4] cu", tail=False, exact=False, min_len=1, lead_empty=False, graphs=3)
def pooled_by_a_query_of_its_own(x: Tensor, queries: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        own = x[cu[i] : cu[i + 1]].transpose(0, 1)[None]
        out.append(F.scaled_dot_product_attention(queries[i][None, :, None], own, own)[0, :, 0])
    return torch.stack(out)


@program("d[T,2,4] d[N,2,3,4] cu", tail=False, exact=False, graphs=3)
def captions_of_one_length(x: Tensor, captions: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(len(cu) - 1):
        own, caption = x[cu[i] : cu[i + 1]].transpose(0, 1), captions[i]
        out.append(F.scaled_dot_product_attention(own, caption, caption).transpose(0, 1))
    return torch.cat(out)
