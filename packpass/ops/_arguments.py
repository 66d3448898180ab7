"""Checks of arguments that need no values: kind, dtype, rank, device, shape, ranges of Python numbers.

They hold at once, in eager mode and while Dynamo traces, and name the argument, what it was and what is allowed. None
of them guards on a dynamic size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

Scalar = bool | int | float | complex

BOUNDARY_DTYPES = (torch.int32, torch.int64)


def check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(value).__name__}")


def check_boundaries(name: str, cu_seqlens: Tensor, *, device: torch.device | None = None) -> None:
    """``cu_seqlens`` is a 1-D int32/int64 tensor with at least one entry, on ``device`` if one is given."""
    check_tensor(name, cu_seqlens)
    if cu_seqlens.dtype not in BOUNDARY_DTYPES:
        raise TypeError(f"{name} must be int32 or int64, got {cu_seqlens.dtype}")
    if cu_seqlens.dim() != 1:
        raise ValueError(f"{name} must have 1 dimension (N + 1 boundaries), got shape {tuple(cu_seqlens.shape)}")
    if statically_known_true(cu_seqlens.shape[0] == 0):
        raise ValueError(f"{name} must have at least 1 entry (N + 1 boundaries of N documents), got 0")
    if device is not None and cu_seqlens.device != device:
        raise ValueError(f"{name} must be on the device of x ({device}), got {cu_seqlens.device}")


def check_same_documents(cu_seqlens: Tensor, cu_seqlens_padded: Tensor) -> None:
    """Both describe the same number of documents, in one dtype."""
    if cu_seqlens_padded.dtype != cu_seqlens.dtype:
        raise TypeError(
            f"cu_seqlens_padded must have the dtype of cu_seqlens ({cu_seqlens.dtype}), got {cu_seqlens_padded.dtype}"
        )
    if statically_known_true(cu_seqlens_padded.shape[0] != cu_seqlens.shape[0]):
        raise ValueError(
            f"cu_seqlens_padded must have as many entries as cu_seqlens ({cu_seqlens.shape[0]}), "
            f"got {cu_seqlens_padded.shape[0]}"
        )


def check_int(name: str, value: object) -> None:
    # bool is an int to Python, but True is never a meant shift or dimension.
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} ({value!r})")


def check_total(total: int) -> None:
    check_int("total", total)
    if statically_known_true(total < 0):
        raise ValueError(f"total must be 0 or more slots, got {total}")


def check_dim(x: Tensor, dim: int) -> int:
    """The packed dimension as a number >= 0."""
    check_int("dim", dim)
    if x.dim() == 0:
        raise ValueError("x must have at least 1 dimension, got a 0-dimensional tensor")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim must lie in [{-x.dim()}, {x.dim() - 1}] for x of shape {tuple(x.shape)}, got {dim}")
    return dim % x.dim()


def check_fill(fill: Scalar, dtype: torch.dtype) -> None:
    """``fill`` is a number that ``dtype`` can hold (floating point may round it, but not overflow)."""
    if not isinstance(fill, bool | int | float | complex | torch.SymInt | torch.SymFloat | torch.SymBool):
        raise TypeError(f"fill must be a number or None (wrap around), got {type(fill).__name__} ({fill!r})")
    if isinstance(fill, bool | torch.SymInt | torch.SymFloat | torch.SymBool) or dtype.is_complex:
        return
    if isinstance(fill, complex):
        raise ValueError(f"fill must be a real number for x of dtype {dtype}, got {fill!r}")
    if dtype.is_floating_point:
        if math.isfinite(fill) and abs(fill) > torch.finfo(dtype).max:
            raise ValueError(f"fill must fit {dtype} (at most {torch.finfo(dtype).max} in magnitude), got {fill!r}")
        return
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if fill != fill or fill in (math.inf, -math.inf) or fill != int(fill) or not low <= fill <= high:
        raise ValueError(f"fill must be an integer in [{low}, {high}] for x of dtype {dtype}, got {fill!r}")
