"""Context-parallel programs as people write them: a collective per document and section, messages per document.

Zigzag layout: a document is cut in 2 * cp chunks, rank r holds chunks r and 2 * cp - 1 - r; ``cu_seqlens`` is global.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllToAll(torch.autograd.Function):
    """``dist.all_to_all_single`` with equal parts and a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return AllToAll.apply(grad, ctx.group), None


def undo_zigzag(x: Tensor, cp: int) -> Tensor:
    """A document ``[L, ...]`` in the order of the ranks, brought into the order of its tokens."""
    chunks = torch.chunk(x, 2 * cp, dim=0)
    order = [2 * c if c < cp else 2 * (2 * cp - 1 - c) + 1 for c in range(2 * cp)]
    return torch.cat([chunks[c] for c in order], dim=0)


def redo_zigzag(x: Tensor, cp: int) -> Tensor:
    """The inverse of :func:`undo_zigzag`."""
    chunks = torch.chunk(x, 2 * cp, dim=0)
    return torch.cat([chunks[c] for rank in range(cp) for c in (rank, 2 * cp - 1 - rank)], dim=0)


def cp_to_hp(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    """``[T / cp, F]`` with all heads of some tokens to ``[T, F / cp]`` with some heads of all tokens."""
    cp = dist.get_world_size(group)
    documents = []
    for i in range(len(cu_seqlens) - 1):
        start, stop = cu_seqlens[i] // cp, cu_seqlens[i + 1] // cp
        parts = []
        for section in torch.split(x[start:stop], sections, dim=-1):
            length, width = section.shape
            send = section.reshape(length, cp, width // cp).transpose(0, 1).contiguous()
            received = AllToAll.apply(send, group)
            parts.append(undo_zigzag(received.reshape(cp * length, width // cp), cp))
        documents.append(torch.cat(parts, dim=-1))
    return torch.cat(documents, dim=0)


def hp_to_cp(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    """The inverse of :func:`cp_to_hp`; ``sections`` are the widths of the whole sections."""
    cp = dist.get_world_size(group)
    documents = []
    for i in range(len(cu_seqlens) - 1):
        start, stop = cu_seqlens[i], cu_seqlens[i + 1]
        parts = []
        for section in torch.split(x[start:stop], [width // cp for width in sections], dim=-1):
            length, width = section.shape
            send = redo_zigzag(section, cp).reshape(cp, length // cp, width)
            received = AllToAll.apply(send, group)
            parts.append(received.transpose(0, 1).reshape(length // cp, cp * width))
        documents.append(torch.cat(parts, dim=-1))
    return torch.cat(documents, dim=0)


def round_trip(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    """To shards of the heads, something token by token (which compilers round as eager does), and back."""
    y = cp_to_hp(x, cu_seqlens, group, sections)
    return hp_to_cp(y * y, cu_seqlens, group, sections)


def roll(x: Tensor, cu_seqlens: Tensor, group: Any) -> Tensor:
    """The next token inside each document, 0 behind its last: ``[..., T / cp]`` both ways, four messages a document."""
    cp, rank = dist.get_world_size(group), dist.get_rank(group)
    ranks = dist.get_process_group_ranks(group)
    following, previous = ranks[(rank + 1) % cp], ranks[(rank - 1) % cp]
    out = x.clone()
    for i in range(len(cu_seqlens) - 1):
        start, stop = cu_seqlens[i] // cp, cu_seqlens[i + 1] // cp
        chunks = [torch.roll(chunk, -1, dims=-1) for chunk in out[..., start:stop].clone().chunk(2, dim=-1)]
        first = [chunk[..., -1].contiguous().clone() for chunk in chunks]
        received = [torch.empty_like(token) for token in first]
        requests: list[Any] = []
        if rank != 0:
            requests.append(dist.isend(first[0], previous, group=group))
            requests.append(dist.irecv(received[1], previous, group=group))
        else:
            received[1].zero_()
        if rank != cp - 1:
            requests.append(dist.irecv(received[0], following, group=group))
            requests.append(dist.isend(first[1], following, group=group))
        else:
            received[0].copy_(first[1])
        for request in requests:
            request.wait()
        for chunk, token in zip(chunks, received, strict=True):
            chunk[..., -1] = token
        out[..., start:stop] = torch.cat(chunks, dim=-1)
    return out


def roll_depths(fields: list[Tensor], cu_seqlens: Tensor, group: Any, depths: int) -> list[list[Tensor]]:
    """Multi-token prediction: every depth rolls every field once more."""
    rolled = []
    for _ in range(depths):
        fields = [roll(field, cu_seqlens, group) for field in fields]
        rolled.append(fields)
    return rolled
