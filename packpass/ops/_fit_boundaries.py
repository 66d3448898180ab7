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


def _fake(cu_seqlens: Tensor, total: int) -> Tensor:
    return torch.empty_like(cu_seqlens)


def _decomposition(cu_seqlens: Tensor, total: int) -> Tensor:
    fitted: Tensor = (host_fit_op if cu_seqlens.device.type == "cpu" else _kernel)(cu_seqlens, total)
    return fitted


fit_boundaries_op = define(
    "fit_boundaries(Tensor cu_seqlens, SymInt total) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    decomposition=_decomposition,
)
# What it becomes in graphs for a CPU, where the row is not cut by generated code (`boundaries_passed`): a few numbers
# would be a kernel of their own, and a file of C++ to compile. Inductor refuses to call an op with a decomposition.
host_fit_op = define("host_fit_boundaries(Tensor cu_seqlens, SymInt total) -> Tensor", fake=_fake, kernel=_kernel)
