"""``check_cu_seqlens`` (internal): the value check of boundaries, without a host sync on a GPU.

    assert 0 <= cu[0] and all(a <= b for a, b in pairwise(cu)) and cu[N] <= total
    with cu_seqlens_padded also: the same for it, and cu[d + 1] - cu[d] <= padded[d + 1] - padded[d] for every d

An op of its own, so that a graph with many rolls over the same boundaries checks them once.

Eager on the CPU, boundaries are host memory: the kernel raises a ValueError that names the entry and its value. On a
GPU it is an asynchronous device assertion with a message. In C++ code generated for one thread it is part of the fused
kernel, at no measurable cost, and raises RuntimeError with the message; in code for several threads an assertion would
be thrown out of an OpenMP region, which aborts the process, so there Inductor calls the eager kernel instead.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from packpass._compat import assert_async, generated_cpp_is_sequential
from packpass.ops._geometry import previous
from packpass.ops._library import define

MESSAGE = "packpass: cu_seqlens must be nondecreasing and lie between 0 and the number of slots"
PADDED_MESSAGE = (
    "packpass: cu_seqlens_padded must be nondecreasing, lie between 0 and the number of slots and give every document "
    "of cu_seqlens room for its tokens"
)


def conditions(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None) -> list[tuple[Tensor, str]]:
    """0-d bool tensors that must be True, each with its message; device independent, no host read."""

    def in_order(cu: Tensor) -> Tensor:
        return (cu >= previous(cu)).all() & (cu.select(0, 0) >= 0) & (cu.select(0, -1).long() <= total)

    conditions = [(in_order(cu_seqlens), MESSAGE)]
    if cu_seqlens_padded is not None:
        room = cu_seqlens_padded - previous(cu_seqlens_padded)
        fits = (cu_seqlens - previous(cu_seqlens) <= room).all()
        conditions.append((in_order(cu_seqlens_padded) & fits, PADDED_MESSAGE))
    return conditions


def _kernel(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None = None) -> None:
    for condition, message in conditions(cu_seqlens, total, cu_seqlens_padded):
        assert_async(condition, message)


def _cpu_kernel(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None = None) -> None:
    raise_if_out_of_order("cu_seqlens", cu_seqlens, total)
    if cu_seqlens_padded is not None:
        raise_if_out_of_order("cu_seqlens_padded", cu_seqlens_padded, total)
        over = cu_seqlens.diff() > cu_seqlens_padded.diff()
        if over.any():
            d = int(over.nonzero()[0])
            length, room = (int(cu[d + 1] - cu[d]) for cu in (cu_seqlens, cu_seqlens_padded))
            raise ValueError(
                f"packpass: document {d} has {length} tokens (cu_seqlens[{d}] = {int(cu_seqlens[d])}, "
                f"cu_seqlens[{d + 1}] = {int(cu_seqlens[d + 1])}) but only {room} slots in cu_seqlens_padded; "
                "each document must fit its slots"
            )


def raise_if_out_of_order(name: str, cu_seqlens: Tensor, total: int) -> None:
    """Raise the ValueError for the first entry of ``cu_seqlens`` that is wrong; reads the values: waits for a GPU.

    Args:
        name: what the caller calls the argument.
        cu_seqlens: ``[N+1]``, int32 or int64, any device.
        total: number of slots T.
    """
    if not cu_seqlens.numel():
        raise ValueError(f"packpass: {name} is empty; boundaries of N documents are N + 1 numbers, [0] for none")
    first, last = int(cu_seqlens[0]), int(cu_seqlens[-1])
    if first < 0:
        raise ValueError(f"packpass: {name}[0] = {first} is negative; boundaries start at 0 or later")
    falling = cu_seqlens[1:] < cu_seqlens[:-1]
    if falling.any():
        _raise_falling(name, cu_seqlens, int(falling.nonzero()[0]) + 1)
    if last > total:
        raise ValueError(
            f"packpass: {name}[{cu_seqlens.numel() - 1}] = {last} is beyond the {total} slots of the packed dimension"
        )


def _raise_falling(name: str, cu_seqlens: Tensor, i: int) -> NoReturn:
    raise ValueError(
        f"packpass: {name}[{i}] = {int(cu_seqlens[i])} is smaller than {name}[{i - 1}] = {int(cu_seqlens[i - 1])}; "
        "boundaries must not decrease"
    )


def _fake(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None = None) -> None:
    return None


def _decomposition(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None = None) -> None:
    if cu_seqlens.device.type == "cpu" and not generated_cpp_is_sequential():
        host_check_op(cu_seqlens, total, cu_seqlens_padded)
    else:
        _kernel(cu_seqlens, total, cu_seqlens_padded)


check_cu_seqlens_op = define(
    "check_cu_seqlens(Tensor cu_seqlens, SymInt total, Tensor? cu_seqlens_padded=None) -> ()",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)
# What the check becomes in code generated for several threads: the eager kernel, under a name that has no
# decomposition, because Inductor refuses to call an op that also has one.
host_check_op = define(
    "host_check_cu_seqlens(Tensor cu_seqlens, SymInt total, Tensor? cu_seqlens_padded=None) -> ()",
    fake=_fake,
    kernel=_cpu_kernel,
)
# Without an output they would be dead code to every pass over a graph.
torch.fx.has_side_effect(check_cu_seqlens_op)
torch.fx.has_side_effect(host_check_op)
