"""Loops with exchanges as larger programs have them, and random ones, on real gloo ranks."""

from __future__ import annotations

import inspect

import pytest
from torch._dynamo.variables import builder

from tests.dist import a2a_hard_programs, loop_ranks
from tests.dist.ranks import Ranks

# The others' graphs are looked at in tests/passes; real ranks for all of them take minutes.
TYPICAL = (
    "numbers_back",
    "counted_on",
    "added_to_a_part_of_a_split",
    "activated_before",
    "layers",
    "lists_in_a_function",
    "handles",
    "copied_into",
    "pieces_in_one_loop",
    "pieces_by_sections",
    "copied_beside",
    "boundaries_written_behind",
    "pieces_by_other_names",
    "filled_by_ranks",
    "by_ranks",
    "by_views",
    "pieces_by_columns",
    "waited_behind",
    "step_by_step",
    "changed_when_received",
    "chosen_by_written_numbers",
    "own_gradient",
    "gradient_scattered",
    "own_columns",
    "three_rows_in_a_message",
    "parts_of_an_exchange",
)
# Eager scatters for it by the numbers of ranks in a group, which are not those of a group of two among four.
NOT_IN_GROUPS = ("differentiable_lists",)
NAMES = [
    pytest.param(name, marks=() if name in TYPICAL else pytest.mark.slow)
    for name in a2a_hard_programs.REWRITTEN
    if name not in NOT_IN_GROUPS
]


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_in_one_exchange(ranks: Ranks, name: str) -> None:
    """Forward and backward, with tails, for 3, 1 and 2 documents in at most two graphs."""
    ranks.call(loop_ranks.hard, 2, name, "aot_eager", timeout_s=180)


@pytest.mark.skipif(
    "dim" not in inspect.signature(builder.is_dynamic_source).parameters,
    reason="this torch cannot be told which of a tensor's sizes is a symbol",
)
@pytest.mark.parametrize("name", ["named_sections", "halves_of_ranks"])
def test_a_shard_with_as_many_slots_as_there_are_boundaries(ranks: Ranks, name: str) -> None:
    ranks.call(loop_ranks.as_many_tokens_as_boundaries, 2, name, timeout_s=150)


def test_result_over_source(ranks: Ranks) -> None:
    """Where writing the result changes what later documents send, eager's order is kept."""
    ranks.call(loop_ranks.result_over_source, timeout_s=120)


@pytest.mark.parametrize("back", [False, True])
def test_result_over_source_of_a_loop_that_is_split(ranks: Ranks, back: bool) -> None:
    ranks.call(loop_ranks.split_over_source, back, timeout_s=120)


def test_verified(ranks: Ranks) -> None:
    """The loop as it was runs beside the exchange."""
    for messages in ranks.call(loop_ranks.verified, "to_heads", timeout_s=120):
        assert not messages[0], messages
        assert "equal parts" in messages[1], messages


@pytest.mark.parametrize("seeds", [range(0, 4), range(4, 8)], ids=str)
def test_random_programs(ranks: Ranks, seeds: range) -> None:
    ranks.call(loop_ranks.fuzz, 2, list(seeds), False, "aot_eager", timeout_s=240)


def test_random_orders(ranks: Ranks) -> None:
    """Chunks in an order of their own: whatever is made of them gives the same bits."""
    ranks.call(loop_ranks.fuzz, 2, [100, 103, 104], True, "aot_eager", timeout_s=240)


@pytest.mark.slow
@pytest.mark.parametrize("cp", [2, 4])
def test_more_random_programs(ranks: Ranks, cp: int) -> None:
    ranks.call(loop_ranks.fuzz, cp, list(range(20, 50)), False, "aot_eager", timeout_s=600)
    ranks.call(loop_ranks.fuzz, cp, list(range(200, 215)), True, "aot_eager", timeout_s=600)
