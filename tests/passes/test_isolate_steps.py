"""Loops over the tokens of a row: documents take the first steps of them, if no step looks at how long the row is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager", "packpass.isolate": True}
LENGTHS = ([5, 4, 3], [2, 6, 4], [1, 1, 10], [12])
W = torch.linspace(-1, 1, 64).view(8, 8).cos() / 4
U = torch.linspace(-2, 2, 64).view(8, 8).sin() / 4
CELL = torch.nn.GRUCell(8, 8)


def recurrence(x: Tensor, change: Callable[[Tensor, int, int], Tensor] = lambda y, t, length: y) -> Tensor:
    """``change`` of what a step gives, by the step's number and the row's length."""
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = torch.tanh(state @ W + x[:, t] @ U)
        out.append(change(state, t, x.shape[1]))
    return torch.stack(out, 1)


def another_first_step(x: Tensor) -> Tensor:
    return recurrence(x, lambda y, t, length: y * 2 if t == 0 else y)


def tuple_of_states(x: Tensor) -> Tensor:
    state = memory = torch.zeros(x.shape[0], x.shape[2])
    out = []
    for t in range(x.shape[1]):
        gate = torch.sigmoid(x[:, t] @ U + state @ W)
        memory = gate * memory + (1 - gate) * torch.tanh(gate)
        state = torch.tanh(memory) * gate
        out.append(state.unsqueeze(1))
    return torch.cat(out, 1)


def delta_rule_into_a_tensor(x: Tensor) -> Tensor:
    state, out = torch.zeros(x.shape[0], 8, 8), torch.zeros_like(x)
    for t in range(x.shape[1]):
        key, value = F.normalize(x[:, t], dim=-1), x[:, t] @ W
        state = state * 0.9
        state = state + torch.einsum("bi,bj->bij", key, value - torch.einsum("bij,bi->bj", state, key))
        out[:, t] = torch.einsum("bij,bi->bj", state, x[:, t])
    return out


def attention_with_a_cache(x: Tensor) -> Tensor:
    keys: list[Tensor] = []
    values: list[Tensor] = []
    out = []
    for t in range(x.shape[1]):
        query = x[:, t : t + 1]
        keys.append(query @ W)
        values.append(query @ U)
        out.append((query @ torch.cat(keys, 1).mT).softmax(-1) @ torch.cat(values, 1))
    return torch.cat(out, 1)


def cell_over_unbound_tokens(x: Tensor) -> Tensor:
    state, out = x.new_zeros(x.shape[0], 8), []
    for token in x.unbind(1):
        state = CELL(token, state)
        out.append(state)
    return torch.stack(out, 1)


def state_that_is_not_handed_on_at_the_end(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = torch.tanh(state @ W + x[:, t] @ U)
        out.append(state)
        if t < x.shape[1] - 1:
            state = state * 0.5
    return torch.stack(out, 1)


def another_last_result(x: Tensor) -> Tensor:
    return recurrence(x, lambda y, t, length: y * 2 if t == length - 1 else y)


def another_step_in_the_middle(x: Tensor) -> Tensor:
    return recurrence(x, lambda y, t, length: y * 2 if t == length // 2 else y)


def share_of_the_row(x: Tensor) -> Tensor:
    return recurrence(x, lambda y, t, length: y * (1 - t / length))


def last_token_doubled(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t, token in enumerate(x.unbind(1)):
        state = torch.tanh(state @ W + (token * 2 if t == x.shape[1] - 1 else token) @ U)
        out.append(state)
    return torch.stack(out, 1)


def last_slot_written_again(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for t in range(x.shape[1]):
        state = torch.tanh(state @ W + x[:, t] @ U)
        out[:, t] = state
        if t == x.shape[1] - 1:
            out[:, t] *= 2
    return out


def compiled(loop: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    torch._dynamo.reset()
    return torch.compile(
        lambda x, cu_seqlens: loop(packpass.packed(x, cu_seqlens, dim=1)), backend=packpass.backend, options=OPTIONS
    )


def batch(lengths: list[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    return torch.randn(1, sum(lengths), 8, generator=generator), torch.tensor([0, *lengths]).cumsum(0)


REWRITTEN = [
    recurrence,
    another_first_step,
    tuple_of_states,
    delta_rule_into_a_tensor,
    attention_with_a_cache,
    cell_over_unbound_tokens,
    state_that_is_not_handed_on_at_the_end,
]
REFUSED = [
    another_last_result,
    another_step_in_the_middle,
    share_of_the_row,
    last_token_doubled,
    last_slot_written_again,
]


@pytest.mark.parametrize("loop", REWRITTEN)
def test_stops_at_documents(loop: Callable[[Tensor], Tensor]) -> None:
    run = compiled(loop)
    with torch.no_grad():
        for lengths in LENGTHS:
            x, cu = batch(lengths)
            alone = torch.cat([loop(part) for part in x.split(lengths, 1)], 1)
            torch.testing.assert_close(run(x, cu), alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("loop", REFUSED)
def test_a_step_that_knows_the_rows_length_is_refused(loop: Callable[[Tensor], Tensor]) -> None:
    report = Report()
    run = compiled(loop)
    with collecting(report), torch.no_grad():
        for lengths in LENGTHS:
            x, cu = batch(lengths)
            torch.testing.assert_close(run(x, cu), loop(x))
    assert {r.code for r in report.refusals} == {"mixes-documents"}
    assert all("test_isolate_steps.py" in r.location for r in report.refusals)
    assert not report.rewrites
