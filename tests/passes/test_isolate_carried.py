"""Loops over the tokens of a row whose state begins anew at documents, and those of which documents become a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager", "packpass.isolate": True}
LENGTHS = ([5, 4, 3], [1, 1, 10], [12])
W = torch.linspace(-1, 1, 64).view(8, 8).cos() / 4
U = torch.linspace(-2, 2, 64).view(8, 8).sin() / 4
LEARNED = torch.linspace(-1, 1, 8)
TABLE = torch.linspace(-1, 1, 96).view(12, 8).sin()
CELL, LSTM = torch.nn.GRUCell(8, 8), torch.nn.LSTMCell(8, 8)


def _step(state: Tensor, token: Tensor) -> Tensor:
    return torch.tanh(state @ W + token @ U)


# === Rewritten ====================================================================================================


def stacked(x: Tensor) -> Tensor:
    state, out = x.new_zeros(x.shape[0], 8), []
    for t in range(x.shape[1]):
        state = _step(state, x[:, t])
        out.append(state)
    return torch.stack(out, 1)


def time_first(x: Tensor) -> Tensor:
    state, out = torch.zeros(x.shape[0], 8), []
    for token in x.transpose(0, 1).unbind(0):
        state = CELL(token, state)
        out.append(state)
    return torch.stack(out).transpose(0, 1)


def two_states_of_a_cell(x: Tensor) -> Tensor:
    states, out = (torch.zeros(x.shape[0], 8), torch.zeros(x.shape[0], 8)), []
    for t in range(x.shape[1]):
        states = LSTM(x[:, t], states)
        out.append(states[0].unsqueeze(1))
    return torch.cat(out, 1) * torch.sigmoid(x)


def written_slot_by_slot(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for t in range(x.shape[1]):
        state = _step(state, x[:, t])
        out[:, t] = state
    return out * torch.sigmoid(x)


def written_slices_in_another_order_of_memory(x: Tensor) -> Tensor:
    row = x.mT
    state, out = torch.zeros_like(row[..., :1]), torch.empty_like(row)
    for t in range(row.shape[2]):
        state = W @ state + row[..., t : t + 1]
        out[..., t : t + 1] = state
    return out.mT


def as_running_maximum_like_rwkv(x: Tensor) -> Tensor:
    top, total, out = torch.zeros_like(x[:, 0]) - 1e38, torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    decay = -torch.exp(LEARNED)
    for t in range(x.shape[1]):
        key = x[:, t].float()
        above = torch.maximum(top, key)
        out[:, t] = torch.exp(top - above) * total + torch.exp(key - above)
        above = torch.maximum(top + decay, key)
        total = torch.exp(top + decay - above) * total + torch.exp(key - above)
        top = above
    return out


def learned_start(x: Tensor) -> Tensor:
    state, out = torch.tanh(LEARNED).expand(x.shape[0], 8), []
    for t in range(x.shape[1]):
        state = _step(state, x[:, t])
        out.append(state)
    return torch.stack(out, 1)


def number_as_start(x: Tensor) -> Tensor:
    state: Any = 0.0
    out = []
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


def token_before(x: Tensor) -> Tensor:
    before, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        out.append(x[:, t] - 0.5 * before)
        before = x[:, t]
    return torch.stack(out, 1)


def two_loops(x: Tensor) -> Tensor:
    return stacked(torch.relu(written_slot_by_slot(x)))


# === A batch of documents, or refused =============================================================================


def another_first_step(x: Tensor) -> Tensor:
    state: Any = None
    out = []
    for t in range(x.shape[1]):
        state = x[:, t] if state is None else _step(state, x[:, t])
        out.append(state)
    return torch.stack(out, 1)


def first_token_as_start(x: Tensor) -> Tensor:
    state, out = x[:, 0], []
    for t in range(x.shape[1]):
        state = _step(state, x[:, t])
        out.append(state)
    return torch.stack(out, 1)


def position_in_the_step(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = _step(state, x[:, t] + TABLE[t])
        out.append(state)
    return torch.stack(out, 1)


def number_of_the_step(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = state + x[:, t]
        out.append(state / (t + 1))
    return torch.stack(out, 1)


def looks_two_steps_back(x: Tensor) -> Tensor:
    one = two = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        one, two = _step(one, x[:, t]) + 0.1 * two, one
        out.append(one)
    return torch.stack(out, 1)


def reads_what_it_wrote(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        out[:, t] = _step(out[:, t - 1] if t else torch.zeros_like(x[:, 0]), x[:, t])
    return out


def all_tokens_so_far(x: Tensor) -> Tensor:
    seen, out = [], []
    for t in range(x.shape[1]):
        seen.append(x[:, t])
        out.append(torch.stack(seen).sum(0))
    return torch.stack(out, 1)


def window_of_three(x: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(x, (0, 0, 2, 0))
    return torch.stack([padded[:, t : t + 3].sum(1) for t in range(x.shape[1])], 1)


def results_turned_round(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = _step(state, x[:, t])
        out.insert(0, state)
    return torch.stack(out, 1)


def from_the_end(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1] - 1, -1, -1):
        state = _step(state, x[:, t])
        out.append(state)
    return torch.stack(out[::-1], 1)


def token_after(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = _step(state, x[:, t])
        out.append(state + x[:, min(t + 1, x.shape[1] - 1)])
    return torch.stack(out, 1)


def another_start_for_one_reader(x: Tensor) -> Tensor:
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        out.append(x[:, t] * (state if t else torch.ones_like(state)) + state)
        state = _step(state, x[:, t])
    return torch.stack(out, 1)


def last_state_for_all(x: Tensor) -> Tensor:
    out = stacked(x)
    return out + out[:, -1:]


CARRIED = [
    stacked,
    time_first,
    two_states_of_a_cell,
    written_slot_by_slot,
    written_slices_in_another_order_of_memory,
    as_running_maximum_like_rwkv,
    learned_start,
    number_as_start,
    token_before,
    two_loops,
    another_start_for_one_reader,
]
ELSE = [
    another_first_step,
    first_token_as_start,
    position_in_the_step,
    number_of_the_step,
    reads_what_it_wrote,
    all_tokens_so_far,
    window_of_three,
    results_turned_round,
    from_the_end,
    token_after,
    last_state_for_all,
    looks_two_steps_back,
]


def check(loop: Callable[[Tensor], Tensor]) -> Report:
    """Values and gradients are those of document by document, or the loop is refused and leaks as it did."""
    torch._dynamo.reset()
    run = torch.compile(
        lambda x, cu_seqlens: loop(packpass.packed(x, cu_seqlens, dim=1)), backend=packpass.backend, options=OPTIONS
    )
    report = Report()
    for lengths in LENGTHS:
        x = torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(len(lengths)), requires_grad=True)
        with collecting(report):
            got = run(x, torch.tensor([0, *lengths]).cumsum(0))
        alone = torch.cat([loop(part) for part in x.split(lengths, 1)], 1) if not report.refusals else loop(x)
        seed = torch.randn(alone.shape, generator=torch.Generator().manual_seed(7))
        torch.testing.assert_close(got, alone, atol=1e-5, rtol=1e-5)
        grads = [torch.autograd.grad((out * seed).sum(), x)[0] for out in (got, alone)]
        torch.testing.assert_close(*grads, atol=1e-5, rtol=1e-5)
    return report


def _begins_anew(report: Report) -> int:
    return sum("begins anew" in r.after for r in report.rewrites)


@pytest.mark.parametrize("loop", CARRIED)
def test_state_begins_anew_at_documents(loop: Callable[[Tensor], Tensor]) -> None:
    report = check(loop)
    assert not report.refusals
    assert _begins_anew(report) == (2 if loop is two_loops else 1) * report.graphs
    assert all("begins anew" in r.after and "test_isolate_carried.py" in r.location for r in report.rewrites)


@pytest.mark.parametrize("loop", ELSE)
def test_is_not_taken_for_such_a_loop(loop: Callable[[Tensor], Tensor]) -> None:
    report = check(loop)
    assert not _begins_anew(report)
    assert bool(report.rewrites) != bool(report.refusals)
    assert {r.code for r in report.refusals} <= {"mixes-documents"}
