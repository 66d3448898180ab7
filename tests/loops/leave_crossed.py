"""Attention between documents and something else that stays as it is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave
from .rewrite_crossed import longer

TWO = {"must_refuse": True, "wrap": longer}


@leave("f[T,2,4] f[T+N,2,4] cu", why="torch counts causal attention from the first key, not from the last", **TWO)
def causal_in_another_row(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        q, k = (row[c[i] : c[i + 1]].transpose(0, 1) for row, c in ((x, cu), (text, cu_text)))
        out[cu[i] : cu[i + 1]] = F.scaled_dot_product_attention(q, k, k, is_causal=True).transpose(0, 1)
    return out


@leave("f[T,2,4] f[T+N,2,4] cu", why="what an earlier document has left is a key of a later one", **TWO)
def keys_that_the_loop_writes(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    row = text.detach() * 1
    for i in range(len(cu) - 1):
        q, k = (t[c[i] : c[i + 1]].transpose(0, 1) for t, c in ((x, cu), (row, cu_text)))
        row[cu[i] : cu[i + 1]] = F.scaled_dot_product_attention(q, k, k).transpose(0, 1).detach()
    return row


@leave("f[T,2,4] f[T+N,2,4] cu", why="the keys are changed in place through a view", **TWO)
def keys_changed_in_place(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    row, out = text.detach() * 1, torch.zeros_like(x)
    for i in range(len(cu) - 1):
        q, k = (t[c[i] : c[i + 1]].transpose(0, 1) for t, c in ((x, cu), (row, cu_text)))
        k.mul_(2.0)
        out[cu[i] : cu[i + 1]] = F.scaled_dot_product_attention(q.detach(), k, k).transpose(0, 1)
    return out + row.sum()


@leave("f[T,2,4] f[T+N,2,4] cu", why="the values of one row are weighed by the keys of another", **TWO)
def keys_and_values_of_two_rows(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        q, k = (row[c[i] : c[i + 1]].transpose(0, 1) for row, c in ((x, cu), (text, cu_text)))
        values = text[cu_text[i] + 0 * cu[i] : cu_text[i + 1]].flip(0).transpose(0, 1)
        out[cu[i] : cu[i + 1]] = F.scaled_dot_product_attention(q, k, values).transpose(0, 1)
    return out


@leave("f[T,2,4] f[T+N,2,4] cu", why="half of the tokens of the other row are left out at random", **TWO)
def with_dropout(x: Tensor, text: Tensor, cu: Tensor, cu_text: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        q, k = (row[c[i] : c[i + 1]].transpose(0, 1) for row, c in ((x, cu), (text, cu_text)))
        out[cu[i] : cu[i + 1]] = F.scaled_dot_product_attention(q, k, k, dropout_p=0.5).transpose(0, 1)
    return out


@leave("d[T,2,4] cu", must_refuse=True, why="one head of queries is asked of two of keys, which is as many results")
def one_head_of_queries_and_two_of_keys(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = x[s:e].transpose(0, 1)
        out[s:e] = F.scaled_dot_product_attention(own[:1], own, own).transpose(0, 1)
    return out
