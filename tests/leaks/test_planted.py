"""Every planted leak is found at its line, and nothing in programs without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import packpass
from tests.leaks.planted import CLEAN, CU, LEAKING, planted_lines, row


def by_name(programs: list[Callable[..., Any]]) -> Any:
    return pytest.mark.parametrize("program", programs, ids=lambda p: p.__name__)


@by_name(LEAKING)
def test_every_leak_is_found_at_its_line(program: Callable[..., Any]) -> None:
    found = packpass.audit(program)(row(), CU)
    assert not found.clean
    assert {int(leak.location.rpartition(":")[2]) for leak in found.leaks} == planted_lines(program), str(found)
    assert all(leak.location.rpartition(":")[0].endswith("planted.py") for leak in found.leaks)
    assert all(leak.advice and leak.distance and leak.seen_by for leak in found.leaks)


@by_name(CLEAN)
def test_no_false_alarm(program: Callable[..., Any]) -> None:
    found = packpass.audit(program)(row(), CU)
    assert found.clean, str(found)
    assert found.compared
    assert found.probed == (0, 1, 2)


@by_name(CLEAN)
def test_other_documents_and_lengths(program: Callable[..., Any]) -> None:
    cu = torch.tensor([0, 1, 1, 10, 24])  # one of length 1, and an empty one
    if program.__name__ in ("per_document", "convolution_by_document"):
        cu = torch.tensor([0, 1, 10, 24])
    assert packpass.audit(program)(row(1), cu).clean


def test_directions_distances_and_documents() -> None:
    programs = {p.__name__: p for p in LEAKING}

    def leak(name: str) -> packpass.Leak:
        return packpass.audit(programs[name])(row(), CU).leaks[0]

    assert leak("convolution").distance == "the next 2 slots"
    assert leak("convolution").seen_by == (1,)
    assert leak("convolution").kind == "convolution"
    assert leak("running_sum").distance == "all later slots"
    assert leak("running_sum").seen_by == (1, 2)
    assert leak("recurrence").kind == "recurrence"
    assert leak("recurrence").distance == "all later slots"
    assert leak("gradient_only").direction == "backward"
    assert leak("roll").direction == "forward and backward"
    only_last = packpass.audit(programs["roll_wraps"], documents=[2])(row(), CU).leaks[0]
    assert (only_last.source_document, only_last.seen_by) == (2, (0,))
    assert "wraps" in only_last.distance


def test_what_mixes_on_purpose_is_listed_apart() -> None:
    programs = {p.__name__: p for p in CLEAN}
    found = packpass.audit(programs["loss_and_statistics"])(row(), CU)
    assert any(line.startswith("loss ()") for line in found.on_purpose)
    assert any(line.startswith("load ") for line in found.on_purpose)
    assert "nested[0]['hidden']" in found.compared
    assert any("batch_norm" in line for line in packpass.audit(programs["batch_statistics"])(row(), CU).on_purpose)


def test_what_is_called_is_left_as_it_was() -> None:
    from tests.leaks.planted import NORM

    x, mean = row(), NORM.running_mean.clone()
    kept, state = x.clone(), torch.get_rng_state()
    packpass.audit({p.__name__: p for p in CLEAN}["batch_statistics"])(x, CU)
    assert torch.equal(x, kept)
    assert not x.requires_grad
    assert torch.equal(NORM.running_mean, mean)
    assert torch.equal(torch.get_rng_state(), state)
