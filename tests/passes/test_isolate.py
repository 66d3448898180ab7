"""Code that mixes the tokens of a packed row, made to stop at documents: as if each document were alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass
from packpass.engine import unpadded
from packpass.ops._document_plans import several_batches, stretches

from . import isolated_programs as programs

ON: dict[str, Any] = {"packpass.isolate": True, "packpass.inner_backend": "eager"}
BATCHES = ((0, 7, 20), (0, 3, 3, 9, 31), (0, 1, 25))


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def alone(program: programs.Program, x: Tensor, weight: Tensor, bounds: tuple[int, ...]) -> Tensor:
    """Document by document; what lies outside of the boundaries is a document, too."""
    spans = pairwise((0, *bounds, x.shape[1]))
    return torch.cat([program(x[:, a:b], weight) for a, b in spans if b > a], 1)


def gradients(out: Tensor, *leaves: Tensor) -> list[Tensor]:
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((out * seed).sum(), leaves, allow_unused=True)
    return [g if g is not None else torch.zeros_like(x) for g, x in zip(found, leaves, strict=True)]


def check(compiled: Any, program: programs.Program, bounds: tuple[int, ...], total: int | None = None) -> None:
    total = bounds[-1] if total is None else total
    rng = torch.Generator().manual_seed(total)
    x = torch.randn(1, total, programs.WIDTH, generator=rng, requires_grad=True)
    weight = (torch.randn(8, 8, 4, generator=rng) * 0.4).requires_grad_()
    out = compiled(x, weight, torch.tensor(bounds, dtype=torch.int32))
    want = alone(program, x, weight, bounds)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-4)
    for got, expected in zip(gradients(out, x, weight), gradients(want, x, weight), strict=True):
        torch.testing.assert_close(got, expected, atol=3e-5, rtol=1e-4)


def compiled_with(program: programs.Program, options: dict[str, Any] = ON) -> Any:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return program(packpass.packed(x, cu_seqlens, dim=1), weight)

    return torch.compile(forward, backend=packpass.backend, options=options)


@pytest.mark.parametrize("program", programs.REWRITTEN, ids=lambda p: p.__name__)
def test_every_document_is_as_if_alone(program: programs.Program) -> None:
    compiled = compiled_with(program)
    for bounds in BATCHES[:2] if program in programs.ONE_LENGTH else BATCHES:
        check(compiled, program, bounds)
    assert counters["packpass"]["rewrite:isolate"], counters["packpass"]
    assert not [key for key in counters["packpass"] if key.startswith("refusal")]
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("program", [programs.dense, programs.causal_attention, programs.sines])
def test_what_lies_outside_of_the_boundaries_is_a_document(program: programs.Program) -> None:
    check(compiled_with(program), program, (2, 6, 11), total=15)


@pytest.mark.parametrize("program", [programs.depthwise, programs.running_sum])
def test_one_document_is_the_row(program: programs.Program) -> None:
    check(compiled_with(program), program, (0, 12))


def test_code_for_multiples_gets_multiples() -> None:
    compiled = compiled_with(programs.chunks_of_multiples)
    for bounds in ((0, 7, 32), (0, 3, 3, 9, 48), (0, 48, 64)):
        check(compiled, programs.chunks_of_multiples, bounds)
    assert counters["packpass"]["rewrite:isolate"]
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.slow
def test_documents_of_more_chunks_than_the_loop_was_traced_for() -> None:
    compiled = compiled_with(programs.loop_over_chunks)
    for bounds in ((0, 7, 16), (0, 3, 32), (0, 20, 31), (0, 17, 50), (0, 40, 64)):
        check(compiled, programs.loop_over_chunks, bounds)
    assert counters["packpass"]["rewrite:isolate"]


def test_boundaries_by_their_name() -> None:
    def forward(hidden_states: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.dense(hidden_states, weight)

    check(torch.compile(forward, backend=packpass.backend, options=ON), programs.dense, (0, 4, 15))


def test_boundaries_by_their_name_that_fit_no_row_are_one_document() -> None:
    def forward(hidden_states: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.dense(hidden_states, weight)

    compiled = torch.compile(forward, backend=packpass.backend, options=ON)
    x, weight = torch.randn(1, 12, 8), torch.randn(8, 8, 4)
    compiled(x, weight, torch.tensor([0, 5, 12]))
    torch.testing.assert_close(compiled(x, weight, torch.tensor([0, 5, 99])), programs.dense(x, weight))


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_parts_are_compiled_once(inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = unpadded.compile_for
    monkeypatch.setattr(unpadded, "compile_for", lambda *args: seen.append(args) or real(*args))
    compiled = compiled_with(programs.several_parts, {**ON, "packpass.inner_backend": inner})
    for bounds in BATCHES:
        check(compiled, programs.several_parts, bounds)
    assert counters["stats"]["unique_graphs"] <= 2
    assert len(seen) <= 2


@pytest.mark.slow
def test_a_graph_that_needs_no_plan_goes_to_inductor_as_it_is() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        h = programs.causal_attention(programs.depthwise(x, weight), weight)
        return programs.learned_positions(h, weight)

    compiled = compiled_with(program, {"packpass.isolate": True})
    for bounds in BATCHES[:2]:
        check(compiled, program, bounds)
    assert counters["packpass"]["rewrite:isolate"] >= 3


@pytest.mark.parametrize("program", [programs.several_parts, programs.dense, programs.chunks])
def test_under_autocast(program: programs.Program) -> None:
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return program(x, weight).float()

    compiled = compiled_with(forward)
    x, weight, cu = torch.randn(1, 20, 8), torch.randn(8, 8, 4) * 0.4, torch.tensor([0, 7, 20])
    out = compiled(x, weight, cu)
    want = alone(forward, x, weight, (0, 7, 20))
    assert (out - want).abs().max() <= 0.03 * want.abs().max()
    assert counters["packpass"]["rewrite:isolate"]


def test_what_the_inner_backend_cannot_compile_runs_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    real = unpadded.compile_for

    def failing(inner: Any, gm: Any, inputs: Any, sizes: Any) -> Any:
        if any("packpass_slots" in node.name for node in gm.graph.nodes):
            raise NotImplementedError("no such kernel")
        return real(inner, gm, inputs, sizes)

    monkeypatch.setattr(unpadded, "compile_for", failing)
    x, weight, cu = torch.randn(1, 20, 8), torch.randn(8, 8, 4), torch.tensor([0, 7, 20])
    compiled = compiled_with(programs.dense)
    with pytest.warns(UserWarning, match="no such kernel"):
        out = compiled(x, weight, cu)
    torch.testing.assert_close(out, programs.dense(x, weight))
    torch.testing.assert_close(compiled(x, weight, cu), out)


SKEWED = (0, 3, 3, 63, *range(64, 90), 92, 95, 101)
"""One long document among many short ones."""


@pytest.mark.parametrize("program", [programs.dense, programs.running_largest, programs.chunks, programs.sorted_row])
def test_documents_of_very_different_lengths_are_several_batches(program: programs.Program) -> None:
    compiled = compiled_with(program)
    for bounds in (BATCHES[1], SKEWED, (*SKEWED, 190, 191, 192), BATCHES[1]):
        check(compiled, program, bounds)
    check(compiled, program, SKEWED[1:], total=105)
    assert not [key for key in counters["packpass"] if key.startswith("refusal")]
    assert counters["stats"]["unique_graphs"] <= 2


def test_batches_hold_every_document_once_and_cost_little() -> None:
    documents = stretches(torch.tensor(SKEWED), 105)
    parts = several_batches(documents, 105, lambda longest, total: longest)
    assert parts is not None
    assert sorted(d for part in parts for d in part) == documents
    assert sum(len(part) * max(n for _, n in part) for part in parts) < 2 * 105
    assert several_batches(stretches(torch.tensor([0, 30, 60, 100]), 105), 105, lambda longest, total: longest) is None
    assert several_batches(documents, 105, lambda longest, total: total) is None  # code for one length


class Block(nn.Module):
    """A Conformer block: half a feed-forward, attention, a convolution both ways, half a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.gate, self.conv = nn.Linear(8, 16), nn.Conv1d(8, 8, 5, padding=2, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = nn.functional.glu(self.gate(self.norms[1](x)))
        x = x + nn.functional.silu(self.conv(h.mT).mT)
        return self.norms[2](x + 0.5 * self.second(x))


@pytest.mark.slow
def test_a_conformer_block() -> None:
    torch.manual_seed(0)
    block = Block()
    compiled = compiled_with(lambda x, weight: block(x) + 0 * weight.sum())
    for bounds in BATCHES:
        check(compiled, lambda x, weight: block(x) + 0 * weight.sum(), bounds)
    assert counters["stats"]["unique_graphs"] <= 2


def test_the_report_says_what_and_where() -> None:
    def forward(x: Tensor, weight: Tensor, cu_seqlens: Tensor) -> Tensor:
        return programs.several_parts(packpass.packed(x, cu_seqlens, dim=1), weight)

    args = (torch.randn(1, 20, 8), torch.randn(8, 8, 4), torch.tensor([0, 7, 20]))
    report = packpass.explain(forward, options=ON)(*args)
    mine = [r for r in report.rewrites if r.rule == "isolate"]
    assert len(mine) == 3
    assert all("isolated_programs.py:" in r.location for r in mine)
    assert {r.after for r in mine} == {
        "varlen_attention",
        "shifted products that stop at documents",
        "the same for a batch of documents",
    }
