"""The programs themselves, in plain eager mode: they run at every size they claim and do what they claim."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from .harness import Call, Outcome, Program, Shape, build, flatten, outcome, same
from .programs_leave import PROGRAMS as LEAVE
from .programs_rewrite import PROGRAMS as REWRITE

ALL = [*REWRITE.values(), *LEAVE.values()]

# What the programs themselves promise; nothing of packpass runs here.
pytestmark = pytest.mark.slow


def test_there_are_enough_programs() -> None:
    assert sum(p.demand for p in REWRITE.values()) >= 80
    assert len(LEAVE) >= 80
    assert sum(p.must_refuse for p in LEAVE.values()) >= 40


@pytest.mark.parametrize("prog", ALL, ids=str)
def test_runs_and_is_deterministic(prog: Program) -> None:
    shapes = prog.inputs()
    assert len(shapes) >= 3
    for shape in shapes:
        assert _equal(_observables(_run(prog, shape)), _observables(_run(prog, shape))), f"{shape}: two runs differ"


@pytest.mark.parametrize("prog", [p for p in REWRITE.values() if p.rule != "ragged_grids"], ids=str)  # they have sizes
def test_depends_on_inner_boundaries(prog: Program) -> None:
    """Other boundaries over the same tokens change the outcome: the input really exercises the boundaries."""
    moved = False
    for shape in prog.inputs():
        other = outcome(prog.instance(), _with_one_long_document(prog, shape), prog.observe)
        want = [p for p in _observables(_run(prog, shape)) if not _is_bounds(p[1])]
        moved = moved or not _equal(want, [p for p in _observables(other) if not _is_bounds(p[1])])
    assert moved or not prog.depends, "say depends=False if it is meant not to"


@pytest.mark.parametrize("prog", [p for p in ALL if not p.observe], ids=str)
def test_mutation_is_declared(prog: Program) -> None:
    changed = False
    for shape in prog.inputs():
        before = list(flatten(build(prog, shape).args, "in"))
        changed = changed or not _equal(before, _run(prog, shape).inputs[: len(before)])
    assert changed == prog.mutates


def _run(prog: Program, shape: Shape) -> Outcome:
    return outcome(prog.instance(), build(prog, shape), prog.observe)


def _observables(result: Outcome) -> list[tuple[str, Any]]:
    return [*result.outputs, *result.inputs]


def _equal(a: list[tuple[str, Any]], b: list[tuple[str, Any]]) -> bool:
    try:
        for (path, x), (_, y) in zip(a, b, strict=True):
            same(path, x, y)
    except (AssertionError, ValueError):
        return False
    return True


def _is_bounds(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.dim() != 1 or value.numel() < 2:
        return False
    return value.dtype in (torch.int32, torch.int64) and bool((value.diff() >= 0).all())


def _with_one_long_document(prog: Program, shape: Shape) -> Call:
    """The same call with every inner boundary moved to the end: one long document, the others as short as allowed."""
    call = build(prog, shape)
    for _, value in flatten(call.args):
        if _is_bounds(value):
            value[1:] = value[-1] - prog.min_len * torch.arange(value.numel() - 2, -1, -1)
    return call
