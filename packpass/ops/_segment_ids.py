"""``segment_ids``: the index of the document that owns each slot.

    for d, (start, stop) in enumerate(pairwise([0, *cu_seqlens, total]), start=-1):
        out[start:stop] = d

Empty documents own no slot; the tails are -1 and N.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._arguments import check_boundaries, check_total
from packpass.ops._boundaries_passed import boundaries_passed
from packpass.ops._check_cu_seqlens import check_cu_seqlens_op
from packpass.ops._library import define


def _kernel(cu_seqlens: Tensor, total: int) -> Tensor:
    return boundaries_passed(cu_seqlens, total) - 1


def _fake(cu_seqlens: Tensor, total: int) -> Tensor:
    return cu_seqlens.new_empty((total,), dtype=torch.int64)


segment_ids_op = define(
    "segment_ids(Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    decomposition=_kernel,
)


def segment_ids(cu_seqlens: Tensor, total: int) -> Tensor:
    """Index of the document that owns each slot.

    Args:
        cu_seqlens: boundaries of the documents in slots, int32 or int64, ``[N+1]``, nondecreasing, within [0, total].
        total: number of slots T of the row.

    Returns:
        int64 ``[total]``: -1 before ``cu_seqlens[0]``, N after ``cu_seqlens[N]``. Empty documents own no slot.

    Raises:
        TypeError, ValueError: as for :func:`packpass.ops.position_ids`.
    """
    check_boundaries("cu_seqlens", cu_seqlens)
    check_total(total)
    check_cu_seqlens_op(cu_seqlens, total)
    out: Tensor = segment_ids_op(cu_seqlens, total)
    return out
