"""``document_taps``: a depthwise causal convolution that stops at documents, however the row lies in memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from packpass.ops import position_ids
from packpass.ops._document_taps import document_taps

CHANNELS = 5
BOUNDS = ((0, 20), (0, 7, 20), (0, 3, 3, 4, 6, 20), (0, 1, 2, 3), (0, 0, 9), (4, 11, 16))


def row(total: int, beside: bool, seed: int = 0) -> Tensor:
    """``[1, C, T]``; ``beside``: the transpose of ``[1, T, C]``."""
    values = torch.randn(1, CHANNELS, total, generator=torch.Generator().manual_seed(seed))
    return (values.mT.contiguous().mT if beside else values).requires_grad_()


def taps(x: Tensor, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor, left: int) -> Tensor:
    return document_taps(x, weight, bias, position_ids(cu_seqlens, x.shape[-1]), left, x.dtype)


def alone(x: Tensor, weight: Tensor, bias: Tensor | None, bounds: tuple[int, ...], left: int) -> Tensor:
    """Every document by itself; what lies outside of all is in a document of its own."""
    ends = (0, *bounds, x.shape[-1])
    parts = [F.pad(x[..., a:b], (left, 0)) for a, b in pairwise(ends) if b > a]
    return torch.cat([F.conv1d(p, weight, bias, groups=CHANNELS)[..., : p.shape[-1] - left] for p in parts], -1)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("compiled", "bias"),
    [(False, False), (False, True), (True, False), pytest.param(True, True, marks=pytest.mark.slow)],
)
def test_every_document_is_as_if_alone(compiled: bool, beside: bool, bias: bool) -> None:
    call = torch.compile(taps) if compiled else taps
    weight = torch.randn(CHANNELS, 1, 4, generator=torch.Generator().manual_seed(1), requires_grad=True)
    offset = torch.ones(CHANNELS, requires_grad=True) if bias else None
    wanted = [weight, *([offset] if offset is not None else [])]
    for bounds in BOUNDS:
        for left in (3, 5):
            x = row(max(20, bounds[-1]), beside)
            got = call(x, weight, offset, torch.tensor(bounds), left)
            want = alone(x, weight, offset, bounds, left)
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
            seed = torch.randn(got.shape, generator=torch.Generator().manual_seed(2))
            pairs = [torch.autograd.grad((out * seed).sum(), [x, *wanted]) for out in (got, want)]
            for a, b in zip(*pairs, strict=True):
                torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_nan_and_infinity_stay_in_their_document(compiled: bool, beside: bool) -> None:
    call = torch.compile(taps) if compiled else taps
    x = row(20, beside)
    with torch.no_grad():
        x[..., 6], x[..., 19] = float("nan"), float("inf")
    weight = torch.randn(CHANNELS, 1, 4, requires_grad=True)
    out = call(x, weight, None, torch.tensor([0, 7, 20]), 3)
    assert out[..., 6].isnan().all()
    assert out[..., 7:19].isfinite().all()
    assert out[..., :6].isfinite().all()
    (gradient,) = torch.autograd.grad(out[..., 7:19].sum(), x)
    assert gradient.isfinite().all()
    assert not gradient[..., :7].any()


@pytest.mark.parametrize("beside", [False, True])
def test_the_result_lies_as_that_of_a_convolution(beside: bool) -> None:
    """Views of it that eager makes can be made."""
    out = taps(row(20, beside), torch.ones(CHANNELS, 1, 4), None, torch.tensor([0, 7, 20]), 3)
    assert out.is_contiguous()
    assert out.view(CHANNELS, 20).shape == (CHANNELS, 20)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_up_as_float32(dtype: torch.dtype) -> None:
    x, weight, cu_seqlens = row(20, True).detach().to(dtype), torch.randn(CHANNELS, 1, 4), torch.tensor([0, 7, 20])
    want = taps(x.float(), weight.to(dtype).float(), None, cu_seqlens, 3).to(dtype)
    assert torch.equal(taps(x, weight.to(dtype), None, cu_seqlens, 3), want)


@pytest.mark.parametrize("sizes", [(1, 1, 8), (2, 3, CHANNELS, 8), (CHANNELS, 8)])
def test_rows_of_other_shapes(sizes: tuple[int, ...]) -> None:
    channels, bounds = sizes[-2], (0, 2, 8)
    x, weight = torch.randn(sizes), torch.randn(channels, 1, 3)
    for given in (x, x.mT.contiguous().mT):
        out = taps(given, weight, None, torch.tensor(bounds), 2)
        parts = [F.pad(x[..., a:b], (2, 0)).reshape(-1, channels, b - a + 2) for a, b in pairwise(bounds)]
        want = torch.cat([F.conv1d(p, weight, groups=channels) for p in parts], -1).reshape(sizes)
        torch.testing.assert_close(out, want)
