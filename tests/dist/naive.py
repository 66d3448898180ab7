"""What people write by hand: one all-to-all per document and section, and the layout by its definition."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return AllToAll.apply(grad.contiguous(), ctx.group), None


def shard(whole: Tensor, cu: list[int], cp: int, rank: int, dim: int = 0, zigzag: bool = True) -> Tensor:
    """This rank's shard of a whole row; tails are cut in ``cp`` parts, and so are documents without ``zigzag``."""
    parts = []
    for i, (start, stop) in enumerate(pairwise([0, *cu, whole.shape[dim]])):
        stretch = whole.narrow(dim, start, stop - start)
        if i in (0, len(cu)) or not zigzag:
            size = (stop - start) // cp
            parts.append(stretch.narrow(dim, rank * size, size))
        else:
            half = (stop - start) // (2 * cp)
            parts += [stretch.narrow(dim, c * half, half) for c in (rank, 2 * cp - 1 - rank)]
    return torch.cat(parts, dim)


def _undo_zigzag(x: Tensor, cp: int) -> Tensor:
    chunks = torch.chunk(x, 2 * cp)
    return torch.cat([chunks[2 * c if c < cp else 2 * (2 * cp - 1 - c) + 1] for c in range(2 * cp)])


def _redo_zigzag(x: Tensor, cp: int) -> Tensor:
    chunks = torch.chunk(x, 2 * cp)
    return torch.cat([chunk for r in range(cp) for chunk in (chunks[r], chunks[2 * cp - 1 - r])])


def cp_to_hp(x: Tensor, cu: list[int], group: Any, sections: list[int]) -> Tensor:
    """x ``[T / cp, F]``; documents cover the row."""
    cp = dist.get_world_size(group)
    documents = []
    for start, stop in pairwise(cu):
        parts = []
        for section in torch.split(x[start // cp : stop // cp], sections, -1):
            length, width = section.shape
            send = section.reshape(length, cp, width // cp).transpose(0, 1).contiguous()
            parts.append(_undo_zigzag(AllToAll.apply(send, group).reshape(cp * length, width // cp), cp))
        documents.append(torch.cat(parts, -1))
    return torch.cat(documents)


def hp_to_cp(x: Tensor, cu: list[int], group: Any, sections: list[int]) -> Tensor:
    cp = dist.get_world_size(group)
    documents = []
    for start, stop in pairwise(cu):
        parts = []
        for section in torch.split(x[start:stop], [w // cp for w in sections], -1):
            length, width = section.shape
            received = AllToAll.apply(_redo_zigzag(section, cp).reshape(cp, length // cp, width), group)
            parts.append(received.transpose(0, 1).reshape(length // cp, cp * width))
        documents.append(torch.cat(parts, -1))
    return torch.cat(documents)
