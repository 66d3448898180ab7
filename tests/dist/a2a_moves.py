"""What programs with an exchange per document are made of: heads for tokens, zigzag, and its inverse."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.naive import AllToAll

WIDTH = 12


def size_of(group: Any) -> int:
    return dist.get_world_size(group)


def gather_sequence(t: Tensor, group: Any) -> Tensor:
    """``[l, cp * w]`` of this rank to ``[cp * l, w]``, rank by rank."""
    send = t.reshape(t.size(0), size_of(group), -1).permute(1, 0, 2).contiguous()
    received: Tensor = AllToAll.apply(send, group)
    return received.reshape(-1, received.size(-1))


def scatter_sequence(t: Tensor, group: Any) -> Tensor:
    """The inverse."""
    send = t.reshape(size_of(group), -1, t.size(-1)).contiguous()
    received: Tensor = AllToAll.apply(send, group)
    return received.transpose(0, 1).reshape(send.size(1), -1)


def unzigzag(t: Tensor, cp: int, dim: int = 0) -> Tensor:
    chunks = t.chunk(2 * cp, dim)
    return torch.cat([*chunks[::2], *reversed(chunks[1::2])], dim)


def zigzag(t: Tensor, cp: int, dim: int = 0) -> Tensor:
    chunks, out = t.chunk(2 * cp, dim), []
    for r in range(cp):
        out += [chunks[r], chunks[-1 - r]]
    return torch.cat(out, dim)


def gathered(x: Tensor, group: Any) -> Tensor:
    return unzigzag(gather_sequence(x, group), size_of(group))
