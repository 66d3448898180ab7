"""Dtypes that torch can store but hardly compute with (float8, unsigned ints wider than a byte), moved as plain ints.

The packed ops only move values, so the bits of a value are as good as the value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._arguments import Scalar

PLAIN = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex32, torch.complex64, torch.complex128,
    }
)  # fmt: skip
CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(x: Tensor) -> Tensor:
    """x itself if its dtype is plain, else a view of its bits as an integer dtype of the same width."""
    return x if x.dtype in PLAIN else x.view(CARRIER[x.dtype.itemsize])


def fill_bits(fill: Scalar, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``fill`` as ``as_bits`` shows it in a tensor of ``dtype``: a 0-d tensor."""
    return as_bits(torch.full((), fill, dtype=dtype, device=device))
