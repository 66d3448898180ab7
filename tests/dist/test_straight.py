"""Straight-line groups of all-to-alls on real gloo ranks: bit-equal, and one exchange forward and one backward."""

from __future__ import annotations

import pytest

from tests.dist import straight_programs as programs
from tests.dist import straight_runs as runs
from tests.dist.ranks import Ranks
from tests.dist.test_cp_ops import MOVED

pytestmark = pytest.mark.dist

SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]
REWRITTEN = [p.__name__ for p in programs.REWRITTEN if p not in programs.WITHOUT_GRADIENTS]
# Not one with random numbers, and not one that sends a buffer which it receives into: what that gives is a race.
LEFT_ALONE = [
    p.__name__ for p in programs.LEFT_ALONE if p not in (programs.random_between, programs.in_place_on_itself)
]
# Collectives of a backward that are not those of the forward.
BACKWARD = {"in_no_grad": 0, "under_checkpoint": 2}


@pytest.mark.parametrize("cp", SIZES)
def test_rewritten(ranks: Ranks, cp: int) -> None:
    for counts in ranks.call(runs.same_as_stock, cp, REWRITTEN, "aot_eager", timeout_s=300):
        for name, (forward, backward) in counts.items():
            exchanges = len(programs.REWRITTEN[getattr(programs, name)])
            assert (forward, backward) == (exchanges, BACKWARD.get(name, exchanges)), name


@pytest.mark.slow
@pytest.mark.parametrize("cp", SIZES)
def test_rewritten_through_inductor(ranks: Ranks, cp: int) -> None:
    for counts in ranks.call(runs.same_as_stock, cp, REWRITTEN, "inductor", timeout_s=500):
        for name, (forward, backward) in counts.items():
            exchanges = len(programs.REWRITTEN[getattr(programs, name)])
            assert (forward, backward) == (exchanges, BACKWARD.get(name, exchanges)), name


def test_inductor(ranks: Ranks) -> None:
    names = ["functions", "five_sections"]
    for counts in ranks.call(runs.same_as_stock, 2, names, "inductor", timeout_s=300):
        assert counts == {"functions": [1, 1], "five_sections": [1, 1]}


@pytest.mark.parametrize("cp", SIZES)
def test_left_alone(ranks: Ranks, cp: int) -> None:
    ranks.call(runs.same_as_stock, cp, LEFT_ALONE, "aot_eager", timeout_s=300)


def test_results_used_on_one_rank_only(ranks: Ranks) -> None:
    assert ranks.call(runs.used_on_one_rank, 2, timeout_s=120) == [[1, 3]] * 4


@pytest.mark.parametrize("cp", SIZES)
def test_op(ranks: Ranks, cp: int) -> None:
    ranks.call(runs.exchanged, cp, MOVED)


@pytest.mark.parametrize(
    ("cp", "inner"), [(2, "aot_eager"), (4, "aot_eager"), pytest.param(2, "inductor", marks=pytest.mark.slow)]
)
def test_changes_of_layout(ranks: Ranks, cp: int, inner: str) -> None:
    """Three sections each way."""
    for separate, together in ranks.call(runs.layouts, cp, inner, timeout_s=200):
        assert separate == [6, 6]
        assert together == [2, 2]


def test_graphs(ranks: Ranks) -> None:
    assert all(graphs <= 2 for graphs in ranks.call(runs.steps_with_many_shapes, 2, "aot_eager", timeout_s=200))


@pytest.mark.parametrize(("in_place", "inner"), [(True, "eager"), (True, "aot_eager"), (False, "aot_eager")])
def test_fuzz(ranks: Ranks, in_place: bool, inner: str) -> None:
    saved = ranks.call(runs.fuzz, 2, list(range(12)), in_place, inner, timeout_s=400)
    assert min(saved) > 3


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [True, False])
def test_more_fuzz(ranks: Ranks, in_place: bool) -> None:
    saved = ranks.call(runs.fuzz, 4, list(range(100, 250)), in_place, "aot_eager", timeout_s=1500)
    assert min(saved) > 50
