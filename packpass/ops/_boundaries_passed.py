"""``boundaries_passed`` (internal): how many boundaries lie at or before each slot.

    out[p] = sum(boundary <= p for boundary in cu_seqlens)

0 before cu[0], d + 1 inside document d, N + 1 after cu[N]. On a GPU it is one binary search per slot, which fuses with
whatever uses it. On the CPU a search per slot costs 20-40 times a copy of the row, and generated code has no form for
one sequential pass: there Inductor calls the op as it is, and fuses what is computed from it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from packpass.ops._library import define


def search(cu_seqlens: Tensor, total: int) -> Tensor:
    """One binary search per slot; any device, no host read."""
    slots, boundaries = comparable(cu_seqlens, total)
    return torch.bucketize(slots, boundaries, right=True)


def comparable(cu_seqlens: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The numbers of all slots, and boundaries in the same dtype: int32 if they come so and that can number them, which
    spares a kernel that converts them."""
    if cu_seqlens.dtype is torch.int32 and not guard_or_false(total <= torch.iinfo(torch.int32).max):
        cu_seqlens = cu_seqlens.long()
    return torch.arange(total, dtype=cu_seqlens.dtype, device=cu_seqlens.device), cu_seqlens


def stretch_edges(cu_seqlens: Tensor, total: int) -> Tensor:
    """``[0, cu[0], ..., cu[N], total]`` as int64: the edges of all stretches of a row, both tails included.

    No edge lies beyond ``total``: ``repeat_interleave`` trusts its ``output_size`` and would write behind its result.
    """
    cu = cu_seqlens.long().clamp(max=total)
    return torch.cat([cu.new_zeros(1), cu, cu.new_full((1,), total)])


def _cpu_kernel(cu_seqlens: Tensor, total: int) -> Tensor:
    edges = stretch_edges(cu_seqlens, total)
    return torch.repeat_interleave(torch.arange(edges.shape[0] - 1), edges.diff(), output_size=total)


def _fake(cu_seqlens: Tensor, total: int) -> Tensor:
    return cu_seqlens.new_empty((total,), dtype=torch.int64)


boundaries_passed_op = define(
    "boundaries_passed(Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=_fake,
    kernel=search,
    cpu_kernel=_cpu_kernel,
)


def boundaries_passed(cu_seqlens: Tensor, total: int) -> Tensor:
    """The form that suits the device; int64 ``[total]``. For kernels and decompositions."""
    if cu_seqlens.device.type == "cpu":
        passed: Tensor = boundaries_passed_op(cu_seqlens, total)
        return passed
    return search(cu_seqlens, total)
