"""``position_ids``: the position of every slot inside its document.

    for start, stop in pairwise([0, *cu_seqlens, total]):
        out[start:stop] = range(stop - start)

Empty documents own no slot; the two tails count like documents of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._arguments import check_boundaries, check_total
from packpass.ops._boundaries_passed import boundaries_passed, stretch_edges
from packpass.ops._check_cu_seqlens import check_cu_seqlens_op
from packpass.ops._library import define


def _kernel(cu_seqlens: Tensor, total: int) -> Tensor:
    passed = boundaries_passed(cu_seqlens, total)
    last = cu_seqlens.long().index_select(0, (passed - 1).clamp(min=0))
    return torch.arange(total, device=cu_seqlens.device) - torch.where(passed > 0, last, 0)


def _cpu_kernel(cu_seqlens: Tensor, total: int) -> Tensor:
    edges = stretch_edges(cu_seqlens, total)
    return torch.arange(total).sub_(torch.repeat_interleave(edges[:-1], edges.diff(), output_size=total))


def _fake(cu_seqlens: Tensor, total: int) -> Tensor:
    return cu_seqlens.new_empty((total,), dtype=torch.int64)


position_ids_op = define(
    "position_ids(Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_kernel,
)


def position_ids(cu_seqlens: Tensor, total: int) -> Tensor:
    """Position of every slot inside its document, counted from 0.

    Args:
        cu_seqlens: boundaries of the documents in slots, int32 or int64, ``[N+1]``, nondecreasing, within [0, total].
        total: number of slots T of the row.

    Returns:
        int64 ``[total]``. The stretch before ``cu_seqlens[0]`` and the one after ``cu_seqlens[N]`` each count from 0,
        like a document of their own.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype or rank; for boundaries on the CPU also wrong
            values. On a GPU and in compiled code an asynchronous assertion checks the values.
    """
    check_boundaries("cu_seqlens", cu_seqlens)
    check_total(total)
    check_cu_seqlens_op(cu_seqlens, total)
    out: Tensor = position_ids_op(cu_seqlens, total)
    return out
