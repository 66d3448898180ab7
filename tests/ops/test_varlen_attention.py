"""``varlen_attention`` against plain softmax attention on every document alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck

from packpass.ops import _varlen_attention_cpu, varlen_attention

OPS = torch.ops.packpass
# Empty on one side, on both, one token, more queries than keys and the other way round; tails at both ends of both.
CU_Q = torch.tensor([1, 5, 5, 6, 12, 12, 18], dtype=torch.int32)
CU_K = torch.tensor([2, 2, 3, 4, 12, 12, 16], dtype=torch.int32)
TOTAL_Q, TOTAL_K = 20, 19


def reference(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool, scale: float | None = None,
    window: tuple[int, int] = (-1, -1),
) -> Tensor:  # fmt: skip
    groups = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    for (start, stop), (first, last) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        for p in range(start, stop):
            own = last - 1 - (stop - 1 - p)
            seen = min(last, own + 1 + (0 if causal else window[1])) if causal or window[1] >= 0 else last
            begin = max(first, own - window[0]) if window[0] >= 0 else first
            if seen <= begin:
                continue
            for head in range(q.shape[1]):
                scores = k[begin:seen, head // groups] @ q[p, head] * (scale or q.shape[2] ** -0.5)
                out[p, head] = torch.softmax(scores, 0) @ v[begin:seen, head // groups]
    return out


def rows(
    heads: int = 4, key_heads: int = 2, size: int = 8, dtype: torch.dtype = torch.double, grad: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q = torch.randn(TOTAL_Q, heads, size, dtype=dtype)
    k, v = (torch.randn(TOTAL_K, key_heads, size, dtype=dtype) for _ in range(2))
    return tuple(x.requires_grad_(grad) for x in (q, k, v))  # type: ignore[return-value]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_values(causal: bool, key_heads: int, scale: float | None) -> None:
    q, k, v = rows(key_heads=key_heads)
    result = varlen_attention(q, k, v, CU_Q, CU_K, is_causal=causal, scale=scale)
    expected = reference(q, k, v, CU_Q, CU_K, causal, scale)
    assert torch.allclose(result, expected, atol=1e-12)
    assert result.is_contiguous()
    assert expected.abs().sum() > 0
    tail = [0, 18, 19]
    assert (result[tail] == 0).all()
    assert (result[1:5] == 0).all()  # a document without keys


WINDOWS = [(2, -1), (0, 0), (-1, 1), (1, 2), (30, 30), (3, 0)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows(causal: bool, window: tuple[int, int]) -> None:
    q, k, v = rows(grad=True)
    result = varlen_attention(q, k, v, CU_Q, CU_K, is_causal=causal, window=window)
    expected = reference(q, k, v, CU_Q, CU_K, causal, None, window)
    assert torch.allclose(result, expected, atol=1e-12)
    weights = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(x, (q, k, v), weights) for x in (result, expected)), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    arguments = (q, k, v, CU_Q, CU_K, causal, None, *window)
    torch.library.opcheck(OPS.varlen_attention_forward.default, arguments)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 5e-3)], ids=str
)
@pytest.mark.parametrize("causal", [False, True])
def test_dtypes(dtype: torch.dtype, tolerance: float, causal: bool) -> None:
    q, k, v = rows(dtype=dtype)
    result = varlen_attention(q, k, v, CU_Q, CU_K, is_causal=causal)
    assert result.dtype is dtype
    expected = reference(q.double(), k.double(), v.double(), CU_Q, CU_K, causal)
    assert torch.allclose(result.double(), expected, atol=tolerance)


def test_one_set_of_boundaries_serves_both() -> None:
    q, k, v = rows()
    k, v = torch.cat((k, k[:1])), torch.cat((v, v[:1]))
    assert torch.allclose(
        varlen_attention(q, k, v, CU_Q.long(), is_causal=True), reference(q, k, v, CU_Q, CU_Q, True), atol=1e-12
    )


@pytest.mark.parametrize("boundaries", [[3], [4, 4, 4], [0, 20], list(range(20)), [20, 20]])
@pytest.mark.parametrize("causal", [False, True])
def test_layouts(boundaries: list[int], causal: bool) -> None:
    cu = torch.tensor(boundaries)
    q, _, v = rows(key_heads=4)
    k, v = q.flip(0), torch.cat((v, v[:1]))
    assert torch.allclose(
        varlen_attention(q, k, v, cu, is_causal=causal), reference(q, k, v, cu, cu, causal), atol=1e-12
    )


@pytest.mark.parametrize("key_heads", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_documents_of_one_length(causal: bool, key_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side and apart, with as many keys and with more: small ones share a call, bit for bit as one by one."""
    cu_q = torch.tensor([0, 3, 6, 8, 11, 11, 13, 16, 19])
    cu_k = torch.tensor([0, 3, 6, 8, 13, 13, 15, 18, 19])
    seen = []
    for few in (_varlen_attention_cpu.FEW_BYTES, 0):
        monkeypatch.setattr(_varlen_attention_cpu, "FEW_BYTES", few)
        q, k, v = rows(key_heads=key_heads, grad=True)
        out = varlen_attention(q, k, v, cu_q, cu_k, is_causal=causal)
        torch.manual_seed(1)
        seen.append((out, *torch.autograd.grad(out, (q, k, v), torch.randn_like(out))))
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert torch.allclose(seen[0][0], reference(q, k, v, cu_q, cu_k, causal), atol=1e-12)


def test_strides() -> None:
    """Views of one projection, heads in another order in memory, and a last dimension that is not dense."""
    torch.manual_seed(0)
    fused = torch.randn(TOTAL_Q, 3, 4, 8, dtype=torch.double)
    layouts = {
        "fused": fused.unbind(1),
        "heads first": [x.transpose(0, 1).contiguous().transpose(0, 1) for x in fused.unbind(1)],
        "strided": [x.transpose(1, 2).contiguous().transpose(1, 2) for x in fused.unbind(1)],
    }
    expected = reference(*fused.unbind(1), CU_Q, CU_Q, True)  # type: ignore[arg-type]
    for q, k, v in layouts.values():
        assert torch.allclose(varlen_attention(q, k, v, CU_Q, is_causal=True), expected, atol=1e-12)
    weights = torch.randn_like(expected)
    grads = []
    for views in layouts.values():
        q, k, v = (x.detach().requires_grad_() for x in views)
        out = varlen_attention(q, k, v, CU_Q, is_causal=True)
        grads.append(torch.autograd.grad(out.transpose(1, 2), (q, k, v), weights.transpose(1, 2)))
    for other in grads[1:]:
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(grads[0], other, strict=True))


# === Nothing passes from one document to another ================================================================


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("causal", [False, True])
def test_bad_values_stay_in_their_document(bad: float, causal: bool) -> None:
    cu = torch.tensor([1, 6, 6, 7, 13, 18])
    q, k, v = (torch.randn(20, 2, 8) for _ in range(3))
    clean = [x.clone().requires_grad_() for x in (q, k, v)]
    dirty = [x.clone() for x in (q, k, v)]
    for x in dirty:
        x[7:13] = bad
        x[0] = x[18:] = bad  # the tail
        x.requires_grad_()
    results = [varlen_attention(*x, cu, is_causal=causal) for x in (clean, dirty)]
    others = torch.cat((torch.arange(7), torch.arange(13, 20)))
    assert torch.equal(results[0][others], results[1][others])
    assert results[1][7:13].isnan().all()
    for result in results:
        result.sum().backward()
    for a, b in zip(clean, dirty, strict=True):
        assert torch.equal(a.grad[others], b.grad[others])  # type: ignore[index]
        assert (b.grad[[0, 18, 19]] == 0).all()  # type: ignore[index]


# === Gradients and registration =================================================================================


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_gradcheck(causal: bool, key_heads: int) -> None:
    q, k, v = rows(heads=2, key_heads=key_heads, size=3, grad=True)
    assert gradcheck(lambda q, k, v: varlen_attention(q, k, v, CU_Q, CU_K, is_causal=causal), (q, k, v))


def test_no_second_derivative() -> None:
    q, k, v = rows(grad=True)
    grads = torch.autograd.grad(varlen_attention(q, k, v, CU_Q, CU_K).sum(), (q, k, v), create_graph=True)
    with pytest.raises(NotImplementedError, match="can be differentiated once"):
        grads[0].sum().backward()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(causal: bool, dtype: torch.dtype) -> None:
    arguments: tuple[Any, ...] = (*rows(dtype=dtype, grad=dtype is torch.float32), CU_Q, CU_K, causal, None)
    torch.library.opcheck(OPS.varlen_attention.default, arguments)
    torch.library.opcheck(OPS.varlen_attention_forward.default, arguments)
    q, k, v = (x.detach() for x in arguments[:3])
    out, lse = OPS.varlen_attention_forward(q, k, v, *arguments[3:])
    torch.library.opcheck(
        OPS.varlen_attention_backward.default, (torch.randn_like(out), q, k, v, out, lse, *arguments[3:])
    )


def test_ops_are_compliant() -> None:
    for name in ("varlen_attention", "varlen_attention_forward", "varlen_attention_backward"):
        assert torch.Tag.pt2_compliant_tag in getattr(OPS, name).default.tags
    assert str(OPS.varlen_attention.default._schema) == (
        "packpass::varlen_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
        "bool is_causal, float? scale, int left=-1, int right=-1) -> Tensor"
    )


# === Compiled ===================================================================================================


def test_compiled_once_for_all_sizes() -> None:
    """One op in Dynamo's graph; one graph for any number of documents, one included, and of slots."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")

    def call(x: Tensor, cu: Tensor) -> Tensor:
        q, k, v = x.unbind(1)
        return varlen_attention(q * 2, k, v, cu, is_causal=True) + 1

    compiled = torch.compile(call, backend=counter, fullgraph=True, dynamic=True)
    torch.manual_seed(0)
    for boundaries in ([0, 3, 9, 9, 30], [0, 40], [1, 2, 3, 19], [0, 7, 20, 33], [5, 5]):
        total = boundaries[-1] + 1
        x = torch.randn(total, 3, 2, 8, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        cu = torch.tensor(boundaries)
        result, expected = compiled(x, cu), call(twin, cu)
        assert torch.allclose(result, expected, atol=1e-5)
        result.square().sum().backward()
        expected.square().sum().backward()
        assert torch.allclose(x.grad, twin.grad, atol=1e-4)  # type: ignore[arg-type]
    assert counter.frame_count == 1
    calls = [node.target for node in counter.graphs[0].graph.nodes if "attention" in str(node.target)]
    assert calls == [OPS.varlen_attention.default]


# === Arguments ==================================================================================================


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": [1.0]}, TypeError, "q must be a Tensor, got list"),
        ({"q": torch.zeros(20, 8)}, ValueError, "q must have 3 dimensions"),
        ({"q": torch.zeros(20, 4, 8, dtype=torch.int64)}, TypeError, "q must have a floating dtype"),
        ({"v": torch.zeros(19, 2, 8)}, TypeError, "v must have the dtype of q"),
        ({"k": torch.zeros(19, 2, 4, dtype=torch.double)}, ValueError, "k must have the head size of q (8), got 4"),
        ({"k": torch.zeros(18, 2, 8, dtype=torch.double)}, ValueError, "k and v must have the same shape"),
        ({"q": torch.zeros(20, 3, 8, dtype=torch.double)}, ValueError, "the heads of k (2) must divide those of q (3)"),
        ({"cu_seqlens_q": CU_Q.double()}, TypeError, "cu_seqlens_q must be int32 or int64"),
        ({"cu_seqlens_k": CU_K[None]}, ValueError, "cu_seqlens_k must have 1 dimension"),
        ({"cu_seqlens_k": CU_K[1:]}, ValueError, "as many entries as cu_seqlens_q (7), got 6"),
        ({"cu_seqlens_q": CU_Q.flip(0)}, ValueError, "boundaries must not decrease"),
        ({"cu_seqlens_k": CU_K + 9}, ValueError, "is beyond the 19 slots"),
        ({"cu_seqlens_k": None, "cu_seqlens_q": CU_Q + 2}, ValueError, "is beyond the 19 slots"),
        ({"q": torch.zeros(20, 4, 8, dtype=torch.double, device="meta")}, ValueError, "k must be on the device of q"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    q, k, v = rows()
    arguments = {"q": q, "k": k, "v": v, "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, **change}
    with pytest.raises(error) as caught:
        varlen_attention(**arguments)
    assert message in str(caught.value)
