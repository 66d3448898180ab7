"""Ranks compare their collectives before the first call, and faults end in an error on every rank: real gloo ranks.

The protocol alone, on every kind of store, is in test_meeting.py.
"""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

import pytest

from tests.dist import agreement_programs as programs
from tests.dist.ranks import Ranks

SIZES = [2, 4]


def same_message(messages: list[str], groups: int) -> str:
    """All ranks of a group say the same; the group's own name and global ranks are all that differs between groups."""
    assert len(set(messages)) == groups, messages
    return messages[0]


# === Ranks that agree ===========================================================================================


@pytest.mark.parametrize("cp", SIZES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_ranks_that_agree_ask_the_store_in_the_first_call_only(ranks: Ranks, cp: int, backend: str) -> None:
    for result in ranks.call(programs.agree, cp, backend, timeout_s=200):
        first, *others = result["asked"]
        assert first > 0
        assert others == [0, 0]
        assert result["ran"] == [(2, 2)] * 3  # the ops' own: no collective is added


def test_off(ranks: Ranks) -> None:
    assert ranks.call(programs.off) == [0] * 4


def test_a_rank_that_compiles_again_waits_for_nobody(ranks: Ranks) -> None:
    assert ranks.call(programs.one_rank_compiles_again, 4) == [True, False, False, False]


def test_sizes_may_be_symbols_on_one_rank_only(ranks: Ranks) -> None:
    assert ranks.call(programs.static_here_symbolic_there, 4) == ["no error"] * 4


def test_groups_meet_one_after_the_other(ranks: Ranks) -> None:
    assert ranks.call(programs.two_groups) == ["no error"] * 4


# === Ranks that do not ==========================================================================================


def test_another_program_on_one_rank(ranks: Ranks) -> None:
    results = ranks.call(programs.mismatch, 2, [programs.forth_and_back, programs.forth_twice])
    message = same_message([result["message"] for result in results], groups=2)
    assert "were about to run different collectives; none was started" in message
    assert "First difference: collective 2 of the graph\n  rank 0: hp_to_cp of float32 [*, *]" in message
    first, second = (line for line in message.split("\n") if line.startswith("  rank "))
    assert "agreement_programs.py:" in first
    assert second.startswith("  rank 1: cp_to_hp of float32 [*, *]")
    assert "agreement_programs.py:" in second
    assert "packpass.agreement" in message
    assert [result["ran"] for result in results] == [0] * 4
    assert [result["again"] for result in results] == ["no error"] * 4  # in the same group


def test_three_programs_on_four_ranks(ranks: Ranks) -> None:
    ran = [programs.forth_and_back, programs.other_sections, programs.forth_and_back, programs.rolled]
    results = ranks.call(programs.mismatch, 4, ran)
    message = same_message([result["message"] for result in results], groups=1)
    assert "First difference: collective 1 of the graph\n  ranks 0, 2: cp_to_hp" in message
    assert "\n  rank 1: cp_to_hp of float32 [*, *], sections=[8, 8]" in message
    assert "\n  rank 3: cp_packed_roll of float32 [*, *]" in message
    assert [result["ran"] for result in results] == [0] * 4


def test_a_list_that_ends_early(ranks: Ranks) -> None:
    results = ranks.call(programs.mismatch, 2, [programs.forth, programs.forth_and_back])
    message = same_message([result["message"] for result in results], groups=2)
    assert "rank 0: no more collectives" in message


def test_another_program_after_an_agreement(ranks: Ranks) -> None:
    """Rank 0 may take up a list that all ranks had before: not while rank 1 waits with a new one."""
    results = ranks.call(programs.mismatch_later)
    assert "First difference: collective 2" in same_message(results, groups=2)


def test_other_options_on_one_rank(ranks: Ranks) -> None:
    message = same_message(ranks.call(programs.other_options, ["fuse_all_to_all"]), groups=2)
    assert "rank 0: all_to_all_group of float32 [*, *], float32 [*, *], float32 [*, *] at" in message
    assert "rank 1: all_to_all_single of float32 [*, *] at" in message


def test_a_rank_whose_collectives_are_left_alone() -> None:
    """It asks nobody, and waits in a collective. When the other one gives up, it hears why."""
    pool = Ranks(4)
    messages = pool.call(programs.other_options, ["fuse_all_to_all", "bucket_all_to_all"])
    pool.close()
    message = same_message(messages, groups=2)
    assert message.startswith("AgreementError: packpass: rank 1 of process group")
    assert "rank 1: compiled a graph whose collectives are left as they are written, with 3" in message


PATIENT = {"agreement_timeout": 60.0}


@pytest.mark.parametrize(
    ("other", "options"),
    [
        (programs.two_rolls, {"disable": ["fuse_boundary_exchange"], **PATIENT}),
        (programs.a_roll_and_no_roll, PATIENT),
        (programs.one_roll, PATIENT),
    ],
)
@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_with_fewer_rolls_than_its_neighbour(ranks: Ranks, leaves: int, other: Any, options: Any) -> None:
    """It sends messages that nobody receives, or has fewer of them in its exchange: the same error on both ranks."""
    ran, given = [programs.two_rolls] * 2, [PATIENT] * 2
    ran[leaves], given[leaves] = other, options
    results = ranks.call(programs.messages, ran, given, timeout_s=100)
    message = same_message([result["message"] for result in results], groups=2)
    assert message.startswith("AgreementError: packpass: the ranks of process group")
    assert "were about to run different collectives; none was started" in message
    if other is programs.two_rolls:
        assert f"rank {leaves}: messages as they are written at" in message
    assert max(result["seconds"] for result in results) < 60


@pytest.mark.parametrize("other", [programs.a_roll_and_no_roll, programs.one_roll])
def test_ranks_that_leave_together(ranks: Ranks, other: Any) -> None:
    options = {"disable": ["fuse_boundary_exchange"], **PATIENT}
    for result in ranks.call(programs.messages, [other] * 2, [options] * 2, timeout_s=100):
        assert result["message"] == "no error"
        assert result["right"]
        assert result["seconds"] < 50  # not the time-out


def test_a_rank_that_leaves_alone_goes_on(ranks: Ranks) -> None:
    """The other runs the same loop without packpass, and is right: so must both be."""
    options = [{"disable": ["fuse_boundary_exchange"], "agreement_timeout": 2.0}] * 2
    for result in ranks.call(programs.messages, [programs.two_rolls] * 2, options, 1, timeout_s=100):
        assert result["message"] == "no error"
        assert result["right"]


def test_training_on_one_rank_only(ranks: Ranks) -> None:
    message = same_message(ranks.call(programs.mismatch_of_gradients), groups=2)
    assert "rank 0: cp_to_hp of float32 [*, *], " in message
    assert "rank 1: cp_to_hp of float32 [*, *] with gradient, " in message


@pytest.mark.parametrize(
    ("cp", "last", "words"),
    [
        (4, None, "rank 3: never came to collectives compiled by packpass"),
        (2, programs.as_written, "rank 1: compiled a graph whose collectives are left as they are written, with 1"),
        (2, programs.forth, "rank 1: last came to a graph with 1"),
    ],
)
def test_a_rank_that_does_not_come(ranks: Ranks, cp: int, last, words: str) -> None:  # type: ignore[no-untyped-def]
    started = monotonic()
    answers = ranks.call(programs.absent, cp, 5.0, last)
    messages = [message for rank, message in enumerate(answers) if rank % cp != cp - 1]
    message = same_message(messages, groups=4 // cp)
    assert f"rank {cp - 1} of process group" in message
    assert "did not come to the same collectives within 5 s (packpass.agreement_timeout)" in message
    assert words in message
    assert "agreement_programs.py:" in message
    assert monotonic() - started < 30


def test_sizes_that_differ(ranks: Ranks) -> None:
    message = same_message(ranks.call(programs.sizes_differ, 4), groups=1)
    assert "First difference: sizes of cp_to_hp of float32 [*, *]" in message
    assert "entry 0\n  rank 0: 20 in [20, 16]\n  ranks 1, 2, 3: 18 in [18, 16]" in message


@pytest.mark.parametrize("cp", SIZES)
def test_boundaries_that_differ_in_the_first_call(ranks: Ranks, cp: int) -> None:
    message = same_message([said[0] for said in ranks.call(programs.boundaries_differ, cp, False)], groups=4 // cp)
    assert "First difference: boundaries (cu_seqlens) of cp_to_hp" in message
    assert f"rank 1: {4 * cp} in [0, {4 * cp}, {6 * cp}]" in message


def test_boundaries_that_differ_later_are_found_by_verify(ranks: Ranks) -> None:
    for first, second, third, fourth in ranks.call(programs.boundaries_differ, 2, True):
        assert (first, second, fourth) == ("no error",) * 3
        assert "boundaries (cu_seqlens) of cp_to_hp" in third
        assert "rank 1: 8 in [0, 8, 12]" in third


# === Ranks that die =============================================================================================


def test_a_rank_that_dies_before_the_agreement() -> None:
    pool = Ranks(4)
    started = monotonic()
    with pytest.raises(RuntimeError, match="rank 1: died") as caught:
        pool.call(programs.die_before, 4, 6.0)
    assert str(caught.value).count("AgreementError: packpass: rank 1 of process group") == 3
    assert monotonic() - started < 120


@pytest.mark.parametrize(("how", "fault"), [("dies", "rank 1: died"), ("stops", "rank 0:\nTraceback")])
def test_a_rank_that_fails_in_the_middle_of_a_step(how: str, fault: str) -> None:
    """Gloo notices: at once, or after the time-out of the group. The error is packpass's, and names the rank."""
    pool = Ranks(2)
    started = monotonic()
    with pytest.raises(RuntimeError, match=fault) as caught:
        pool.call(programs.die_in_a_step, 2, how, 10.0)
    said = str(caught.value)
    assert "rank 0:\nTraceback" in said
    # Of a dead peer gloo may say that the connection was closed, reset or refused, or nothing before the time-out.
    assert re.search(r"RuntimeError: .*gloo/transport" if how == "dies" else r"RuntimeError: .*Timed out", said), said
    assert "were cut off from each other in the middle of a call" in said
    assert f"  rank 1: {'its process has ended' if how == 'dies' else 'did not come to this call'}" in said
    assert monotonic() - started < 120


@pytest.mark.parametrize("direction", ["values", "gradients"])
def test_a_rank_that_raises_in_the_middle_of_a_step(direction: str) -> None:
    """The others do not wait for gloo's time-out, and all hear the same."""
    pool = Ranks(3)
    first, second, third = pool.call(programs.raises, direction, 4.0, timeout_s=100)
    pool.close()
    assert second["heard"] == f"RuntimeError: {direction} are too large"
    message = same_message([first["heard"], second["later"], third["heard"]], groups=1)
    assert f"ranks 0, 2: waited in this call\n  rank 1: raised RuntimeError: {direction} are too large" in message
    assert max(first["seconds"], third["seconds"]) < 30


# === Bad input, compiled ========================================================================================


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_what_does_not_divide_is_an_error_on_every_rank(ranks: Ranks, backend: str) -> None:
    for heard in ranks.call(programs.bad_input, 4, backend, timeout_s=200):
        for op in ("cp_to_hp", "cp_packed_roll"):
            assert heard[op].startswith("ValueError: packpass: document 1 has 12 slots (cu_seqlens[1] = 8")
        assert heard["sections"].startswith("ValueError: sections[0] = 5 must be a multiple of")
        assert heard["afterwards"] == "no error"
