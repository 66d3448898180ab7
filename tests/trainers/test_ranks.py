"""DistributedDataParallel and FSDP2 on two gloo ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dist.ranks import Ranks
from tests.trainers import ranks_programs as programs
from tests.trainers.models import GROWING, LENGTHS, Inline, InlineShift
from tests.trainers.training import WHOLE

TIMEOUT_S = 240

# === DistributedDataParallel =====================================================================================


@pytest.mark.parametrize(("lengths", "graphs"), [(LENGTHS, 1), pytest.param(GROWING, 2, marks=pytest.mark.slow)])
def test_ddp_as_it_is(trainer_ranks: Ranks, lengths: Any, graphs: int) -> None:
    """The passes get the whole graph; what they made is split at the gradient buckets."""
    arguments = (True, False, "aot_eager", programs.backward, lengths)
    for seen in trainer_ranks.call(programs.ddp, *arguments, timeout_s=TIMEOUT_S):
        seen.check(WHOLE, graphs)
        assert seen.pieces >= 3 * graphs  # the optimizer did split


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [pytest.param(False, marks=pytest.mark.slow), "python_reducer"])
def test_ddp_with_another_setting(trainer_ranks: Ranks, optimize: Any) -> None:
    for seen in trainer_ranks.call(programs.ddp, optimize, timeout_s=TIMEOUT_S):
        seen.check(WHOLE)
        assert seen.pieces == 1


@pytest.mark.slow
def test_ddp_with_inductor(trainer_ranks: Ranks) -> None:
    for seen in trainer_ranks.call(programs.ddp, True, False, "inductor", timeout_s=2 * TIMEOUT_S):
        seen.check(WHOLE)
        assert seen.pieces >= 3


@pytest.mark.slow
@pytest.mark.parametrize("optimize", [True, "python_reducer"])
def test_ddp_around_a_compiled_model(trainer_ranks: Ranks, optimize: Any) -> None:
    for seen in trainer_ranks.call(programs.ddp, optimize, True, timeout_s=TIMEOUT_S):
        seen.check(WHOLE)


@pytest.mark.parametrize(
    "optimize", [True, *(pytest.param(other, marks=pytest.mark.slow) for other in (False, "python_reducer"))]
)
def test_ddp_with_no_sync(trainer_ranks: Ranks, optimize: Any) -> None:
    arguments = (optimize, False, "aot_eager", programs.accumulating)
    for seen in trainer_ranks.call(programs.ddp, *arguments, timeout_s=TIMEOUT_S):
        seen.check(WHOLE)


def test_ddp_with_sizes_known_only_at_run_time(trainer_ranks: Ranks) -> None:
    """torch's splitter cannot hand such sizes from piece to piece: the graph stays whole."""
    for seen in trainer_ranks.call(programs.ddp_with_unknown_sizes, timeout_s=TIMEOUT_S):
        seen.check({"vectorize_segments": 3})
        assert seen.pieces == 1


@pytest.mark.slow
def test_ddp_with_checkpoints(trainer_ranks: Ranks) -> None:
    for seen in trainer_ranks.call(programs.ddp_with_checkpoints, timeout_s=TIMEOUT_S):
        seen.check(WHOLE)
        assert seen.pieces >= 3


# === FSDP2 =======================================================================================================


@pytest.mark.parametrize(
    "inside", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["compiled-after", "compiled-before"]
)
def test_fsdp_of_the_root(trainer_ranks: Ranks, inside: bool) -> None:
    for seen in trainer_ranks.call(programs.fsdp, "root", inside, timeout_s=TIMEOUT_S):
        seen.check(WHOLE)


@pytest.mark.parametrize("inside", [False, True], ids=["compiled-after", "compiled-before"])
@pytest.mark.parametrize("where", [pytest.param("blocks", marks=pytest.mark.slow), "both"])
def test_fsdp_of_blocks(trainer_ranks: Ranks, where: str, inside: bool) -> None:
    """The hooks of a sharded block break the graph: the root becomes two graphs, the blocks share a third one."""
    for seen in trainer_ranks.call(programs.fsdp, where, inside, timeout_s=TIMEOUT_S):
        seen.check({"vectorize_segments": 2, "pack_shifts": 2})


def test_fsdp_of_compiled_blocks(trainer_ranks: Ranks) -> None:
    for seen in trainer_ranks.call(programs.fsdp_regional, timeout_s=TIMEOUT_S):
        seen.check({"vectorize_segments": 1})


@pytest.mark.slow  # the fast tier has blocks that are compiled by themselves
@pytest.mark.parametrize("cls", [Inline, InlineShift])
def test_fsdp_of_blocks_in_a_function_with_everything_else(trainer_ranks: Ranks, cls: Any) -> None:
    """Stock torch runs a function eagerly whose Python loop breaks the graph. That is said, with what to do."""
    for seen, ours, stock in trainer_ranks.call(programs.in_one_function, cls, timeout_s=TIMEOUT_S):
        line = cls.forward.__code__.co_firstlineno
        assert "graph break in loop" in ours[line]
        assert line in stock
        assert seen.first == {"vectorize_segments": 1}  # the blocks
        assert seen.refusals
        for refusal in seen.refusals:
            assert refusal.startswith("frame-not-compiled at tests/trainers/models.py:")
            assert "Move that loop (over the model's blocks, say) into a method of its own" in refusal
