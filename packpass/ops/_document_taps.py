"""``document_taps`` (internal): a depthwise causal convolution within every document of a packed row.

    out[..., c, p] = bias[c] + sum(weight[c, 0, k] * x[..., c, p - (left - k)] for k in range(K)
                                   if positions[p] >= left - k)

Each tap is a product with a shifted row, which is 0 where it would reach over the document's start. It is plain Python,
which AOTAutograd traces through: the shifts are slices, so that Inductor fuses all taps into one pass over the row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def document_taps(
    x: Tensor, weight: Tensor, bias: Tensor | None, positions: Tensor, left: int, dtype: torch.dtype
) -> Tensor:
    """The convolution.

    Args:
        x: ``[..., C, T]``.
        weight: ``[C, 1, K]``.
        bias: ``[C]`` or None.
        positions: int64 ``[T]``, the position of every slot in its document.
        left: slots that the first tap reaches back, at least K - 1.
        dtype: of the result; under autocast it is not that of ``x``.

    Returns:
        ``[..., C, T]``. Halves are summed up as float32.
    """
    length, wide = x.shape[-1], x.float() if x.dtype in _HALF else x
    out: Any = None
    for tap in range(weight.shape[-1]):
        back = left - tap
        if back:
            moved = torch.nn.functional.pad(wide, (back, 0)).narrow(-1, 0, length)
            moved = torch.where(positions >= back, moved, 0)
        else:
            moved = wide
        part = moved * weight[:, 0, tap].to(wide.dtype).unsqueeze(-1)
        out = part if out is None else out + part
    out = out if bias is None else out + bias.to(wide.dtype).unsqueeze(-1)
    result: Tensor = out.to(dtype)
    return result
