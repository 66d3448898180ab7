"""Process groups, and collectives that can be traced."""

from __future__ import annotations

from typing import Any


def process_group_of(name: str) -> Any:
    """The ProcessGroup of this name; raises if there is none."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)  # type: ignore[arg-type]


def group_store(group: Any) -> Any:
    """The store of a ProcessGroup, with its name as prefix; raises KeyError if torch did not make the group."""
    from torch.distributed.distributed_c10d import _get_process_group_store

    return _get_process_group_store(group)


def all_to_all_of_equal_parts(send: Any, group_name: str, group_size: int) -> Any:
    """Functional all-to-all: ``send[r]`` goes to rank r. Traceable; waits before it returns.

    Args:
        send: contiguous, ``[group_size, ...]``: the splits are 1 entry each, so no size of a graph is read.
    """
    import torch
    import torch.distributed._functional_collectives

    ops = torch.ops._c10d_functional
    splits = [1] * group_size
    return ops.wait_tensor.default(ops.all_to_all_single.default(send, splits, splits, group_name))


def all_gather_of_equal_parts(part: Any, group_name: str, group_size: int) -> Any:
    """Functional all-gather: the ranks' contiguous ``part [n, ...]`` behind each other, ``[group_size * n, ...]``.
    Traceable; waits before it returns."""
    import torch
    import torch.distributed._functional_collectives

    ops = torch.ops._c10d_functional
    return ops.wait_tensor.default(ops.all_gather_into_tensor.default(part, group_size, group_name))


def reduce_scatter_sum(parts: Any, group_name: str, group_size: int) -> Any:
    """Functional reduce-scatter: this rank's ``[n, ...]`` of the sum of the ranks' contiguous
    ``parts [group_size * n, ...]``. Traceable; waits before it returns."""
    import torch
    import torch.distributed._functional_collectives

    ops = torch.ops._c10d_functional
    return ops.wait_tensor.default(ops.reduce_scatter_tensor.default(parts, "sum", group_size, group_name))


def ddp_optimizer_class() -> Any:
    """What Dynamo puts around a backend while a DistributedDataParallel module runs."""
    from torch._dynamo.backends.distributed import DDPOptimizer

    return DDPOptimizer
