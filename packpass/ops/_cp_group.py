"""Context-parallel groups: from what a caller passes to constants of a graph, and the one collective of the CP ops.

The ops carry the group's name, its size and (where it matters) this process's rank in their arguments, so that compiled
code is keyed by them: ranks that share a compile cache must not run each other's code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from packpass._compat import all_to_all_of_equal_parts, process_group_of

# What both gloo and NCCL send; other dtypes travel as bytes.
SENT = frozenset(
    {
        torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    }
)  # fmt: skip


class CPGroup(NamedTuple):
    """A process group as constants: its name, its number of ranks, this process's rank in it."""

    name: str
    size: int
    rank: int


def resolve_group(group: Any) -> CPGroup:
    """Constants of a group; Dynamo traces this.

    Args:
        group: a ProcessGroup that this process belongs to, its name, or None for the default group.

    Raises:
        TypeError, ValueError: not a group, or one that this process is no member of.
        RuntimeError: torch.distributed is missing or not initialised.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError("packpass: call torch.distributed.init_process_group before ops that take a group")
    if isinstance(group, str):
        size, rank = _size_and_rank(group)
        return CPGroup(group, size, rank)
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"group must be a torch.distributed.ProcessGroup that this rank belongs to, its name or None (the default "
            f"group), got {type(group).__name__}; of a DeviceMesh pass mesh.get_group()"
        )
    return CPGroup(group.group_name, group.size(), group.rank())


@torch.compiler.assume_constant_result
def _size_and_rank(name: str) -> tuple[int, int]:
    try:
        group = process_group_of(name)
    except Exception as error:
        raise ValueError(f"group must be the name of a process group, {name!r} is none") from error
    return group.size(), group.rank()


def start(send: Tensor, sent: list[int], taken: list[int], group: str) -> tuple[Tensor, Any]:
    """An all-to-all in host memory that is on its way: what comes, and what to ``wait()`` for before it is read.

    Args:
        send: contiguous, ``[sum(sent), ...]``, of a dtype in `SENT`.
        sent, taken: how many entries go to each rank, and come from each.
    """
    received = send.new_empty([sum(taken), *send.shape[1:]])
    work = dist.all_to_all_single(received, send, taken, sent, group=process_group_of(group), async_op=True)
    return received, work


def exchange(send: Tensor, group: str, group_size: int) -> Tensor:
    """``send[r]`` goes to rank r; the result's entry r came from rank r. The one collective of the CP ops.

    Args:
        send: ``[group_size, ...]``, any dtype.
    """
    if send.dtype in SENT:
        return all_to_all_of_equal_parts(send.contiguous(), group, group_size)
    flat = send.reshape(group_size, -1)
    received = all_to_all_of_equal_parts(flat.contiguous().view(torch.uint8), group, group_size)
    return received.view(send.dtype).view(send.shape)
