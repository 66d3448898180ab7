"""Loops that begin with a question about a flag, a kind or a weight of the document, before boundaries are read."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("m[T] m[N] cu", graphs=3)
def flag_before_the_boundaries(mask: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    mask = mask.logical_not()
    for i in range(flags.shape[0]):
        if flags[i]:
            mask[cu[i] : cu[i + 1]] = False
    return mask


@program("i[T] m[N] cu", graphs=3)
def flag_read_on_the_host(ids: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    ids = ids.clone()
    for i in range(len(flags)):
        if not flags[i].item():
            continue
        ids[cu[i] : cu[i + 1]] = ids[cu[i] : cu[i + 1]].flip(0)
    return ids


@program("i[T] i[N] cu", graphs=3)
def kind_that_is_not_nought(ids: Tensor, kinds: Tensor, cu: Tensor) -> Tensor:
    ids, kinds = ids.clone(), kinds % 3
    for i in range(kinds.shape[0]):
        if kinds[i]:
            ids[cu[i] : cu[i + 1]] = -100
    return ids


@program("f[T] f[N] cu", graphs=3)
def weight_above_a_number(x: Tensor, weights: Tensor, cu: Tensor) -> Tensor:
    x, weights = x * 1, weights.detach()
    for i in range(weights.size(0)):
        if weights[i] > 0.5:
            x[cu[i] : cu[i + 1]] *= 2
    return x


@program("f[T] m[T] cu", exact=False)
def counted_where_nothing_is_recorded(scores: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.where(mask, scores, 0)
    with torch.no_grad():
        means = torch.zeros(cu.shape[0] - 1, dtype=torch.float64)
        seen = torch.zeros(cu.shape[0] - 1, dtype=torch.bool)
        for i in range(cu.shape[0] - 1):
            own = mask[cu[i] : cu[i + 1]]
            valid = int(own.count_nonzero().item())
            if valid == 0:
                continue
            seen[i] = True
            means[i] = torch.where(own, scores[cu[i] : cu[i + 1]], 0.0).sum() / valid
    return scores, means, seen


@program("f[T] m[N] cu", exact=False, graphs=3)
def detached_where_flagged(x: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0])
    for i in range(flags.shape[0]):
        if flags[i]:
            out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]].detach() * 2
    return out
