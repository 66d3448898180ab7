"""Loops that must be rewritten: rewards, weights and the like, one for each document, beside its boundaries."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T] cu f[N]", tail=False, graphs=3)
def weights_in_a_zip(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    parts = [x[s:e] * w for s, e, w in zip(cu[:-1].tolist(), cu[1:].tolist(), weights)]
    return torch.cat(parts)


@program("f[T,2] cu f[N,2]", tail=False, graphs=3)
def a_bias_for_each_piece(x: Tensor, cu: Tensor, bias: Tensor) -> Tensor:
    return torch.cat([part + own for part, own in zip(x.split(cu.diff().tolist()), bias)])


@program("f[T] cu m[N]", tail=False, graphs=3)
def documents_that_count(x: Tensor, cu: Tensor, kept: Tensor) -> Tensor:
    return torch.cat([x[s:e] * keep for s, e, keep in zip(cu[:-1].tolist(), cu[1:].tolist(), kept)])


@program("f[T] cu f[N]", graphs=3)
def as_many_as_rewards(x: Tensor, cu: Tensor, rewards: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(rewards)):
        s, e = cu[i], cu[i + 1]
        out[s:e] = x[s:e].flip(0) * rewards[i]
    return out


@program("f[T] cu f[N]", tail=False, graphs=3)
def rewards_that_are_repeated(x: Tensor, cu: Tensor, rewards: Tensor) -> Tensor:
    return x * torch.cat([reward.repeat(n) for reward, n in zip(rewards, cu.diff().tolist())])


@program("f[T,2] cu", tail=False)
def boundaries_unbound(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.unbind()
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T,2] cu", tail=False)
def lengths_unbound(x: Tensor, cu: Tensor) -> Tensor:
    parts, start = [], 0
    for n in torch.unbind(cu.diff(), 0):
        parts.append(x[start : start + n].roll(1, 0))
        start = start + n
    return torch.cat(parts)


@program("f[T,2] cu i[3]")
def sizes_unbound_beside_boundaries(x: Tensor, cu: Tensor, sizes: Tensor) -> Tensor:
    t, h, w = sizes.unbind()
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].flip(0) * t + h - w
    return out


@program("i[N,T] cu cu", graphs=3, reads=1)
def a_batch_packed_by_boundaries_alone(ids: Tensor, cu: Tensor, padded: Tensor) -> Tensor:
    out = torch.zeros(1, int(padded[-1].item()), dtype=ids.dtype)
    for i in range(ids.shape[0]):
        n = int((cu[i + 1] - cu[i]).item())
        start = int(padded[i].item())
        out[0, start : start + n] = ids[i, :n]
    return out
