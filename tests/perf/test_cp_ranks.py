"""The launcher of ranks, timing on several ranks, and the measured programs against the layout's definition."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from perf.cp.programs import ROLLS, Setup, documents
from perf.cp.ranks import RanksFailed, Started
from perf.cp.timing import timings_of
from perf.cp.work import HAND, NAIVE, PACKPASS, measure, prepare
from tests.dist import cp_programs, naive
from tests.ops import reference
from tests.perf import cp_steps

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def pair() -> Iterator[Started]:
    ranks = Started(2)
    yield ranks
    ranks.close()


# === The launcher ===============================================================================================


def test_results_come_by_rank(pair: Started) -> None:
    assert pair.call(dist.get_rank, timeout_s=30) == [0, 1]
    first, second = pair.call(os.getpid, timeout_s=30)
    assert len({first, second, os.getpid()}) == 3
    assert pair.call(os.getpid, timeout_s=30) == [first, second]


def test_ranks_share_an_empty_compile_cache(pair: Started) -> None:
    first, second = pair.call(os.getenv, "TORCHINDUCTOR_CACHE_DIR", timeout_s=30)
    assert first == second != os.getenv("TORCHINDUCTOR_CACHE_DIR")
    assert pair.call(torch.get_num_threads, timeout_s=30) == [1, 1]


def test_an_error_is_that_of_the_call_and_others_follow(pair: Started) -> None:
    with pytest.raises(RanksFailed, match="ZeroDivisionError") as caught:
        pair.call(operator.truediv, 1, 0, timeout_s=30)
    assert not caught.value.timed_out
    assert pair.call(dist.get_world_size, timeout_s=60) == [2, 2]


def test_a_hang_ends_within_the_time_out(pair: Started) -> None:
    pair.call(dist.get_rank, timeout_s=60)
    started = time.monotonic()
    with pytest.raises(RanksFailed, match="no answer within 1 s") as caught:
        pair.call(cp_programs.hang, 1, timeout_s=1)
    assert caught.value.timed_out
    assert time.monotonic() - started < 15
    assert pair.call(dist.get_rank, timeout_s=60) == [0, 1]


def test_a_rank_that_dies_is_named(pair: Started) -> None:
    with pytest.raises(RanksFailed, match="rank 1: died") as caught:
        pair.call(cp_programs.die, 1, timeout_s=60)
    assert not caught.value.timed_out


# === Timing =====================================================================================================


def test_ranks_agree_on_the_number_of_rounds(pair: Started) -> None:
    one, other = pair.call(cp_steps.unequal, 0.01, timeout_s=60)
    assert {name: len(values) for name, values in one.items()} == {name: len(values) for name, values in other.items()}
    assert len(one["one"]) >= 1  # how many depends on what else the machine does


@pytest.mark.slow
def test_a_slow_way_is_not_run_again(pair: Started) -> None:
    one, other = pair.call(cp_steps.unequal, 0.2, timeout_s=60)
    assert len(one["one"]) == len(other["one"]) == 1
    assert len(one["other"]) > 1


def test_a_round_takes_as_long_as_its_slowest_rank() -> None:
    timings = timings_of(
        [{"floor": [1.0, 2.0, 1.0], "way": [3.0, 3.0, 3.0]}, {"floor": [2.0, 1.0, 2.0], "way": [4.0] * 3}]
    )
    assert (timings["floor"].seconds, timings["way"].seconds) == (2.0, 4.0)
    assert timings["way"].ratio == 2.0
    slow = timings_of([{"floor": [1.0, 2.0, 4.0], "slow": [8.0]}])
    assert (slow["slow"].ratio, slow["slow"].rounds) == (8.0, 1)


# === Programs ===================================================================================================


def whole(shards: list[Tensor], cu: list[int], dim: int = 0) -> Tensor:
    """The row of which ``shards`` are the zigzag parts, by way of a row of slot numbers cut in the same way."""
    cp = len(shards)
    slots = torch.arange(cu[-1])
    order = torch.cat([naive.shard(slots, cu, cp, rank) for rank in range(cp)])
    return torch.cat(shards, dim).index_select(dim, order.argsort())


def heads(row: Tensor, sections: list[int], cp: int, rank: int) -> Tensor:
    return torch.cat([part.chunk(cp, 1)[rank] for part in row.split(sections, 1)], 1)


@pytest.mark.parametrize("form", ["naive", "by_hand", "ops"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cp_to_hp_and_back_by_definition(pair: Started, form: str, dtype: str) -> None:
    setup = Setup("cp_to_hp", 2, 5, dtype, total=400, features=200)
    cu = documents(setup).tolist()
    forth = pair.call(cp_steps.step, setup, form, timeout_s=60)
    row = whole([rank.inputs[0] for rank in forth], cu)
    for r, rank in enumerate(forth):
        assert torch.equal(rank.outputs[0], heads(row, setup.sections, 2, r))
        assert rank.gradient is not None
        assert torch.equal(rank.gradient, rank.inputs[0])  # the way back undoes the way forth

    back = pair.call(cp_steps.step, Setup("hp_to_cp", 2, 5, dtype, total=400, features=200), form, timeout_s=60)
    expected = whole([rank.outputs[0] for rank in back], cu)
    for r, rank in enumerate(back):
        assert torch.equal(heads(expected, setup.sections, 2, r), rank.inputs[0])
        assert rank.gradient is not None
        assert torch.equal(rank.gradient, rank.inputs[0])

    there_and_back = Setup("round_trip", 2, 5, dtype, total=400, features=200)
    for rank in pair.call(cp_steps.step, there_and_back, form, timeout_s=60):
        assert torch.equal(rank.outputs[0], rank.inputs[0] * rank.inputs[0])


@pytest.mark.parametrize("form", ["naive", "by_hand", "ops"])
@pytest.mark.parametrize("program", list(ROLLS))
def test_rolls_by_definition(pair: Started, form: str, program: str) -> None:
    setup = Setup(program, 2, 7, "int64", total=300 * 4)
    fields, depths = ROLLS[program]
    cu = documents(setup)
    found = pair.call(cp_steps.step, setup, form, timeout_s=60)
    for field in range(fields):
        row = whole([rank.inputs[field] for rank in found], cu.tolist(), 1)
        for depth in range(depths):
            rolled = whole([rank.outputs[depth * fields + field] for rank in found], cu.tolist(), 1)
            assert torch.equal(rolled, reference.roll(row, cu, -1 - depth, 1, 0))


def test_documents_fill_the_row_in_chunks() -> None:
    for cp, count in ((2, 1), (2, 64), (4, 64)):
        cu = documents(Setup("cp_to_hp", cp, count))
        assert (cu.numel(), int(cu[0]), int(cu[-1])) == (count + 1, 0, 8192)
        assert int(cu.diff().min()) >= 8 * cp
        assert (cu % (2 * cp) == 0).all()
    with pytest.raises(ValueError, match="do not fit"):
        documents(Setup("cp_to_hp", 4, 64, total=1024))


@pytest.mark.slow
def test_a_race_on_ranks_counts_and_checks(pair: Started) -> None:
    setup = Setup("cp_to_hp", 2, 3, total=400, features=200)
    naive_found, hand, ours = (pair.call(prepare, setup, way, timeout_s=120) for way in (NAIVE, HAND, PACKPASS))
    assert [found.collectives for found in naive_found] == [3 * 6 * 2] * 2
    assert [found.collectives for found in hand] == [2] * 2
    assert all(found.equal and found.error is None for found in (*naive_found, *hand, *ours))
    assert all(found.collectives == 2 or not found.rewrites for found in ours)
    forward, both = zip(*pair.call(measure, setup, (NAIVE, HAND), 0.1, 2, timeout_s=60), strict=True)
    assert list(timings_of(forward)) == list(timings_of(both)) == ["one all-to-all + one copy", NAIVE, HAND]
