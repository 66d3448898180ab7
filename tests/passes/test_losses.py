"""Losses and attention inside a document: rewritten for any number of documents, or left alone with eager's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import packpass

# Boundaries and row length: documents of several lengths with gaps, one document, one token each, many.
ROWS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 5, 6, 14, 20), 25),
    ((0, 7), 7),
    ((0, 1, 2, 3), 5),
    (tuple(range(0, 101, 2)), 100),
)
OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager"}
Program = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def _reset() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(row: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, ids and boundaries; slots of no document hold NaN and ids that are no class."""
    bounds, total = ROWS[row]
    rng = torch.Generator().manual_seed(row)
    x = torch.randn(total, 6, generator=rng, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, 6, (total,), generator=rng)
    inside = torch.zeros(total, dtype=torch.bool)
    inside[bounds[0] : bounds[-1]] = True
    x[~inside], ids[~inside] = float("nan"), 10**9
    return x.requires_grad_(), ids, torch.tensor(bounds, dtype=torch.int32)


def per_document(loss: Callable[[Tensor, Tensor], Tensor]) -> Program:
    def program(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
        losses = []
        for s, e in zip(cu[:-1], cu[1:]):
            losses.append(loss(x[s:e], ids[s:e]))
        return torch.stack(losses)

    return program


def mean_cross_entropy(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids)


def summed_cross_entropy(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, reduction="sum", label_smoothing=0.1)


def ignoring(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, ignore_index=2)


def smoothed_mean(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, label_smoothing=0.1)


def smoothed_ignoring(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, ignore_index=2, label_smoothing=0.3)


def nll(x: Tensor, ids: Tensor) -> Tensor:
    return F.nll_loss(x.log_softmax(-1), ids, None, None, 1)


def weighted_sum(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, torch.arange(6, dtype=x.dtype), reduction="sum")


def causal_attention(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1], cu[1:]):
        q = x[s:e].view(-1, 2, 3).transpose(0, 1)
        rows.append(F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True).transpose(0, 1).reshape(-1, 6))
    return torch.cat(rows)


def scaled_attention(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1], cu[1:]):
        q = x[s:e].view(1, -1, 2, 3).transpose(1, 2)
        rows.append(F.scaled_dot_product_attention(q, q, q, scale=0.3)[0].transpose(0, 1).reshape(-1, 6))
    return torch.cat(rows)


REWRITTEN: list[Program] = [
    *map(per_document, (mean_cross_entropy, summed_cross_entropy, ignoring, nll, weighted_sum)),
    *map(per_document, (smoothed_mean, smoothed_ignoring)),
    causal_attention,
    scaled_attention,
]


def weighted_mean(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, torch.arange(6, dtype=x.dtype))


def smoothed_weighted_mean(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, ids, torch.arange(6, dtype=x.dtype), label_smoothing=0.1)


def soft_targets(x: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(x, x.softmax(-1))


def masked_attention(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1], cu[1:]):
        q = x[s:e].view(-1, 2, 3).transpose(0, 1)
        mask = (ids[s:e] > 1)[None, None]
        rows.append(F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(0, 1).reshape(-1, 6))
    return torch.cat(rows)


def attention_to_the_row(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    rows, keys = [], x.detach().nan_to_num().view(-1, 2, 3).transpose(0, 1)
    for s, e in zip(cu[:-1], cu[1:]):
        q = x[s:e].view(-1, 2, 3).transpose(0, 1)
        rows.append(F.scaled_dot_product_attention(q, keys, keys).transpose(0, 1).reshape(-1, 6))
    return torch.cat(rows)


def grouped_attention(x: Tensor, ids: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1], cu[1:]):
        q = x[s:e].view(-1, 2, 3).transpose(0, 1)
        rows.append(F.scaled_dot_product_attention(q, q[:1], q[:1], enable_gqa=True).transpose(0, 1).reshape(-1, 6))
    return torch.cat(rows)


LEFT: list[Program] = [
    *map(per_document, (weighted_mean, smoothed_weighted_mean, soft_targets)),
    masked_attention,
]


def name(program: Program) -> str:
    inner = [cell.cell_contents for cell in program.__closure__ or ()]
    return str(inner[0].__name__ if inner else program.__name__)


def outcome(fn: Program, row: int) -> list[Tensor]:
    """Result and gradient."""
    x, ids, cu = inputs(row)
    result = fn(x, ids, cu)
    cotangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(1), dtype=result.dtype)
    return [result.detach(), *torch.autograd.grad(result, x, cotangent)]


@pytest.mark.parametrize("program", [*REWRITTEN, grouped_attention, attention_to_the_row], ids=name)
def test_rewritten_and_equal(program: Program) -> None:
    counters.clear()
    report = packpass.explain(program, options=OPTIONS)(*inputs(0))
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"], report
    compiled = torch.compile(program, backend=packpass.backend, options=OPTIONS, fullgraph=True)
    graphs = counters["stats"]["unique_graphs"]
    for row in range(len(ROWS)):
        torch.testing.assert_close(outcome(compiled, row), outcome(program, row), equal_nan=True)
    assert counters["stats"]["unique_graphs"] - graphs <= 2


@pytest.mark.parametrize("program", LEFT, ids=name)
def test_left_alone(program: Program) -> None:
    report = packpass.explain(program, options=OPTIONS)(*inputs(0))
    assert not report.rewrites
    assert {r.code for r in report.refusals} & {"no-rule", "body-not-traceable"}, report
    compiled = torch.compile(program, backend=packpass.backend, options=OPTIONS)
    for row in range(len(ROWS)):
        torch.testing.assert_close(outcome(compiled, row), outcome(program, row), equal_nan=True)


def test_a_document_without_counted_targets_has_no_mean() -> None:
    program = per_document(ignoring)
    compiled = torch.compile(program, backend=packpass.backend, options=OPTIONS)
    x, ids, cu = inputs(0)
    ids[2:5] = 2
    want, got = program(x, ids, cu), compiled(x, ids, cu)
    assert want[0].isnan() and not want[1:].isnan().any()
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.slow
def test_through_inductor() -> None:
    program = per_document(mean_cross_entropy)
    compiled = torch.compile(program, backend=packpass.backend, fullgraph=True)
    for row in (0, 3):
        torch.testing.assert_close(outcome(compiled, row), outcome(program, row), equal_nan=True)
