"""What the segment ops become on CUDA, as far as that goes without a GPU: kernels generated for fake tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.segments import OPS

pytest.importorskip("triton", reason="Triton is not installed: no code generation for CUDA here")

from tests.ops.fake_cuda import extern_calls, kernels, triton_source

HIDDEN = ((16384, 1024), torch.bfloat16)
WIDE = ((513, 1024), torch.bfloat16)
ROW = ((16384,), torch.float32)
NARROW = ((513,), torch.float32)
CU = ((513,), torch.int32)

# (function, arguments, kernels)
FUSED: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "spread": (lambda x, v, cu: x - OPS.segment_spread(v * 2, cu, 16384), (ROW, NARROW, CU), 1),
    # The document of each slot is worth a kernel of its own: 1024 columns read it.
    "wide spread": (lambda x, v, cu: x - OPS.segment_spread(v, cu, 16384), (HIDDEN, WIDE, CU), 2),
    "take": (lambda x, p, cu: OPS.segment_take(x * 2, cu, p, 0) + 1, (HIDDEN, ((513,), torch.int64), CU), 1),
}


@pytest.mark.parametrize("case", FUSED)
def test_fused(case: str) -> None:
    function, arguments, count = FUSED[case]
    source = triton_source(function, *arguments)
    assert not extern_calls(source)
    assert len(kernels(source)) <= count


OPAQUE: dict[str, tuple[Callable[..., Any], Any]] = {
    "segment_reduce": (lambda x, cu: OPS.segment_reduce(x, cu, "sum", 0), (HIDDEN, CU)),
    "segment_scan": (lambda x, cu: OPS.segment_scan(x, cu, "max", 0, True), (ROW, CU)),
    "segment_softmax": (lambda x, cu: OPS.segment_softmax(x, cu, 0, True), (HIDDEN, CU)),
}


@pytest.mark.parametrize("case", OPAQUE)
def test_called_as_they_are(case: str) -> None:
    """Their kernels are torch's own ops, none of which waits for the device."""
    function, arguments = OPAQUE[case]
    source = triton_source(function, *arguments)
    assert any(case in call for call in extern_calls(source))
    assert not kernels(source)
