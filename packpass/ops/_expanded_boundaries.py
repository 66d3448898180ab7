"""``expanded_boundaries`` (internal): boundaries moved to what tokens expand to, if their values allow that reading.

Reference::

    row = cu_padded or cu                             # what cuts the row of T = len(widths) slots before expansion
    collapsed = min(widths) >= 0 and sum(widths) <= expanded and 0 <= row[0] <= ... <= row[N] <= T
    if exact:                     # known by their name only: they end where the row does, and have no other reading
        starts = [sum(widths[:t]) for t in range(T)]
        wide = any(w != 1 for w, start in zip(widths, starts) if start >= row[N])    # no padding
        other = all(boundary in [*starts, sum(widths)] for boundary in row) and not wide
        collapsed = collapsed and row[N] == T != expanded and not other
    out = remap_cu_seqlens(cu, widths, cu_padded) if collapsed else cu
    if sure:                      # boundaries that could count either row are of no use
        if not collapsed and row[N] <= T and any(w != 1 for w in widths):
            out = [0, expanded, expanded, ..., expanded]

`passes.remap_boundaries` puts it where no declaration says that boundaries count the tokens before expansion: data
whose boundaries count them after it already, or that is none of both, is left as it is. Names alone are believed if the
values allow no other reading: with a tail as long as what the images add, boundaries of the expanded row end at T as
well, but hardly without an image in that tail or a boundary inside one. No host sync, never an error.

``sure`` is for what the code did not cut by boundaries and is about to be (a naive shift, see `passes.pack_shifts`):
where the values do not tell, the row counts as one document, as the code had it.

``check_expansion`` (internal) is for declared rows, where widths that do not fit are an error::

    assert min(widths) >= 0 and sum(widths) <= expanded
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass._compat import assert_async
from packpass.ops._check_cu_seqlens import conditions
from packpass.ops._library import define
from packpass.ops._remap_cu_seqlens import _remap, _sums


def _kernel(
    cu_seqlens: Tensor,
    widths: Tensor,
    expanded: int,
    cu_seqlens_padded: Tensor | None,
    exact: bool,
    sure: bool = False,
) -> Tensor:
    total, row = widths.shape[0], cu_seqlens if cu_seqlens_padded is None else cu_seqlens_padded
    sums = _sums(widths)
    collapsed = (widths >= 0).all() & (sums.select(0, -1) <= expanded)
    for condition, _ in conditions(cu_seqlens, total, cu_seqlens_padded):
        collapsed = collapsed & condition
    if exact:
        last, starts = row.select(0, -1), sums.narrow(0, 0, total)
        wide = ((starts >= last) & (widths != 1)).any()
        among = torch.searchsorted(sums, row.long()).clamp(max=total)
        other = (sums.index_select(0, among) == row).all() & ~wide
        # Sizes as tensors: a comparison of them would be a guard.
        collapsed = collapsed & ~other & (last == total) & (last.new_full((), total) != expanded)
    out = _remap(cu_seqlens, sums, cu_seqlens_padded)
    collapsed = collapsed & (out.select(0, -1) <= torch.iinfo(cu_seqlens.dtype).max)
    out = torch.where(collapsed, out.to(cu_seqlens.dtype), cu_seqlens)
    if sure:
        one_reading = collapsed | (row.select(0, -1) > total) | (widths == 1).all()
        entries = torch.arange(cu_seqlens.shape[0], device=cu_seqlens.device)
        out = torch.where(one_reading, out, torch.where(entries > 0, expanded, 0).to(cu_seqlens.dtype))
    return out


def _fake(
    cu_seqlens: Tensor,
    widths: Tensor,
    expanded: int,
    cu_seqlens_padded: Tensor | None,
    exact: bool,
    sure: bool = False,
) -> Tensor:
    return torch.empty_like(cu_seqlens, memory_format=torch.contiguous_format)


expanded_boundaries_op = define(
    "expanded_boundaries(Tensor cu_seqlens, Tensor widths, SymInt expanded, Tensor? cu_seqlens_padded, bool exact, "
    "bool sure=False) -> Tensor",
    fake=_fake,
    kernel=_kernel,
    decomposition=_kernel,
)


# === The check ==================================================================================================

TOO_MANY = "packpass: tokens expand to more slots than the row has; the features do not match their placeholders"


def _check(widths: Tensor, expanded: int) -> None:
    assert_async((widths >= 0).all() & (widths.sum() <= expanded), TOO_MANY)


def _cpu_check(widths: Tensor, expanded: int) -> None:
    negative = widths < 0
    if negative.any():
        token = int(negative.nonzero()[0])
        raise ValueError(f"packpass: token {token} expands to {int(widths[token])} slots; it can be 0 or more")
    total = int(widths.sum())
    if total > expanded:
        wide = widths > 1
        raise ValueError(
            f"packpass: {widths.shape[0]} tokens expand to {total} slots, {int(widths[wide].sum())} of them for "
            f"{int(wide.sum())} placeholders, but the row has {expanded}; the features do not match their placeholders"
        )


def _check_decomposition(widths: Tensor, expanded: int) -> None:
    (host_check_op if widths.device.type == "cpu" else _check)(widths, expanded)


check_expansion_op = define(
    "check_expansion(Tensor widths, SymInt expanded) -> ()",
    fake=lambda widths, expanded: None,
    kernel=_check,
    cpu_kernel=_cpu_check,
    decomposition=_check_decomposition,
)
# Under a name that has no decomposition, because Inductor refuses to call an op that also has one.
host_check_op = define(
    "host_check_expansion(Tensor widths, SymInt expanded) -> ()",
    fake=lambda widths, expanded: None,
    kernel=_cpu_check,
)
# Without an output they would be dead code to every pass over a graph.
torch.fx.has_side_effect(check_expansion_op)
torch.fx.has_side_effect(host_check_op)
