"""Loops over values beside boundaries that are no documents, or with which documents do something else."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu f[4]")
def factors_of_their_own(x: Tensor, cu: Tensor, factors: Tensor) -> Tensor:
    """As many as there are boundaries of three documents."""
    for factor in factors:
        x = x * factor + 1
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].flip(0)
    return out


@leave("f[T] cu f[3]")
def terms_behind_the_loop(x: Tensor, cu: Tensor, terms: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].flip(0)
    for i in range(len(terms)):
        out = out + terms[i]
    return out


@leave("f[T] cu f[3]", tail=False)
def fewer_weights_than_documents(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    parts = [x[s:e] * w for s, e, w in zip(cu[:-1].tolist(), cu[1:].tolist(), weights)]
    return torch.cat([x[:1], *parts])


@leave("f[T] cu m[N]")
def documents_cleared_by_a_flag(x: Tensor, cu: Tensor, flags: Tensor) -> Tensor:
    out = x.clone()
    for s, e, flag in zip(cu[:-1].tolist(), cu[1:].tolist(), flags):
        if flag:
            out[s:e] = 0
    return out


@leave("f[T] cu f[N]", must_refuse=True, why="the largest reward so far is carried on")
def largest_reward_so_far(x: Tensor, cu: Tensor, rewards: Tensor) -> Tensor:
    out, best = x.clone(), torch.zeros(())
    for s, e, reward in zip(cu[:-1].tolist(), cu[1:].tolist(), rewards):
        best = torch.maximum(best * 0.5, reward)
        out[s:e] = x[s:e] * best
    return out


@leave("f[T] cu f[N]")
def rewards_read_as_numbers(x: Tensor, cu: Tensor, rewards: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(rewards)):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * rewards[i].item()
    return out


@leave("f[T,2] cu", tail=False)
def an_unbound_boundary_replaced(x: Tensor, cu: Tensor) -> Tensor:
    bounds = list(cu.unbind())
    bounds[0] = bounds[0] + 1
    return torch.cat([x[s:e] for s, e in zip(bounds[:-1], bounds[1:])])


@leave("f[T,2] cu", tail=False, must_refuse=True, why="the first boundary ends no document")
def unbound_boundaries_with_none_before(x: Tensor, cu: Tensor) -> Tensor:
    parts, before = [], None
    for bound in cu.unbind():
        if before is not None:
            parts.append(x[before:bound].flip(0))
        before = bound
    return torch.cat(parts)


@leave("f[T,2] cu", tail=False)
def unbound_views_of_changed_boundaries(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    bounds = cu.clone().unbind()
    bounds[1].add_(0)
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])]), bounds[0]
