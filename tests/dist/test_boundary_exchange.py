"""Point-to-point rolls on real gloo ranks: one exchange, bit for bit what eager gives, or eager itself."""

from __future__ import annotations

import pytest
import torch

from tests.dist import (
    p2p_checks,
    p2p_functions,
    p2p_halves,
    p2p_leave,
    p2p_list_checks,
    p2p_lists,
    p2p_lists_leave,
    p2p_parts,
    p2p_pieces,
    p2p_programs,
    p2p_wide,
)  # fmt: skip
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_programs.ROLLS)
def test_one_exchange(ranks: Ranks, name: str, cp: int) -> None:
    for graphs, exchanges, messages in ranks.call(p2p_checks.rolls, cp, name, torch.int64, "eager", timeout_s=120):
        assert graphs <= 2
        assert exchanges == 1
        assert messages == 0


@pytest.mark.slow
def test_compiled_by_inductor(ranks: Ranks) -> None:
    for figures in ranks.call(p2p_checks.rolls, 2, "requests", torch.bfloat16, "inductor", timeout_s=500):
        assert figures[1:] == (1, 0)
    for figures in ranks.call(p2p_checks.many, 2, "inductor", timeout_s=500):
        assert [exchanges for _, exchanges in figures] == [1, 1, 1]


@pytest.mark.parametrize("cp", [2, 4])
def test_fields_and_depths_share_one_exchange(ranks: Ranks, cp: int) -> None:
    for figures in ranks.call(p2p_checks.many, cp, "eager", timeout_s=200):
        assert figures == [(2, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_parts.PARTS)
def test_what_else_a_loop_does_is_a_loop_of_its_own(ranks: Ranks, name: str, cp: int) -> None:
    for figures in ranks.call(p2p_checks.parts, cp, name, timeout_s=120):
        assert all(graphs <= 2 and (exchanges, messages) == (1, 0) for graphs, exchanges, messages in figures)


@pytest.mark.parametrize("name", p2p_parts.GRADIENTS)
def test_gradients_are_those_of_eager(ranks: Ranks, name: str) -> None:
    """One exchange if nothing that is rolled has a gradient; messages that pass none on, but what stays does, stay."""
    _, fused = p2p_parts.GRADIENTS[name]
    for one, codes in ranks.call(p2p_checks.gradients, 2, name, timeout_s=120):
        assert one == fused
        assert ("message-gradient" in codes) == (not fused)


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_pieces.PIECES)
def test_shards_of_one_piece(ranks: Ranks, name: str, cp: int) -> None:
    """Every field, depth and direction in one exchange; documents of one slot on every rank are among them."""
    for figures in ranks.call(p2p_checks.pieces, cp, name, timeout_s=120):
        assert all(graphs <= 2 and (exchanges, messages) == (1, 0) for graphs, exchanges, messages in figures)


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_pieces.ORDERS)
def test_messages_pair_up_in_their_order(ranks: Ranks, name: str, cp: int) -> None:
    """A rank that only sends, or only receives, does not see in which order its neighbour does."""
    ranks.call(p2p_checks.other_orders, cp, name, timeout_s=120)


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_roll_of_shards_of_one_piece(ranks: Ranks, cp: int) -> None:
    """What only some of the ranks take for a roll is none."""
    ranks.call(p2p_checks.pieces_left, cp, list(p2p_pieces.LEFT), timeout_s=200)


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_functions.FUNCTIONS)
def test_functions_around_messages(ranks: Ranks, name: str, cp: int) -> None:
    for figures in ranks.call(p2p_checks.through_functions, cp, name, False, "aot_eager", timeout_s=120):
        assert figures == [(1, 1)] * 3


@pytest.mark.parametrize("name", p2p_functions.AS_WRITTEN)
def test_functions_with_chunks_stay_as_they_are_written(ranks: Ranks, name: str) -> None:
    for figures in ranks.call(p2p_checks.through_functions, 2, name, False, "eager", timeout_s=120):
        assert figures != [(1, 1)] * 3


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*p2p_wide.WIDE, *p2p_wide.ZIGZAGS])
def test_messages_of_more_slots_than_one(ranks: Ranks, name: str, cp: int) -> None:
    """Of convolutions over shards, and rolls by several slots."""
    for figures in ranks.call(p2p_checks.wide, cp, name, "eager", timeout_s=150):
        assert figures == [(1, 0)] * 4


@pytest.mark.parametrize("name", p2p_wide.GRADIENTS)
def test_gradients_of_more_slots_than_one(ranks: Ranks, name: str) -> None:
    for figures in ranks.call(p2p_checks.wide, 2, name, "aot_eager", timeout_s=150):
        assert figures == [(1, 0)] * 4


@pytest.mark.parametrize("name", [*p2p_wide.LEFT, *p2p_wide.DIFFER])
def test_other_slots_than_those_at_the_end(ranks: Ranks, name: str) -> None:
    """What only some of the ranks can see is left by all of them."""
    ranks.call(p2p_checks.wide_left, 2, name, timeout_s=150)


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_lists.REWRITTEN)
def test_messages_of_all_documents_in_a_list(ranks: Ranks, name: str, cp: int) -> None:
    for figures in ranks.call(p2p_list_checks.lists, cp, name, timeout_s=150):
        assert figures == [(1, 0)] * 4


@pytest.mark.parametrize("name", [*p2p_lists_leave.LEFT, *p2p_lists_leave.DIFFER])
def test_lists_of_other_messages(ranks: Ranks, name: str) -> None:
    ranks.call(p2p_list_checks.left, 2, name, timeout_s=150)


@pytest.mark.parametrize("name", p2p_functions.LEFT)
def test_functions_that_are_no_rolls(ranks: Ranks, name: str) -> None:
    """Gradients are those of the backward that is written."""
    for figures in ranks.call(p2p_checks.through_functions, 2, name, True, "eager", timeout_s=120):
        assert [forward for forward, _ in figures] != [1, 1, 1]


def test_boundaries_that_change_between_two_rolls(ranks: Ranks) -> None:
    assert ranks.call(p2p_checks.other_documents, 2) == [2] * 4


def test_megatron_unmodified(ranks: Ranks) -> None:
    pytest.importorskip("megatron.core")
    for graphs, exchanges in ranks.call(p2p_checks.megatron, 2, "eager", timeout_s=200):
        assert graphs <= 2
        assert exchanges == 1


def test_leaves_alone(ranks: Ranks) -> None:
    for codes in ranks.call(p2p_checks.leave, 2, list(p2p_leave.LEAVE), timeout_s=250):
        for name, (_, code) in p2p_leave.LEAVE.items():
            assert code in codes[name], name


@pytest.mark.parametrize("cp", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", p2p_halves.HALVES)
def test_both_chunks_in_one_tensor(ranks: Ranks, name: str, cp: int) -> None:
    for figures in ranks.call(p2p_checks.halves, cp, name, timeout_s=120):
        assert all(graphs <= 2 and (exchanges, messages) == (1, 0) for graphs, exchanges, messages in figures)


def test_both_chunks_in_other_ways(ranks: Ranks) -> None:
    for codes in ranks.call(p2p_checks.leave, 2, list(p2p_halves.LEFT), timeout_s=250):
        for name, (_, code) in p2p_halves.LEFT.items():
            assert code in codes[name], name


@pytest.mark.parametrize("name", p2p_parts.KEPT)
def test_result_over_source(ranks: Ranks, name: str) -> None:
    """No loop is rolled as a whole, or in parts, if a later call may write over what it sends."""
    for codes in ranks.call(p2p_checks.over_source, name, timeout_s=120):
        assert "aliasing" in codes


@pytest.mark.parametrize("name", p2p_leave.BEHIND_A_BREAK)
def test_what_stands_in_the_way_breaks_the_graph_there(ranks: Ranks, name: str) -> None:
    assert ranks.call(p2p_checks.behind_a_break, 2, name) == [1] * 4
