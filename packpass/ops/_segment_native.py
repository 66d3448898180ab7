"""The C++ kernels of the segment ops (``_segment_kernels.cpp``): compiled by Inductor's compiler, on first use.

A function is compiled for one operation and one dtype at a time, in half a second, and stays in Inductor's cache. Where
there is no compiler every op still has its generic kernel, written in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from packpass._compat import compile_cpp
from packpass.ops._native import source

FLOATS = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bf16"}
TYPES = FLOATS | {
    torch.int64: "int64_t", torch.int32: "int32_t", torch.int16: "int16_t", torch.int8: "int8_t",
    torch.uint8: "uint8_t", torch.bool: "uint8_t",
}  # fmt: skip
# For functions that only move values.
BITS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t"}


@cache
def _function(name: str) -> Callable[..., Any] | None:
    """``packpass_segment_kernel`` compiled for one instance of a template, such as ``scan<Sum, float>``."""
    text = f"{source('_segment_kernels.cpp')}\nPACKPASS_ENTRY({name})\n"
    return compile_cpp(text, "packpass_segment_kernel", "pppp" + "i" * 7)


def run(
    name: str,
    given: Tensor,
    other: Tensor | None,
    out: Tensor,
    cu_seqlens: Tensor,
    shape: tuple[int, int, int],
    option: int = 0,
) -> bool:
    """Fill ``out``; False, with ``out`` untouched, where the function cannot be compiled.

    Args:
        name: an instance of a function template of ``_segment_kernels.cpp``.
        given, other: contiguous, in the dtype that the instance reads.
        shape: (outer, total, inner), see ``_segment_kernels.cpp``.
        option: the function's own: reverse, log, or a length.
    """
    function = _function(name)
    if function is None:
        return False
    cu = cu_seqlens.contiguous()
    function(
        given.data_ptr(),
        None if other is None else other.data_ptr(),
        out.data_ptr(),
        cu.data_ptr(),
        cu.dtype is torch.int64,
        cu.shape[0],
        *shape,
        option,
        torch.get_num_threads(),
    )
    return True


def shape_along(x: Tensor, dim: int) -> tuple[int, int, int]:
    """(outer, total, inner) of a tensor packed along ``dim``."""
    sizes = x.shape
    dim = dim % len(sizes)
    return sizes[:dim].numel(), sizes[dim], sizes[dim + 1 :].numel()
