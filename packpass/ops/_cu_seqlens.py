"""Functions on boundaries themselves: ``pad_cu_seqlens`` and ``validate_cu_seqlens``."""

from __future__ import annotations

import torch
from torch import Tensor

from packpass.ops._arguments import check_boundaries, check_int, check_total
from packpass.ops._check_cu_seqlens import raise_if_out_of_order


def pad_cu_seqlens(cu_seqlens: Tensor, multiple_of: int = 64) -> Tensor:
    """Lengthen boundaries to a multiple of ``multiple_of`` entries by repeating the last one.

    The added documents are empty, so every packed op gives the same result; CUDA graphs and statically shaped programs
    see few different lengths. No host sync.

    Args:
        cu_seqlens: int32 or int64, ``[N+1]``.
        multiple_of: the length becomes the next multiple of this number of entries; at least 1.

    Returns:
        Same dtype and device, a new tensor.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, dtype, rank or range.
    """
    check_boundaries("cu_seqlens", cu_seqlens)
    check_int("multiple_of", multiple_of)
    if multiple_of < 1:
        raise ValueError(f"multiple_of must be at least 1, got {multiple_of}")
    missing = -cu_seqlens.shape[0] % multiple_of
    return torch.cat([cu_seqlens, cu_seqlens[-1:].expand(missing)])


def validate_cu_seqlens(cu_seqlens: Tensor, total: int) -> None:
    """Check boundaries completely, values included. Reads the values: waits for the device if they are on one.

    Args:
        cu_seqlens: int32 or int64, ``[N+1]``, any device.
        total: number of slots T of the packed dimension.

    Raises:
        TypeError: wrong kind or dtype.
        ValueError: wrong rank, or an entry out of order; the message names the entry and its value.
    """
    check_boundaries("cu_seqlens", cu_seqlens)
    check_total(total)
    raise_if_out_of_order("cu_seqlens", cu_seqlens, total)
