"""``packpass.disable`` and ``packpass.verify`` for every pass; those that exchange data between ranks are in
tests/dist/test_every_pass_on_ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass import _passes, ops
from packpass.engine.verify import VerificationError
from tests.dist.test_every_pass_on_ranks import PROGRAMS as ON_RANKS
from tests.passes import expansion_programs, padded_models
from tests.passes.expansion_data import ROW, first
from tests.passes.planted import planted
from tests.passes.test_eliminate_padding import batch
from tests.passes.test_vectorize import CU, roll_and_fill

Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def declared_shift(ids: Tensor, cu: Tensor) -> Tensor:
    labels = torch.roll(packpass.packed(ids, cu), -1, -1)
    labels[:, -1] = -100
    return labels


def two_depths(x: Tensor, cu: Tensor) -> Tensor:
    return ops.packed_roll(ops.packed_roll(x, cu, -1), cu, -1)


def running(x: Tensor, cu: Tensor) -> Tensor:
    return packpass.packed(x, cu).cumsum(-1)


def columns(grid: Tensor) -> Tensor:
    return torch.cat([torch.arange(w).expand(h, w).flatten() for h, w in grid.tolist()])


def row() -> Tensor:
    return torch.arange(1.0, 25).view(2, 12)


def tokens_of_short_ones(x: Tensor, cu: Tensor) -> Tensor:
    count = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 5:
            count += e - s
    return x * count


PROGRAMS: dict[str, Callable[[], Program]] = {
    "vectorize_counters": lambda: (tokens_of_short_ones, (row(), CU), {}),
    "vectorize_segments": lambda: (roll_and_fill, (row(), CU), {}),
    "pack_shifts": lambda: (declared_shift, (row().long(), CU), {}),
    "compose_rolls": lambda: (two_depths, (row(), CU), {}),
    "remap_boundaries": lambda: (
        expansion_programs.declared(expansion_programs.last_slots, expansion_programs.attend),
        (*ROW.arguments(), ROW.boundaries()[0]),
        {},
    ),
    "isolate": lambda: (running, (row()[:1], CU), {"packpass.isolate": True}),
    "ragged_grids": lambda: (columns, (torch.tensor([[2, 3], [1, 4], [3, 3]]),), {}),
    "eliminate_padding": lambda: (padded_models.Causal(), batch(), {"packpass.eliminate_padding": True}),
}


def explain(program: Program, **options: Any) -> packpass.Report:
    fn, arguments, needed = program
    given = {"packpass.inner_backend": "eager", **needed, **{f"packpass.{name}": o for name, o in options.items()}}
    return packpass.explain(fn, options=given)(*arguments)


def test_every_pass_has_a_program() -> None:
    assert set(PROGRAMS) | set(ON_RANKS) == set(_passes.names())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_disabled_pass_rewrites_nothing(name: str) -> None:
    program = PROGRAMS[name]()
    fn, arguments, _ = program
    assert name in {r.rule for r in explain(program).rewrites}
    report = explain(program, disable=[name])
    assert name not in {r.rule for r in report.rewrites} | {r.rule for r in report.refusals}
    torch.testing.assert_close(first(report.result), first(fn(*arguments)), rtol=0, atol=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_verify_has_no_objection_to_a_right_rewrite(name: str) -> None:
    program = PROGRAMS[name]()
    report = explain(program, verify=True)
    assert name in {r.rule for r in report.rewrites}
    torch.testing.assert_close(first(report.result), first(explain(program).result), rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - _passes.names_of_tiers("fix")))
def test_verify_catches_a_wrong_rewrite(name: str) -> None:
    program = PROGRAMS[name]()
    with planted(name), pytest.raises(VerificationError, match=rf"{name} at .* changed output 0"):
        explain(program, verify=True)


@pytest.mark.parametrize("name", sorted(_passes.names_of_tiers("fix")))
def test_verify_does_not_judge_what_changes_results_on_purpose(name: str) -> None:
    """It is told from a wrong one by nobody but the user, to whom the report names it."""
    with planted(name):
        report = explain(PROGRAMS[name](), verify=True)
    assert name in {r.rule for r in report.rewrites}
