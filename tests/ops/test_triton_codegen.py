"""The ops on CUDA, as far as that goes without a GPU: Triton code generated for fake tensors and compiled to sm_90."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass.ops  # noqa: F401  (registers the ops)

pytest.importorskip("triton", reason="Triton is not installed: no code generation for CUDA here")

from tests.ops.fake_cuda import extern_calls, kernels, launches, to_ptx, triton_source

OPS = torch.ops.packpass
TOKENS = ((1, 16384), torch.int64)
MASK = ((1, 16384), torch.float32)
HIDDEN = ((16384, 1024), torch.bfloat16)
CU = ((513,), torch.int32)


def roll(x: Tensor, cu: Tensor, shift: int = -1, dim: int = -1, fill: Any = 0, padded: Tensor | None = None) -> Tensor:
    return OPS.packed_roll.default(x, cu, shift, dim, fill, padded)


ONE_KERNEL: dict[str, tuple[Callable[..., Any], Any]] = {
    "tokens": (roll, (TOKENS, CU)),
    "backward of tokens": (lambda grad, cu: roll(grad, cu, 1), (MASK, CU)),
    "right by 3, fill -100": (lambda x, cu: roll(x, cu, 3, -1, -100), (TOKENS, CU)),
    "around": (lambda x, cu: roll(x, cu, -2, -1, None), (TOKENS, CU)),
    "padded": (lambda x, cu, padded: roll(x, cu, -1, -1, 0, padded), (TOKENS, CU, CU)),
    "shift beyond the row": (lambda x, cu: roll(x, cu, -20000), (TOKENS, CU)),
    "bool": (roll, (((1, 16384), torch.bool), CU)),
    "float8": (roll, (((1, 16384), torch.float8_e4m3fn), CU)),
    "int64 boundaries": (roll, (TOKENS, ((513,), torch.int64))),
    "producer and consumer": (lambda x, cu: roll(x * 2 + 1, cu).float().sin(), (TOKENS, CU)),
    "two depths of two fields": (
        lambda a, b, cu: [roll(field, cu, -depth) for field in (a, b) for depth in (1, 2)],
        (TOKENS, TOKENS, CU),
    ),
    "position_ids": (lambda cu: OPS.position_ids.default(cu, 16384), (CU,)),
    "segment_ids": (lambda cu: OPS.segment_ids.default(cu, 16384), (CU,)),
    "window_mask": (lambda cu: OPS.window_mask.default(cu, 16384, 1, 0), (CU,)),
    "window_mask and use": (
        lambda x, y, cu: torch.where(OPS.window_mask.default(cu, 16384, 0, 1), x, y),
        (TOKENS, TOKENS, CU),
    ),
    "packed_flip": (lambda x, cu: OPS.packed_flip.default(x, cu, 1), (TOKENS, CU)),
}


@pytest.mark.parametrize("case", ONE_KERNEL)
def test_one_kernel(case: str) -> None:
    function, arguments = ONE_KERNEL[case]
    source = triton_source(function, *arguments)
    assert len(kernels(source)) == 1
    assert launches(source) == 1
    assert extern_calls(source) == []
    assert ".item()" not in source
    ptx = to_ptx(kernels(source)[0])
    assert ".target sm_90" in ptx
    assert "st.global" in ptx
    assert "atom." not in ptx


def test_tokens_are_loaded_and_stored_as_vectors() -> None:
    ptx = to_ptx(kernels(triton_source(roll, TOKENS, CU))[0])
    assert re.search(r"ld\.global\S*\.v2\.b64", ptx)
    assert re.search(r"st\.global\S*\.v2\.b64", ptx)


@pytest.mark.parametrize("fill", [0, None])
@pytest.mark.parametrize("shift", [-1, 3, 40])
def test_hidden_states_search_once_per_row(shift: int, fill: int | None) -> None:
    """Two kernels on purpose: one search per row (1,024 elements share it), then the copy, whose elements load one
    number beside themselves, and themselves once and as vectors."""
    source = triton_source(lambda x, cu: roll(x, cu, shift, 0, fill), HIDDEN, CU)
    search, copy = kernels(source)
    assert launches(source) == 2
    assert extern_calls(source) == []
    assert "bucketize" in search.source
    assert "bucketize" not in copy.source
    assert "xnumel = 16384\n" in search.source
    assert len(re.findall(r"tl\.load", copy.source)) == 2
    assert re.search(r"ld\.global\S*\.v[24]\.b32", to_ptx(copy))


def test_rolls_of_hidden_states_by_one_table() -> None:
    source = triton_source(lambda x, y, cu: [roll(x, cu, -1, 0), roll(y, cu, -1, 0)], HIDDEN, HIDDEN, CU)
    assert sum("bucketize" in kernel.source for kernel in kernels(source)) == 1


def test_many_rolls_with_sums() -> None:
    """Three depths of four fields with the sums of the mask: one kernel, and the second stage of each sum."""

    def function(ids: Tensor, labels: Tensor, positions: Tensor, mask: Tensor, cu: Tensor) -> list[Tensor]:
        results = []
        for depth in (1, 2, 3):
            rolled = roll(mask, cu, -depth)
            results += [roll(field, cu, -depth) for field in (ids, labels, positions)] + [rolled, rolled.sum()]
        return results

    source = triton_source(function, TOKENS, TOKENS, TOKENS, MASK, CU)
    first, *rest = kernels(source)
    assert len(re.findall(r"bucketize_binary_search", first.source)) == 1
    assert len(rest) <= 1
    assert launches(source) <= 1 + 3
    for kernel in (first, *rest):
        assert ".target sm_90" in to_ptx(kernel)


@pytest.mark.parametrize("padded", [False, True])
def test_check_is_one_small_kernel_with_a_device_assertion(padded: bool) -> None:
    def function(cu: Tensor, *cu_padded: Tensor) -> Tensor:
        OPS.check_cu_seqlens.default(cu, 16384, *cu_padded)
        return cu + 1

    source = triton_source(function, CU, *([CU] if padded else []))
    assert launches(source) == 1
    assert extern_calls(source) == []
    (kernel,) = kernels(source)
    assert "device_assert" in kernel.source
    assert "packpass: cu_seqlens must be nondecreasing" in kernel.source
    assert ("packpass: cu_seqlens_padded must be nondecreasing" in kernel.source) is padded
    if padded:
        return  # the same code twice as far as PTX goes, and 10 s to compile
    ptx = to_ptx(kernel)
    assert "__assertfail" in ptx
    # The message is data of the kernel, as a list of character codes.
    assert ", ".join(str(ord(letter)) for letter in "packpass: cu_seqlens") in ptx


def test_check_and_roll_are_two_launches() -> None:
    def function(x: Tensor, cu: Tensor) -> Tensor:
        OPS.check_cu_seqlens.default(cu, 16384)
        return roll(x, cu)

    source = triton_source(function, TOKENS, CU)
    assert launches(source) == 2
    assert extern_calls(source) == []


def test_the_mocks_leave_no_trace() -> None:
    from torch.utils._triton import has_triton

    before = has_triton()
    triton_source(roll, TOKENS, CU)
    assert has_triton() is before
    assert torch.cuda.is_available() is before
    assert torch.compile(lambda x: x + 1)(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
