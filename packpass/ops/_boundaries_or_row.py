"""``boundaries_or_row`` (internal): boundaries that are used only if they can be boundaries of this row.

Reference::

    fits = cu[0] >= 0 and cu is nondecreasing and cu[-1] <= total (and every document fits its padded slots)
    out = cu if fits else [0, total, total, ..., total]

Passes put it before boundaries that were recognised by their name or at an attention call. If the values turn out not
to cut this row (a shard of it under context parallelism, say), the row counts as one document, which is what the
code without boundaries means. A declaration is checked instead, see `check_cu_seqlens`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._check_cu_seqlens import conditions
from packpass.ops._library import define


def _kernel(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None, padded: bool) -> Tensor:
    wanted = cu_seqlens_padded if padded and cu_seqlens_padded is not None else cu_seqlens
    fits = torch.ones((), dtype=torch.bool, device=cu_seqlens.device)
    for condition, _ in conditions(cu_seqlens, total, cu_seqlens_padded):
        fits = fits & condition
    entries = torch.arange(wanted.shape[0], device=wanted.device)
    row = torch.where(entries > 0, total, 0).to(wanted.dtype)
    return torch.where(fits, wanted, row)


def _fake(cu_seqlens: Tensor, total: int, cu_seqlens_padded: Tensor | None, padded: bool) -> Tensor:
    return torch.empty_like(cu_seqlens, memory_format=torch.contiguous_format)


boundaries_or_row_op = define(
    "boundaries_or_row(Tensor cu_seqlens, SymInt total, Tensor? cu_seqlens_padded, bool padded) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    decomposition=_kernel,
)
