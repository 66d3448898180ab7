"""Ops that leave the packed dimension alone, in loops over documents: rewritten, equal to eager, or left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass

from .tokenwise_bodies import BODIES, Body, Params

RULE = "vectorize_segments"
# Boundaries and row length: several documents, gaps, tails and empty documents, one document, one token each.
ROWS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((0, 3, 4, 9), 9),
    ((2, 5, 5, 6, 14, 14, 20, 21), 25),
    ((0, 7), 7),
    ((0, 1, 2, 3, 4, 5), 8),
    (tuple(range(0, 101, 2)), 100),
)
EMPTY = 1
"""The row with an empty document."""
OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager"}


@pytest.fixture(autouse=True)
def _reset() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(row: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Params, Tensor]:
    """Row, ids, parameters and boundaries; slots of no document hold NaN, infinities and ids out of range."""
    bounds, total = ROWS[row]
    rng = torch.Generator().manual_seed(row)
    x = torch.randn(total, 8, generator=rng, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, 8, (total,), generator=rng)
    inside = torch.zeros(total, dtype=torch.bool)
    inside[bounds[0] : bounds[-1]] = True
    x[~inside] = torch.tensor([float("nan"), float("inf")], dtype=dtype).repeat(4)
    ids[~inside] = 10**9
    shapes = {"w": (8, 8), "b": (8,), "h": (2, 8, 4), "t": (40, 8), "one": (1, 8)}
    fresh = torch.Generator().manual_seed(99)
    p = {k: torch.randn(s, generator=fresh, dtype=torch.float64).to(dtype).requires_grad_() for k, s in shapes.items()}
    p["n"] = torch.tensor([5, 0, 2])
    return x.requires_grad_(), ids, p, torch.tensor(bounds, dtype=torch.int32)


def looped(body: Body) -> Callable[..., Tensor]:
    """A loop that writes a body's result into an accumulator."""

    def loop(out: Tensor, x: Tensor, ids: Tensor, p: Params, cu: Tensor) -> Tensor:
        out = out.clone()
        for k in range(len(cu) - 1):
            s, e = cu[k], cu[k + 1]
            out[s:e] = body(x[s:e], ids[s:e], p)
        return out

    return loop


def accumulator(body: Body, row: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Where a body's results go: as long as the row."""
    x, ids, p, cu = inputs(row, dtype)
    with torch.no_grad():
        like = body(x[cu[0] : cu[0] + 1], ids[cu[0] : cu[0] + 1], p)
    return torch.full((len(x), *like.shape[1:]), 7, dtype=like.dtype)


def outcome(fn: Callable[..., Tensor], body: Body, row: int, dtype: torch.dtype = torch.float64) -> list[Tensor | None]:
    """Result and gradients."""
    x, ids, p, cu = inputs(row, dtype)
    result = fn(accumulator(body, row, dtype), x, ids, p, cu)
    leaves = [x, *(v for v in p.values() if v.requires_grad)]
    if result.requires_grad:
        weight = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape).to(result.dtype)
        (result * weight).sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def agree(want: list[Tensor | None], got: list[Tensor | None], rtol: float = 1e-10) -> None:
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if a is None or b is None:  # a whole row gives zeros where no document used a tensor
            left = b if a is None else a
            assert left is None or not left.any(), f"gradient {k}"
            continue
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.allclose(a, b, rtol=rtol, atol=rtol, equal_nan=True), f"{'result' if not k else f'gradient {k}'}"


@pytest.mark.parametrize("name", BODIES)
def test_rewritten_and_equal(name: str) -> None:
    body = BODIES[name]
    fn = looped(body)
    counters.clear()
    compiled = torch.compile(fn, backend=packpass.backend, options=OPTIONS)
    for row in range(len(ROWS)):
        if row == EMPTY and name == "reshaped_to_what_is_left":
            continue  # torch cannot tell what -1 is in an empty document
        want = outcome(fn, body, row)
        assert all(t is None or t.isfinite().all() for t in want)
        agree(want, outcome(compiled, body, row))
    seen = counters["packpass"]
    assert not [key for key in seen if key.startswith("refusal")]
    assert seen[f"rewrite:{RULE}"] == counters["stats"]["unique_graphs"] <= 2


# === Modules =================================================================================================


class Block(nn.Module):
    """What people have in a per-document loop: norms, projections, rotary heads, a gated MLP, embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8, 8, padding_idx=0)
        self.places = nn.Embedding(40, 8)
        self.norm = nn.LayerNorm(8)
        self.rms = nn.RMSNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.qk = nn.Linear(8, 16, bias=False)

    def forward(self, x: Tensor, ids: Tensor, p: Params) -> Tensor:
        x = x + self.tokens(ids) + self.places(torch.arange(x.shape[0], device=x.device))
        q, k = self.qk(self.norm(x)).view(x.shape[0], 2, 2, 4).unbind(1)
        scores = (q * k).sum(-1).softmax(-1)
        return self.mlp(self.rms(x)) + scores.repeat_interleave(4, dim=-1)


def test_modules() -> None:
    torch.manual_seed(0)
    block = Block().double().eval()
    fn = looped(block)
    report = packpass.explain(fn, options=OPTIONS)(accumulator(block, 0), *inputs(0))
    assert [r.rule for r in report.rewrites] == [RULE], report.refusals
    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=packpass.backend, options=OPTIONS)
    for row in range(len(ROWS)):
        results = []
        for call in (fn, compiled):
            block.zero_grad()
            result = outcome(call, block, row)
            results.append([*result, *(q.grad for q in block.parameters())])
        agree(results[0], results[1])


def test_dropout_in_training_is_left_alone() -> None:
    block = Block().double()
    report = packpass.explain(looped(block), options=OPTIONS)(accumulator(block, 0), *inputs(0))
    assert not report.rewrites and "random numbers" in report.refusals[0].reason


@pytest.mark.slow
def test_through_inductor() -> None:
    def body(x: Tensor, i: Tensor, p: Params) -> Tensor:
        h = BODIES["rope_cache"](BODIES["layer_norm"](x, i, p), i, p) + F.embedding(i, p["w"])
        return x + BODIES["mlp"](h, i, p)

    fn = looped(body)
    compiled = torch.compile(fn, backend=packpass.backend, fullgraph=True)
    for row in (0, 1, 2):
        agree(outcome(fn, body, row), outcome(compiled, body, row))


def test_half_precision() -> None:
    body = BODIES["layer_norm"]
    fn = looped(body)
    compiled = torch.compile(fn, backend=packpass.backend, options=OPTIONS, fullgraph=True)
    want, got = (outcome(f, body, 1, torch.bfloat16) for f in (fn, compiled))
    agree(want, got, rtol=2e-2)


@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like, torch.clone])
def test_autocast_in_the_graph(make: Callable[[Tensor], Tensor]) -> None:
    """A product is bf16 there: what goes into a float32 accumulator must be float32 again."""

    def loop(x: Tensor, w: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        out, parts = make(x), []
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for s, e in zip(cu[:-1], cu[1:]):
                out[s:e] = F.linear(x[s:e], w)
                parts.append(x[s:e] @ w)
            return out * 2, torch.cat(parts)

    args = torch.randn(9, 8), torch.randn(8, 8), torch.tensor([0, 3, 4, 9])
    report = packpass.explain(loop, options=OPTIONS)(*args)
    assert report.rewrites
    for want, got in zip(loop(*args), report.result, strict=True):
        assert want.dtype == got.dtype and torch.allclose(want, got, rtol=1e-2)


def test_lists_of_documents() -> None:
    def loop(x: Tensor, ids: Tensor, p: Params, cu: Tensor) -> Tensor:
        parts = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            parts.append(F.linear(F.layer_norm(x[s:e], (8,)), p["w"]) + p["t"][: e - s])
        return torch.cat(parts)

    compiled = torch.compile(loop, backend=packpass.backend, options=OPTIONS, fullgraph=True)
    for row in (0, 1, 2):
        agree([loop(*inputs(row)).detach()], [compiled(*inputs(row)).detach()])


def test_rows_of_one_varying_length() -> None:
    """Torch gives every input of varying length a symbol of its own; that they agree, or which is longer, is guarded,
    and not assumed."""

    def loop(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1], cu[1:]):
            out[s:e] = x[s:e] + y[s:e]
        return out

    compiled = torch.compile(loop, backend=packpass.backend, options=OPTIONS)
    counters.clear()
    for total in (9, 25, 30):
        x, y, cu = torch.randn(total), torch.randn(total), torch.tensor([0, 3, 4, 9])
        assert torch.equal(compiled(x, y, cu), loop(x, y, cu))
    assert counters["packpass"]["rewrite:vectorize_segments"] == counters["stats"]["unique_graphs"] == 2
    y = torch.randn(41)
    assert torch.equal(compiled(x, y, cu), loop(x, y, cu))
    assert counters["packpass"]["rewrite:vectorize_segments"] == counters["stats"]["unique_graphs"] == 3


# === Checks and errors =======================================================================================


def test_a_table_that_is_too_short_raises() -> None:
    body = BODIES["first_rows_of_table"]
    compiled = torch.compile(looped(body), backend=packpass.backend, options=OPTIONS)
    x, ids, p, cu = inputs(0)
    compiled(accumulator(body, 0), x, ids, p, cu)
    with pytest.raises(RuntimeError, match="table is shorter"):
        compiled(accumulator(body, 0), x, ids, {**p, "t": p["t"][:4].detach().requires_grad_()}, cu)


@pytest.mark.parametrize(
    "name", ["embedding", "table_rows", "one_hot", "cross_entropy", "gathered", "picked_by_arange"]
)
def test_ids_out_of_range_inside_a_document_raise(name: str) -> None:
    body = BODIES[name]
    x, ids, p, cu = inputs(0)
    compiled = torch.compile(looped(body), backend=packpass.backend, options=OPTIONS)
    compiled(accumulator(body, 0), x, ids, p, cu)
    ids[4] = 8
    for fn in (looped(body), compiled):
        with pytest.raises((RuntimeError, IndexError)):
            fn(accumulator(body, 0), x, ids, p, cu)


def _two_packed(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return (x @ x.T).softmax(-1).sort(-1).values @ x


def _einsum_pairs(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.einsum("ld,md->lm", x, x) @ x


def _batch_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.batch_norm(x, x.detach().mean(0) * 0, x.detach().mean(0) * 0 + 1)


def _group_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.group_norm(x.T[None], 2)[0].T


def _max_norm(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.embedding(i, p["w"].detach(), max_norm=1.0)


def _scaled_by_frequency(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.embedding(i, p["w"], scale_grad_by_freq=True)


def _dropout(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.dropout(x, 0.5)


def _interpolated(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return F.interpolate(x.T[None], scale_factor=2.0)[0].T[::2]


def _tril(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.ones(len(x), len(x), dtype=x.dtype).tril() @ x


def _outer_pairs(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.outer(x[:, 0], x[:, 0]) @ x


def _flattened_packed(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.flatten(0).view(-1, 8).flip(0)


def _repeated_packed(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x.repeat(2, 1)[: len(x)] * 2


def _chunks_of_the_document(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.cat(x.chunk(2, 0)[::-1], 0)


def _half_a_document_sorted(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return torch.cat((x[:1], x[1:].sort(0).values))


def _masked_select(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x * torch.masked_select(x, x > 0).sum()


def _one_row_table(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x + p["one"][: len(x)]


def _written_chunk(x: Tensor, i: Tensor, p: Params) -> Tensor:
    y = x.detach().clone()
    a, _ = y.chunk(2, -1)
    a.mul_(2)
    return y


def _stale_chunk(x: Tensor, i: Tensor, p: Params) -> Tensor:
    y = x.detach().clone()
    a, b = y.chunk(2, -1)
    y[:, :4] = 0
    return torch.cat((a, b), -1)


def _max_norm_of_a_table(x: Tensor, i: Tensor, p: Params) -> Tensor:
    return x + F.embedding(p["n"], p["w"].detach(), None, 1.0).sum()


LEFT_ALONE: dict[str, Body] = {
    fn.__name__: fn
    for fn in (
        _two_packed, _batch_norm, _group_norm, _max_norm, _scaled_by_frequency, _dropout, _interpolated,
        _chunks_of_the_document, _half_a_document_sorted, _masked_select, _one_row_table, _written_chunk,
        _max_norm_of_a_table, _stale_chunk,
    )
}  # fmt: skip
SLOT_BY_SLOT: dict[str, Body] = {
    fn.__name__: fn for fn in (_einsum_pairs, _tril, _outer_pairs, _flattened_packed, _repeated_packed)
}
"""What a document makes is worked out slot by slot, as there is no form of it for the whole row."""


@pytest.mark.parametrize("name", SLOT_BY_SLOT)
def test_slot_by_slot(name: str) -> None:
    body = SLOT_BY_SLOT[name]
    fn = looped(body)
    for row in range(2):
        report = packpass.explain(fn, options=OPTIONS)(accumulator(body, row), *inputs(row))
        assert [r.rule for r in report.rewrites] == ["ragged_grids"], report.refusals
        agree([fn(accumulator(body, row), *inputs(row)).detach()], [report.result.detach()])


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    body = LEFT_ALONE[name]
    fn = looped(body)
    torch.manual_seed(0)
    report = packpass.explain(fn, options=OPTIONS)(accumulator(body, 0), *inputs(0))
    assert not report.rewrites, report.rewrites
    assert report.refusals and all(r.reason for r in report.refusals)
    torch.manual_seed(0)
    agree([fn(accumulator(body, 0), *inputs(0)).detach()], [report.result.detach()])
