"""What the tests of the segment ops share: every op as one callable per form, rows, documents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from packpass.ops import (
    _segment_argmax,
    _segment_native,
    _segment_pad,
    _segment_recurrence,
    _segment_reduce,
    _segment_scan,
    _segment_softmax,
    _segment_spread,
    _segment_take,
)

OPS = torch.ops.packpass
# What the dispatcher calls on the CPU (C++), and the form for every other device, here on CPU tensors.
GENERIC: dict[str, Callable[..., Tensor]] = {
    "segment_reduce": _segment_reduce.kernel,
    "segment_argmax": _segment_argmax._kernel,
    "segment_take": _segment_take._kernel,
    "segment_put": _segment_take._put_kernel,
    "segment_spread": _segment_spread._kernel,
    "segment_scan": _segment_scan._kernel,
    "segment_recurrence": _segment_recurrence._kernel,
    "segment_softmax": _segment_softmax._kernel,
    "segment_softmax_backward": _segment_softmax._grad_kernel,
    "segment_pad": _segment_pad._kernel,
    "segment_unpad": _segment_pad._unpad_kernel,
}
FORMS = ["cpu", "generic"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
# (shape, packed dimension) of 30 slots: rows, hidden states, columns that do not fill a block, more than one block.
SHAPES = [((30,), 0), ((1, 30), -1), ((3, 30), 1), ((30, 5), 0), ((2, 30, 3), 1), ((30, 131), -2)]


def op_of(name: str, form: str) -> Callable[..., Tensor]:
    return GENERIC[name] if form == "generic" else getattr(OPS, name).default


def row(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Values near 1 in magnitude with ties, zeros and both signs, exact in every dtype."""
    numbers = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed))
    if dtype is torch.bool:
        return numbers > 0
    return (numbers / 4).to(dtype) if dtype.is_floating_point else numbers.to(dtype)


def transposed(x: Tensor) -> Tensor:
    """The same values, not contiguous if there is more than one dimension."""
    return x.mT.contiguous().mT if x.dim() > 1 else torch.stack([x, x], 1)[:, 0]


def close(a: Tensor, b: Tensor) -> None:
    """Equal up to rounding: a unit in the last place of 16-bit floats, a few of wider ones; NaN equals NaN."""
    tolerance = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 2e-6, torch.float64: 1e-12}
    torch.testing.assert_close(
        a, b, rtol=tolerance.get(a.dtype, 0), atol=1e-6 if a.is_floating_point() else 0, equal_nan=True
    )


@contextmanager
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every C++ function is missing inside the block."""
    with monkeypatch.context() as patch:
        patch.setattr(_segment_native, "_function", lambda name: None)
        yield
