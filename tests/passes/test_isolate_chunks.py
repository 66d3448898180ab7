"""Loops over the chunks of a row: documents lie behind each other in rows of chunks, or the loop is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass.decisions.records import collecting
from packpass.engine import isolated
from packpass.ops._document_plans import chunked_rows, stretches
from packpass.reports.report import Report

from .isolated_programs import with_alone_and_row as run

ON: dict[str, Any] = {"packpass.isolate": True, "packpass.inner_backend": "eager"}
BATCHES = ((0, 5, 6, 20, 30), (0, 17, 29), (0, 28), (0, 1, 2, 3, 32))
"""Rows of four chunks of eight slots."""
W = torch.linspace(-1, 1, 64).view(8, 8).cos() / 4
Program = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def chunked(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[1] % 8)).unflatten(1, (-1, 8))


# === Rows of chunks ===============================================================================================


def stacked(x: Tensor) -> Tensor:
    h, state, out = chunked(x), x.new_zeros(1, 8, 8), []
    decay = chunked(x.sigmoid().log()).cumsum(2)
    for c in range(h.shape[1]):
        out.append((h[:, c] @ h[:, c].mT).tril() @ h[:, c] + (h[:, c] * decay[:, c].exp()) @ state)
        state = state * decay[:, c, -1].exp()[..., None] + h[:, c].mT @ h[:, c]
    return torch.stack(out, 1).flatten(1, 2)[:, : x.shape[1]]


def joined(x: Tensor) -> Tensor:
    h, state, out = chunked(x @ W), x.new_zeros(1, 1, 8), []
    for c in range(h.shape[1]):
        out.append(h[:, c].cumsum(1) + state)
        state = state * 0.5 + h[:, c].sum(1, keepdim=True)
    return torch.cat(out, 1)[:, : x.shape[1]]


def written(x: Tensor) -> Tensor:
    h, state = chunked(x), x.new_zeros(1, 8)
    out = torch.zeros_like(h)
    for c in range(h.shape[1]):
        out[:, c] = h[:, c] * state[:, None]
        state = torch.tanh(state @ W + h[:, c].sum(1))
    return out.flatten(1, 2)[:, : x.shape[1]]


def sliced(x: Tensor) -> Tensor:
    """As lightning attention is written: slices of the row, the last of which may be shorter."""
    total, state, out = x.shape[1], x.new_zeros(1, 8, 8), []
    for c in range((total + 7) // 8):
        start, end = 8 * c, min(8 * c + 8, total)
        part, places = x[:, start:end], torch.arange(end - start)
        weights = torch.exp(-0.1 * (places[:, None] - places)) * (places[:, None] >= places)
        out.append((part @ part.mT * weights) @ part + part @ state)
        state = state * 0.9 ** (end - start) + part.mT @ part
    return torch.cat(out, 1)


def two_layers(x: Tensor) -> Tensor:
    return stacked(torch.tanh(joined(x)))


# === Refused ======================================================================================================


def all_before(x: Tensor) -> Tensor:
    """A cache of all chunks so far in place of a state: no step is like another one."""
    h, sums, out = chunked(x), [], []
    for c in range(h.shape[1]):
        sums.append(h[:, c].sum(1, keepdim=True))
        out.append(h[:, c].cumsum(1) * torch.cat(sums, 1).amax(1, keepdim=True))
    return torch.stack(out, 1).flatten(1, 2)[:, : x.shape[1]]


def the_last_is_special(x: Tensor) -> Tensor:
    h, state, out = chunked(x), x.new_zeros(1, 1, 8), []
    for c in range(h.shape[1]):
        one = h[:, c].cumsum(1) + state
        out.append(one * 2 if c == h.shape[1] - 1 else one)
        state = state + h[:, c].sum(1, keepdim=True)
    return torch.cat(out, 1)[:, : x.shape[1]]


def divided_by_the_chunks(x: Tensor) -> Tensor:
    h, state, out = chunked(x), x.new_zeros(1, 1, 8), []
    for c in range(h.shape[1]):
        out.append(h[:, c].cumsum(1) / (h.shape[1] - c) + state)
        state = state + h[:, c].sum(1, keepdim=True)
    return torch.cat(out, 1)[:, : x.shape[1]]


def longer_rows_are_scaled(x: Tensor) -> Tensor:
    return (x * 2 if x.shape[1] > 25 else x).cumsum(1)


def longer_rows_are_convolved_wider(x: Tensor) -> Tensor:
    y = x * 2 if x.shape[1] > 25 else x
    return F.conv1d(y.mT, W[:, None, :4], padding=3, groups=8)[..., : x.shape[1]].mT


def longer_rows_attend_sharper(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x * 2 if x.shape[1] > 25 else x, x, x, is_causal=True)


# === Left alone: branches that ask for nothing that differs between a row and its documents ======================


def padded_by_a_remainder(x: Tensor) -> Tensor:
    pad = 8 - x.shape[1] % 8
    if pad > 8:
        raise ValueError("no remainder")
    return F.pad(x, (0, 0, 0, pad)).unflatten(1, (-1, 8)).cumsum(2).flatten(1, 2)[:, : x.shape[1]]


def checked_against_a_limit(x: Tensor) -> Tensor:
    if x.shape[1] > 4096:
        raise ValueError("too long")
    return x.cumsum(1)


def in_steps_of_powers(x: Tensor) -> Tensor:
    step = 1
    while step < x.shape[1]:
        x = x + torch.cat((x[:, :step].detach() * 0, x[:, :-step]), 1)
        step *= 2
    return x.cumsum(1)


def compiled_with(program: Program, options: dict[str, Any] = ON) -> Any:
    def forward(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        return program(packpass.packed(x, cu_seqlens, dim=1))

    return torch.compile(forward, backend=packpass.backend, options=options)


def check(program: Program) -> None:
    compiled = compiled_with(program)
    for bounds in BATCHES:
        ours, alone, _ = run(program, bounds, compiled)
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=1e-5)
    assert counters["packpass"]["rewrite:isolate"], counters["packpass"]
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("program", [stacked, joined, written, sliced, two_layers], ids=lambda p: p.__name__)
def test_documents_lie_in_rows_of_chunks(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    real = isolated.chunked_rows
    monkeypatch.setattr(isolated, "chunked_rows", lambda *args: shapes.append(real(*args)[1].shape) or real(*args))
    check(program)
    # Not one row of four chunks for every document.
    assert [tuple(shape) for shape in shapes] == [(2, 4, 8)] * 4


@pytest.mark.parametrize("program", [padded_by_a_remainder, checked_against_a_limit, in_steps_of_powers])
def test_other_code_runs_for_a_batch_of_documents(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "chunked_rows", lambda *args: pytest.fail("no loop over chunks"))
    check(program)


@pytest.mark.parametrize(
    "program",
    [
        all_before,
        the_last_is_special,
        divided_by_the_chunks,
        longer_rows_are_scaled,
        longer_rows_are_convolved_wider,
        longer_rows_attend_sharper,
    ],
    ids=lambda p: p.__name__,
)
def test_code_that_goes_by_how_long_the_row_is_stays(program: Program) -> None:
    compiled, report = compiled_with(program), Report()
    with collecting(report):
        for bounds in ((0, 5, 6, 20, 30), (0, 17, 29)):
            ours, alone, row = run(program, bounds, compiled)
            torch.testing.assert_close(ours, row, atol=1e-5, rtol=1e-5)
            assert not torch.allclose(ours[0], alone[0], atol=1e-3)
    assert not [r for r in report.rewrites if r.rule == "isolate"]
    assert {r.code for r in report.refusals if r.rule == "isolate"} <= {"length-branch", "mixes-documents"}


def test_a_branch_on_the_length_is_named_with_its_line() -> None:
    report = Report()
    with collecting(report):
        run(longer_rows_are_scaled, (0, 5, 30), compiled_with(longer_rows_are_scaled))
    (reason,) = {r.reason for r in report.refusals if r.code == "length-branch"}
    assert "if x.shape[1] > 25" in reason or "x * 2 if x.shape[1] > 25" in reason


@pytest.mark.slow
@pytest.mark.parametrize("program", [stacked, written], ids=lambda p: p.__name__)
def test_with_inductor(program: Program) -> None:
    compiled = compiled_with(program, {"packpass.isolate": True})
    for bounds in BATCHES:
        ours, alone, _ = run(program, bounds, compiled)
        torch.testing.assert_close(ours, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bounds", [(0, 5, 6, 20, 30), (0, 1, 2, 3, 32), (0, 32), (4, 4, 9), (0, 8, 16, 24), (0,)])
def test_the_plan_of_rows_of_chunks(bounds: tuple[int, ...]) -> None:
    total, count, slots = 32, 4, 8
    documents = stretches(torch.tensor(bounds), total)
    source, places, cu_seqlens, physical, starts = chunked_rows(documents, total, torch.device("cpu"), count, slots)
    rows = places.flatten(1)
    assert rows.shape[0] >= 2
    flat = places.flatten()
    # Every token is in one place, and the two plans are each other's inverse.
    assert torch.equal(flat[source], torch.arange(total))
    assert int((flat >= 0).sum()) == total
    for start, length in documents:
        first = int(source[start])
        assert torch.equal(flat[first : first + length], torch.arange(start, start + length))
        assert first % slots == 0
        assert first // (count * slots) == (first + length - 1) // (count * slots)
    begins = {int(source[start]) // slots for start, _ in documents}
    used = [k for k in range(starts.numel()) if int(places.view(-1, slots)[k, 0]) >= 0]
    assert {k for k in used if starts.flatten()[k]} == begins
    assert cu_seqlens.shape == physical.shape == (starts.numel() + 1,)
    assert int(physical[-1]) == total and int(cu_seqlens[-1]) == total
