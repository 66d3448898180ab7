"""``fit_boundaries(cu_seqlens, total)`` (internal): boundaries of which none lies beyond a row of ``total`` slots.

    out = minimum(cu_seqlens, total)

What ``x[s:e]`` takes of a row that is shorter than its boundaries say.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._library import define

_MOST = 2**31 - 1


def _kernel(cu_seqlens: Tensor, total: int) -> Tensor:
    return cu_seqlens.clamp(max=torch.sym_min(total, _MOST) if cu_seqlens.dtype == torch.int32 else total)


fit_boundaries_op = define(
    "fit_boundaries(Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=lambda cu_seqlens, total: torch.empty_like(cu_seqlens),
    kernel=_kernel,
    decomposition=_kernel,
)
