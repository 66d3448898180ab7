"""The GPU's side of ``varlen_attention``: on a GPU, and what is asked of torch's kernels where there is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from packpass.ops import _varlen_attention_gpu, varlen_attention
from packpass.ops._varlen_attention_gpu import attended
from tests.ops.test_varlen_attention import CU_K, CU_Q, TOTAL_K, TOTAL_Q, reference, rows


def test_rows_that_the_gpu_kernel_leaves_alone() -> None:
    """Plain torch code, so it can be run here: queries of documents with keys, and keys of documents with queries."""
    queries = attended(CU_Q, CU_K, TOTAL_Q).flatten().nonzero().flatten().tolist()
    keys = attended(CU_K, CU_Q, TOTAL_K).flatten().nonzero().flatten().tolist()
    assert queries == [5, *range(6, 12), *range(12, 18)]
    assert keys == [3, *range(4, 12), *range(12, 16)]


def efficient_forward(
    query: Tensor, key: Tensor, value: Tensor, bias: None, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int,
    dropout: float, kind: int, with_lse: bool, *, scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What the aten op of this name promises, and nothing where it promises nothing."""
    assert query.dim() == 4
    assert query.shape[3] % 8 == 0
    assert (query.shape[0], dropout, with_lse, bias) == (1, 0.0, True, None)
    assert cu_q.dtype == cu_k.dtype == torch.int32
    out = torch.full_like(query, torch.nan)
    lse = query.new_full((cu_q.numel() - 1, query.shape[2], -(-longest_q // 32) * 32), torch.inf)
    for d, ((s, e), (a, b)) in enumerate(zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True)):
        assert e - s <= longest_q
        assert b - a <= longest_k
        assert kind == 0 or a == b or e - s <= b - a, "queries that see none of their document's keys"
        q, k, v = (x[0, i:j].transpose(0, 1) for x, i, j in ((query, s, e), (key, a, b), (value, a, b)))
        scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
        if kind == 2:
            hidden = torch.ones(e - s, b - a, dtype=torch.bool).triu(b - a - (e - s) + 1)
            scores = scores.masked_fill(hidden, -torch.inf)
        lse[d, :, : e - s] = scores.logsumexp(-1)
        out[0, s:e] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out, lse, torch.zeros(()), torch.zeros(()), longest_q, longest_k


def efficient_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: None, out: Tensor, cu_q: Tensor, cu_k: Tensor,
    longest_q: int, longest_k: int, lse: Tensor, dropout: float, seed: Tensor, offset: Tensor, kind: int,
    bias_grad: bool, *, scale: float | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """By the log-sum-exp that was handed over, as the kernel does."""
    grads = [torch.full_like(x, torch.nan) for x in (query, key, value)]
    assert lse.shape[0] == cu_q.numel() - 1
    assert lse.is_contiguous()
    for d, ((s, e), (a, b)) in enumerate(zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True)):
        q, g, o = (x[0, s:e].transpose(0, 1) for x in (query, grad, out))
        k, v = (x[0, a:b].transpose(0, 1) for x in (key, value))
        factor = scale or q.shape[-1] ** -0.5
        scores = q @ k.mT * factor
        if kind == 2:
            hidden = torch.ones(e - s, b - a, dtype=torch.bool).triu(b - a - (e - s) + 1)
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = (scores - lse[d, :, : e - s, None]).exp()
        inner = weights * (g @ v.mT - (g * o).sum(-1, keepdim=True)) * factor
        for into, value_of in zip(grads, (inner @ k, inner.mT @ q, weights.mT @ g), strict=True):
            first, last = (s, e) if into is grads[0] else (a, b)
            into[0, first:last] = value_of.transpose(0, 1)
    return *grads, torch.zeros(())


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("size", [6, 8])
@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_asked_of_the_memory_efficient_kernel(
    causal: bool, key_heads: int, size: int, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain torch code around one aten op, which is written out here: boundaries, the log-sum-exp, what is left 0."""
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", efficient_forward)
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_backward", efficient_backward)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_varlen_attention_gpu, "BLOCKS_FOR_A_WAIT", 0 if read else 1 << 16)
    arguments = rows(key_heads=key_heads, size=size, grad=True)
    expected = reference(*arguments, CU_Q, CU_K, causal)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, arguments, weights)
    q, k, v = (x.detach() for x in arguments)
    out, lse = _varlen_attention_gpu.forward(q, k, v, CU_Q, CU_K, causal, None)
    assert torch.allclose(out, expected, atol=1e-12)
    assert lse.shape == (4, TOTAL_Q)
    got = _varlen_attention_gpu.backward(weights, q, k, v, out, lse, CU_Q, CU_K, causal, None)
    for a, b in zip(got, wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, TOTAL_K, 7), (TOTAL_Q, 0, 7), (TOTAL_Q, TOTAL_K, 1)], ids=str)
def test_a_gpu_without_documents(shape: tuple[int, int, int]) -> None:
    """No kernel is asked: there is nothing to attend to."""
    q, k, cu = torch.randn(shape[0], 4, 8), torch.randn(shape[1], 2, 8), torch.zeros(shape[2], dtype=torch.int32)
    out, lse = _varlen_attention_gpu.forward(q, k, k, cu, cu, True, None)
    assert out.shape == q.shape
    assert not out.any()
    for grad, x in zip(
        _varlen_attention_gpu.backward(q, q, k, k, out, lse, cu, cu, True, None), (q, k, k), strict=True
    ):
        assert grad.shape == x.shape
        assert not grad.any()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gpu(causal: bool, dtype: torch.dtype) -> None:
    arguments = rows(size=64, dtype=dtype)
    here = [x.double().requires_grad_() for x in arguments]
    there = [x.cuda().requires_grad_() for x in arguments]
    expected = reference(*here, CU_Q, CU_K, causal)
    cu_q, cu_k = CU_Q.cuda(), CU_K.cuda()
    weights = torch.randn_like(expected).to(dtype)
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = varlen_attention(*there, cu_q, cu_k, is_causal=causal)
        on_device = weights.to("cuda", non_blocking=True)
        result.backward(on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected.backward(weights.double())
    assert torch.allclose(result.cpu().double(), expected, atol=3e-2)
    for a, b in zip(here, there, strict=True):
        assert torch.allclose(a.grad, b.grad.cpu().double(), atol=5e-2)  # type: ignore[arg-type, union-attr]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 64), (torch.float32, 20), (torch.bfloat16, 20)], ids=str)
def test_gpu_of_what_the_flash_kernel_does_not_take(
    dtype: torch.dtype, size: int, causal: bool, key_heads: int
) -> None:
    arguments = rows(key_heads=key_heads, size=size, dtype=dtype)
    here = [x.double().requires_grad_() for x in arguments]
    there = [x.cuda().requires_grad_() for x in arguments]
    expected = reference(*here, CU_Q, CU_K, causal)
    result = varlen_attention(*there, CU_Q.cuda(), CU_K.cuda(), is_causal=causal)
    weights = torch.randn_like(expected).to(dtype)
    result.backward(weights.cuda())
    expected.backward(weights.double())
    near = 1e-4 if dtype is torch.float32 else 5e-2
    assert torch.allclose(result.cpu().double(), expected, atol=near)
    for a, b in zip(here, there, strict=True):
        assert torch.allclose(a.grad, b.grad.cpu().double(), atol=near)  # type: ignore[arg-type, union-attr]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_gpu_takes_no_double_precision() -> None:
    q, k, v = (x.cuda() for x in rows(size=64, dtype=torch.float64))
    with pytest.raises(TypeError, match="q must be float16, bfloat16 or float32 on cuda"):
        varlen_attention(q, k, v, CU_Q.cuda(), CU_K.cuda())
    q, k, v = (x.float() for x in (q, k, v))
    with pytest.raises(TypeError, match="a window takes float16 or bfloat16 on cuda"):
        varlen_attention(q, k, v, CU_Q.cuda(), CU_K.cuda(), window=(2, 0))


def test_the_longest_document_is_read_only_where_documents_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    cu = torch.tensor([0, 100, 700, 1000])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert _varlen_attention_gpu._bound(cu, 1000, 4) == 1000
    assert _varlen_attention_gpu._bound(cu, 1000, 4096) == 600
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert _varlen_attention_gpu._bound(cu, 1000, 4096) == 1000


def test_where_there_is_packed_attention() -> None:
    takes, half, window = _varlen_attention_gpu.takes, torch.bfloat16, (4, 0)
    assert takes("cpu", torch.float64, 7, window)
    assert takes("cuda", half, 64, window)
    assert takes("cuda", half, 320)
    assert takes("cuda", torch.float32, 64)
    assert not takes("cuda", half, 320, window)
    assert not takes("cuda", torch.float32, 64, window)
    assert not takes("cuda", torch.float64, 64)
    assert not takes("mps", half, 64)
