"""The programs themselves, in plain eager mode: they run at every size they claim and do what they claim."""

from __future__ import annotations

from typing import Any

import pytest

from .harness import Outcome, Program, Shape, build, flatten, outcome, same
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


@pytest.mark.parametrize("prog", [p for p in REWRITE.values() if "cu" in p.args and p.rule != "ragged_grids"], ids=str)
def test_depends_on_inner_boundaries(prog: Program) -> None:
    """Other boundaries over the same tokens change the outcome: the input really exercises the boundaries."""
    moved = False
    for shape in prog.inputs():
        given, other = build(prog, shape), build(prog, shape, one_long=True)
        before, moved_before = dict(flatten(given.args, "in")), dict(flatten(other.args, "in"))
        bounds = {path for path in before if not _equal([(path, before[path])], [(path, moved_before.get(path))])}
        want = outcome(prog.instance(), given, prog.observe)
        try:
            got = outcome(prog.instance(), other, prog.observe)
        except (RuntimeError, ValueError, IndexError):
            continue  # eager does not allow for such boundaries, which says nothing of the others
        moved = moved or not _equal(_results(want, bounds), _results(got, bounds))
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


def _results(result: Outcome, bounds: set[str]) -> list[tuple[str, Any]]:
    """What a call gives and leaves, but for the arguments in which the boundaries came."""
    return [*result.outputs, *(pair for pair in result.inputs if pair[0] not in bounds)]
