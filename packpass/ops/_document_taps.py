"""``document_taps`` (internal): a depthwise causal convolution within every document of a packed row.

    out[..., c, p] = bias[c] + sum(weight[c, 0, k] * x[..., c, p - (left - k)] for k in range(K)
                                   if positions[p] >= left - k)

Each tap is a product with a shifted row, which is 0 where it would reach over the document's start. It is plain Python,
which AOTAutograd traces through: the shifts are slices of one padded row, and Inductor fuses all taps into one pass.

On a CPU positions are compared as int32, which fill as many lanes as float32 values do: with int64 generated code takes
nearly twice as long, forward and backward. They are written to memory once (``narrow_positions``, an op that nothing is
fused with), as every channel reads them again. Everything is computed in the order in which the row lies in memory: the
transpose of a row ``[T, C]`` is not turned around and back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define

_HALF = (torch.float16, torch.bfloat16)


def _narrow(positions: Tensor) -> Tensor:
    return positions.to(torch.int32, copy=True)


def _fake_narrow(positions: Tensor) -> Tensor:
    return positions.new_empty(positions.shape, dtype=torch.int32)


narrow_positions_op = define("narrow_positions(Tensor positions) -> Tensor", fake=_fake_narrow, kernel=_narrow)


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
    near = narrow_positions_op(positions) if positions.device.type == "cpu" else positions
    if beside := _channels_beside(x):
        wide, near = wide.mT, near.unsqueeze(-1)

    def per_channel(values: Tensor) -> Tensor:
        values = values.to(wide.dtype)
        return values if beside else values.unsqueeze(-1)

    padded = torch.nn.functional.pad(wide, (0, 0, left, 0) if beside else (left, 0))
    out: Any = None
    for tap in range(weight.shape[-1]):
        moved = padded.narrow(-2 if beside else -1, tap, length)
        if back := left - tap:
            moved = torch.where(near >= back, moved, 0)
        part = moved * per_channel(weight[:, 0, tap])
        out = part if out is None else out + part
    out = out if bias is None else out + per_channel(bias)
    result: Tensor = (out.mT if beside else out).to(dtype)
    return result.contiguous()


def _channels_beside(x: Tensor) -> bool:
    """Do the channels of one slot lie side by side, as in the transpose of a row ``[T, C]``?"""
    step, wide = x.stride(-2), x.shape[-2]
    return isinstance(step, int) and isinstance(wide, int) and step == 1 and wide > 1
