"""Loops that must be rewritten: attention written out per document, one query per document, sums of products."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .harness import program


@program("d[T,4] cu", exact=False)
def one_head(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        q, k, v = x[s:e], x[s:e] * 2, x[s:e] + 1
        scores = q @ k.transpose(-1, -2) / math.sqrt(4)
        out[s:e] = torch.softmax(scores, dim=-1) @ v
    return out


@program("d[T,8] cu", tail=False, exact=False)
def causal_heads(x: Tensor, cu: Tensor) -> Tensor:
    """Reference attention of many a test."""
    q, k, v = (x * n for n in (1, 2, 3))
    q, k, v = (t.view(-1, 2, 4).transpose(0, 1) for t in (q, k, v))
    outs = []
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        scores = torch.matmul(q[:, s:e], k[:, s:e].transpose(-2, -1)) * 0.5
        n = scores.shape[-1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=1)
        weights = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1, dtype=torch.float64).to(x.dtype)
        outs.append(weights @ v[:, s:e])
    return torch.cat(outs, dim=1)


@program("d[T,2,4] cu", exact=False)
def by_einsum(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out.zero_()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        q, k, v = x[s:e] * 0.5, x[s:e], x[s:e] - 1
        scores = torch.einsum("qhd,khd->hqk", q, k)
        here = torch.arange(e - s, device=x.device)
        scores = torch.where(here[:, None] >= here[None, :], scores, torch.finfo(x.dtype).min)
        out[s:e] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
    return out


@program("d[1,T,4,4] d[1,T,2,4] cu", tail=False, exact=False)
def groups_of_heads(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    """Grouped queries, as flash-linear-attention writes them."""
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        n = e - s
        q = x[:, s:e].reshape(1, n, 2, 2, 4)
        scores = torch.einsum("bqhgd,bkhd->bhgqk", q, y[:, s:e]) * 0.5
        rows = torch.arange(n)[None, :, None]
        columns = torch.arange(n)[None, None, :]
        scores = scores.masked_fill((columns > rows)[:, None, None], float("-inf"))
        found = torch.einsum("bhgqk,bkhd->bqhgd", F.softmax(scores, dim=-1), y[:, s:e] * 2)
        outs.append(found.reshape(1, n, 4, 4))
    return torch.cat(outs, dim=1)


@program("d[T,2,4] cu", exact=False)
def mask_that_is_added(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(cu.shape[0] - 1):
        part = x[cu[i] : cu[i + 1]].transpose(0, 1)
        n = part.size(1)
        scores = part @ part.mT * 0.5
        scores += torch.full((n, n), float("-inf")).triu_(1)
        out[cu[i] : cu[i + 1]] = (scores.softmax(-1) @ part).transpose(0, 1)
    return out


@program("d[T,2,4] d[T,2] cu", exact=False)
def gates_of_both_slots(x: Tensor, g: Tensor, cu: Tensor) -> Tensor:
    """The forgetting transformer: what was forgotten since the key."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part, gone = x[s:e], g[s:e].cumsum(0).transpose(0, 1)
        scores = torch.einsum("ihd,jhd->hij", part, part)
        scores = scores * 0.5 + (gone[..., :, None] - gone[..., None, :])
        mask = torch.ones(e - s, e - s).tril() == 0
        out[s:e] = torch.einsum("hij,jhd->ihd", scores.masked_fill(mask, -1e9).softmax(-1), part)
    return out


@program("d[2,T,4] cu", tail=False, exact=False)
def mask_for_the_fused_call(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[:, s:e]
        mask = torch.tril(torch.ones(e - s, e - s, dtype=torch.bool))
        outs.append(F.scaled_dot_product_attention(part, part * 2, part, attn_mask=mask))
    return torch.cat(outs, 1)


@program("d[T,4] d[T,6] cu", exact=False)
def values_of_another_width(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] @ (x[s:e] * 2).T).softmax(1) @ y[s:e]
    return out


@program("d[1,N,2,4] d[1,T,2,4] cu", min_len=1, tail=False, exact=False, graphs=3)
def one_query_per_document(q: Tensor, x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        scores = torch.einsum("bqhd,bkhd->bhqk", q[:, i : i + 1], x[:, s:e]) * 0.5
        outs.append(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), x[:, s:e]))
    return torch.cat(outs, dim=1)


@program("d[N,4] d[T,4] cu", min_len=1, tail=False, exact=False, graphs=3)
def pooled_by_a_query(q: Tensor, x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        weights = torch.softmax(x[s:e] @ q[i], dim=0)
        out.append(weights @ x[s:e])
    return torch.stack(out)


@program("d[T,4] cu", exact=False)
def causal_with_an_offset(x: Tensor, cu: Tensor) -> Tensor:
    """Every query sees the key behind it, too."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        scores = x[s:e] @ x[s:e].T
        mask = torch.ones(e - s, e - s).triu(2).bool()
        out[s:e] = scores.masked_fill(mask, float("-inf")).softmax(-1) @ x[s:e]
    return out


@program("d[T,4] cu", exact=False)
def the_anticausal_side(x: Tensor, cu: Tensor) -> Tensor:
    """Upside down: every query sees itself and what follows."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask = torch.ones(e - s, e - s).tril(-1).bool()
        out[s:e] = (x[s:e] @ x[s:e].T).masked_fill(mask, float("-inf")).softmax(-1) @ x[s:e]
    return out


@program("d[T,4] cu", exact=False)
def keys_first(x: Tensor, cu: Tensor) -> Tensor:
    """Scores with keys in rows, masked as such: causal for who reads columns."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        scores = (x[s:e] * 2) @ x[s:e].T
        hidden = torch.ones(e - s, e - s).tril(-1).bool()
        weights = scores.masked_fill(hidden, float("-inf")).softmax(0)
        out[s:e] = weights.T @ (x[s:e] + 1)
    return out


@program("d[T,4] cu", exact=False)
def a_window_of_keys(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = torch.arange(e - s)
        far = (here[:, None] - here[None, :]).abs() > 2
        out[s:e] = (x[s:e] @ x[s:e].T).masked_fill(far, float("-inf")).softmax(-1) @ x[s:e]
    return out


@program("d[3,T,4] cu", exact=False, min_len=1)
def fused_call_with_a_window(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        band = torch.ones(e - s, e - s, dtype=torch.bool).tril().triu(-2)
        out[:, s:e] = F.scaled_dot_product_attention(x[:, s:e], x[:, s:e], x[:, s:e], attn_mask=band)
    return out


@program("d[2,T,4] cu", exact=False)
def mask_by_arithmetic(x: Tensor, cu: Tensor) -> Tensor:
    """One less than a triangle, times a number that hides; the weights go through a dropout that drops nothing."""
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[:, s:e]
        seen = torch.ones(1, e - s, e - s, dtype=x.dtype).tril()
        scores = torch.bmm(part, part.transpose(1, 2)) * 0.5 + (1.0 - seen) * -1e9
        weights = F.dropout(F.softmax(scores, dim=-1), p=0.0, training=True)
        out[:, s:e] = torch.bmm(weights, part)
    return out


# ---------------------------------------------------------------- torch's own modules


@program("d[T,8] cu", tail=False, exact=False, min_len=1)
class MultiheadAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2).double()

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            d = x[s:e]
            out.append(self.attention(d, d, 2 * d, need_weights=False)[0])
        return torch.cat(out)


@program("d[T,8] cu", tail=False, exact=False, min_len=1)
class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        return torch.cat([self.layer(x[s:e].unsqueeze(0)).squeeze(0) for s, e in zip(cu[:-1], cu[1:])])


@program("d[T,8] cu", tail=False, exact=False, min_len=1)
class CausalAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True).double()

    def forward(self, x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            d, mask = x[s:e][None], nn.Transformer.generate_square_subsequent_mask(e - s, dtype=x.dtype)
            out.append(self.attention(d, d, d, attn_mask=mask, is_causal=True, need_weights=False)[0][0])
        return torch.cat(out)


@program("f[T,4,8] f[T,2,8] f[T,2,8] cu", exact=False, tail=False)
def grouped_heads_in_a_window(q: Tensor, k: Tensor, v: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1], cu[1:]):
        query, key, value = (x[s:e].transpose(0, 1)[None] for x in (q, k, v))
        places = torch.arange(e - s)
        mask = (places[None, :] >= places[:, None] - 2) & (places[None, :] <= places[:, None])
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True, scale=0.5)
        out.append(found[0].transpose(0, 1))
    return torch.cat(out)
