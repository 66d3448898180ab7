"""Process groups, and collectives that can be traced."""

from __future__ import annotations

import contextlib
from typing import Any


def process_group_of(name: str) -> Any:
    """The ProcessGroup of this name; raises if there is none."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)  # type: ignore[arg-type]


def group_store(group: Any) -> Any:
    """The store of a ProcessGroup, with its name as prefix; raises KeyError if torch did not make the group."""
    from torch.distributed.distributed_c10d import _get_process_group_store

    return _get_process_group_store(group)


def names_of_groups() -> list[str]:
    """The names of all ProcessGroups that this process is a rank of, in the order in which they were made."""
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    from torch.distributed.distributed_c10d import _world

    return list(_world.pg_names.values())


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


def is_of_transport(error: BaseException) -> bool:
    """Does this say that other ranks did not answer, or that the connection to them is gone?"""
    import torch

    kinds = tuple(k for name in _TRANSPORT_KINDS if (k := getattr(torch.distributed, name, None)) is not None)
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and any(w in str(error) for w in _GLOO_SAYS))


_TRANSPORT_KINDS = ("DistBackendError", "DistNetworkError")
_GLOO_SAYS = ("gloo/transport/", "Application timeout caused pair closure", "Connection closed by peer")


def interrupt_group(group: Any) -> None:
    """End in an error what this rank waits for in a ProcessGroup, which cannot be used afterwards.

    Backends that can abort do. Gloo cannot; but a message that does not come in time closes all its connections.
    """
    import datetime

    import torch

    with contextlib.suppress(Exception):
        group.abort()
    with contextlib.suppress(Exception):
        if group._get_backend(torch.device("cpu")).name() != "gloo":
            return
    for tag in range(_TAG, _TAG + _GLOO_CONTEXTS):
        for peer in range(group.size()):
            if peer == group.rank():
                continue
            try:
                group.recv([torch.empty(1)], peer, tag).wait(datetime.timedelta(milliseconds=1))
            except Exception as error:  # of a connection that is closed already: that closes no other
                if _LATE in str(error):
                    break


_LATE = "Timed out"
_TAG = 1 << 30
"""Of messages that nobody sends."""
_GLOO_CONTEXTS = 8
"""Connections of gloo to one rank: one for each network device, in turn by the tag."""


def wrap_backward(outputs: Any, around: Any) -> bool:
    """Have ``around(backward, *args)`` called in place of the backward of a graph that AOTAutograd compiled.

    Args:
        outputs: what the graph returned.

    Returns False if none of them is that of such a graph with a backward.
    """
    for output in outputs if isinstance(outputs, list | tuple) else (outputs,):
        made = getattr(type(getattr(output, "grad_fn", None)), "_forward_cls", None)
        if made is None or "CompiledFunction" not in made.__qualname__:
            continue
        backward = made.backward
        if getattr(backward, "_packpass_inside", None) is None:

            def within(*args: Any) -> Any:
                return around(backward, *args)  # noqa: B023

            within._packpass_inside = True  # type: ignore[attr-defined]
            made.backward = staticmethod(within)
        return True
    return False
