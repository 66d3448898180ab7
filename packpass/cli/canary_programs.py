"""The programs that `packpass.cli.canaries` compiles: each is written the way users write it, as small as it can be."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def item_loop(x: Tensor, cu: Tensor) -> Tensor:
    """Bounds by ``.item()``."""
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        document = torch.roll(x[s:e], -1, 0)
        document[-1:] = -100
        out[s:e] = document
    return out


def zip_loop(x: Tensor, cu: Tensor) -> Tensor:
    """Neighbouring boundaries by ``zip``."""
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = x[s:e].flip(0) * 2
    return out


def list_loop(x: Tensor, cu: Tensor) -> Tensor:
    """``tolist``, a list and ``cat``."""
    bounds = cu.tolist()
    parts = []
    for i in range(len(bounds) - 1):
        parts.append(x[bounds[i] : bounds[i + 1]].flip(0) + 1)
    return torch.cat(parts)


def lengths_loop(parts: list[Tensor], lengths: list[int]) -> Tensor:
    """Documents that come as a list of tensors, beside their lengths as numbers of Python."""
    return torch.cat([part.flip(0) * n for part, n in zip(parts, lengths)])


def written_loop(x: Tensor, cu: Tensor) -> Tensor:
    """One slot of every document, at an index that is data."""
    labels = torch.roll(x, -1, 0)
    for e in cu[1:]:
        labels[e - 1] = -100
    return labels


def transposed_loop(x: Tensor, cu: Tensor) -> Tensor:
    """Documents that are turned around."""
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = x[s:e].T.flip(1).T
    return out


def skipping_loop(x: Tensor, cu: Tensor) -> Tensor:
    """``continue``, which is a jump in the bytecode."""
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        if e == s:
            continue
        out[s:e] = x[s:e].flip(0)
    return out


def carried_loop(x: Tensor, cu: Tensor) -> Tensor:
    """Every document sees the one before it: no rewrite may touch this."""
    out, last = x.clone(), torch.zeros_like(x[0])
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = x[s:e] + last
        last = x[s:e].sum(0)
    return out


def unread_shift(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A shift written for rows of one document; the boundaries are an argument that the code does not read."""
    labels = torch.roll(input_ids, -1, dims=-1)
    labels[..., -1] = -100
    return labels


def shift_of_documents(input_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    """What `unread_shift` gives for the documents one by one."""
    bounds = cu_seqlens.tolist()
    parts = [unread_shift(input_ids[:, s:e], cu_seqlens) for s, e in zip(bounds, bounds[1:])]
    return torch.cat(parts, -1)


class Scaler(torch.autograd.Function):
    """Its backward reads a tensor of the class, which a training loop sets after the forward."""

    scale = torch.tensor(1.0)

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return hidden

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (loss,) = ctx.saved_tensors
        return grads[0], torch.ones_like(loss) * Scaler.scale


def late_read(x: Tensor, y: Tensor) -> Tensor:
    return Scaler.apply(x * 2, (y * y).sum()) * 3


def message_loop(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A roll of zigzag shards by -1, with messages per document."""
    out = x.clone()
    cp, rank = dist.get_world_size(group), dist.get_rank(group)
    for i in range(len(cu) - 1):
        s, e = cu[i] // cp, cu[i + 1] // cp
        a, b = x[s:e].chunk(2)
        first_a, first_b = a[:1].clone(), b[:1].clone()
        next_a, next_b = torch.empty_like(first_a), torch.zeros_like(first_b)
        works: list[Any] = []
        if rank > 0:
            works += [dist.isend(first_a, rank - 1, group), dist.irecv(next_b, rank - 1, group)]
        if rank < cp - 1:
            works += [dist.irecv(next_a, rank + 1, group), dist.isend(first_b, rank + 1, group)]
        else:
            next_a = first_b
        for work in works:
            work.wait()
        out[s:e] = torch.cat([a[1:], next_a, b[1:], next_b])
    return out
