"""``remap_cu_seqlens``: boundaries of documents whose tokens expand, counted in what they expand to.

    out = [sum(widths[:boundary]) for boundary in cu_seqlens]
    with cu_seqlens_padded, of which widths counts the slots, for the boundaries in tokens:
    out = [cu[0]]
    for d in range(N):
        start = cu_padded[d]
        out.append(out[d] + sum(widths[start : start + cu[d + 1] - cu[d]]))

One running sum and a lookup per boundary: the slots before cu[0] move the first boundary, those of the tail move none,
and empty documents, or documents all of whose tokens vanish, are empty. No host sync.
"""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from packpass._compat import assert_async
from packpass.ops._arguments import check_boundaries, check_same_documents, check_tensor
from packpass.ops._check_cu_seqlens import check_cu_seqlens_op
from packpass.ops._geometry import previous
from packpass.ops._library import define

NEGATIVE = "packpass: widths must be 0 or more tokens"
OVERFLOW = "packpass: the tokens after expansion do not fit the dtype of cu_seqlens"


def _sums(widths: Tensor) -> Tensor:
    """``sum(widths[:i])`` for i = 0 .. T, int64 ``[T+1]``."""
    return torch.cat([widths.new_zeros(1, dtype=torch.int64), widths.cumsum(0, dtype=torch.int64)])


def _remap(cu_seqlens: Tensor, sums: Tensor, cu_seqlens_padded: Tensor | None) -> Tensor:
    """int64 ``[N+1]``. The clamps change nothing for boundaries in order; on a GPU others are caught by an assertion
    that comes later."""
    last = sums.shape[0] - 1
    cu = cu_seqlens.long()
    if cu_seqlens_padded is None:
        return sums.index_select(0, cu.clamp(0, last))
    starts = previous(cu_seqlens_padded.long())
    ends = starts + cu - previous(cu)
    of_document = sums.index_select(0, ends.clamp(0, last)) - sums.index_select(0, starts.clamp(0, last))
    return cu.narrow(0, 0, 1) + of_document.cumsum(0)


def _kernel(cu_seqlens: Tensor, widths: Tensor, cu_seqlens_padded: Tensor | None = None) -> Tensor:
    out = _remap(cu_seqlens, _sums(widths), cu_seqlens_padded)
    assert_async((widths >= 0).all(), NEGATIVE)
    if cu_seqlens.dtype is torch.int32:
        assert_async(out.select(0, -1) <= torch.iinfo(torch.int32).max, OVERFLOW)
    return out.to(cu_seqlens.dtype)


def _cpu_kernel(cu_seqlens: Tensor, widths: Tensor, cu_seqlens_padded: Tensor | None = None) -> Tensor:
    negative = widths < 0
    if negative.any():
        token = int(negative.nonzero()[0])
        raise ValueError(f"packpass: widths[{token}] = {int(widths[token])} is negative; a token expands to 0 or more")
    out = _remap(cu_seqlens, _sums(widths), cu_seqlens_padded)
    if int(out[-1]) > torch.iinfo(cu_seqlens.dtype).max:
        raise ValueError(
            f"packpass: {int(out[-1])} tokens after expansion do not fit cu_seqlens of dtype {cu_seqlens.dtype}; "
            "pass int64 boundaries"
        )
    return out.to(cu_seqlens.dtype)


def _fake(cu_seqlens: Tensor, widths: Tensor, cu_seqlens_padded: Tensor | None = None) -> Tensor:
    return torch.empty_like(cu_seqlens)


def _decomposition(cu_seqlens: Tensor, widths: Tensor, cu_seqlens_padded: Tensor | None = None) -> Tensor:
    # On the CPU the few sums are no work, and the eager kernel's errors say what is wrong.
    on_cpu = cu_seqlens.device.type == "cpu"
    out: Tensor = (host_remap_op if on_cpu else _kernel)(cu_seqlens, widths, cu_seqlens_padded)
    return out


_ARGUMENTS = "(Tensor cu_seqlens, Tensor widths, Tensor? cu_seqlens_padded=None) -> Tensor"
remap_cu_seqlens_op = define(
    f"remap_cu_seqlens{_ARGUMENTS}",
    fake=_fake,
    kernel=_kernel,
    cpu_kernel=_cpu_kernel,
    decomposition=_decomposition,
)
# The eager kernel under a name that has no decomposition, because Inductor refuses to call an op that also has one.
host_remap_op = define(f"host_remap_cu_seqlens{_ARGUMENTS}", fake=_fake, kernel=_cpu_kernel)


@overload
def remap_cu_seqlens(cu_seqlens: Tensor, widths: Tensor) -> Tensor: ...
@overload
def remap_cu_seqlens(cu_seqlens: Tensor, widths: Tensor, *, cu_seqlens_padded: Tensor) -> tuple[Tensor, Tensor]: ...
def remap_cu_seqlens(
    cu_seqlens: Tensor, widths: Tensor, *, cu_seqlens_padded: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Boundaries counted before tokens expand (image placeholders and the like), as they are after it. No host sync.

    Args:
        cu_seqlens: boundaries of the documents in collapsed tokens, int32 or int64, ``[N+1]``, nondecreasing, within
            [0, T].
        widths: how many tokens each collapsed one becomes, int or bool, ``[T]`` or ``[1, T]``, on the device of
            ``cu_seqlens``: 1 for text, the number of features for a placeholder, 0 for a token that vanishes.
        cu_seqlens_padded: the documents' boundaries in slots, where they are padded: document d lies in the first
            ``cu_seqlens[d+1] - cu_seqlens[d]`` of its slots, and ``widths`` counts slots (those that pad usually stay 1
            wide). What the documents' lengths divided by before, they need not divide by after expansion.

    Returns:
        New boundaries ``[N+1]`` in the dtype of ``cu_seqlens``: the number of expanded tokens before each. With
        ``cu_seqlens_padded`` the pair ``(cu_seqlens, cu_seqlens_padded)``, where the first counts the real tokens only.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank, device or length; on the CPU also boundaries
            out of order, negative widths, and sums beyond int32 for int32 boundaries (these name the entry). On a GPU
            asynchronous assertions check the values.
    """
    check_boundaries("cu_seqlens", cu_seqlens)
    check_tensor("widths", widths)
    if widths.dtype.is_floating_point or widths.dtype.is_complex:
        raise TypeError(f"widths must be int or bool, got {widths.dtype}")
    if widths.dim() == 2 and statically_known_true(widths.shape[0] == 1):
        widths = widths.squeeze(0)
    if widths.dim() != 1:
        raise ValueError(f"widths must have one entry per token, [T] or [1, T], got shape {tuple(widths.shape)}")
    if widths.device != cu_seqlens.device:
        raise ValueError(f"widths must be on the device of cu_seqlens ({cu_seqlens.device}), got {widths.device}")
    if cu_seqlens_padded is None:
        check_cu_seqlens_op(cu_seqlens, widths.shape[0])
        remapped: Tensor = remap_cu_seqlens_op(cu_seqlens, widths)
        return remapped
    check_boundaries("cu_seqlens_padded", cu_seqlens_padded, device=cu_seqlens.device)
    check_same_documents(cu_seqlens, cu_seqlens_padded)
    check_cu_seqlens_op(cu_seqlens, widths.shape[0], cu_seqlens_padded)
    return remap_cu_seqlens_op(cu_seqlens, widths, cu_seqlens_padded), remap_cu_seqlens_op(cu_seqlens_padded, widths)
