"""cp_to_hp, hp_to_cp and cp_packed_roll on real gloo ranks: exact, one collective each way, one graph."""

from __future__ import annotations

from time import monotonic

import pytest
import torch

from tests.dist import cp_programs
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist

SIZES = [2, 4]
MOVED = [
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("cp", SIZES)
def test_layouts(ranks: Ranks, cp: int) -> None:
    ranks.call(cp_programs.round_trip, cp, list(cp_programs.LAYOUTS), [torch.float32])


@pytest.mark.parametrize("cp", SIZES)
def test_shards_of_one_piece(ranks: Ranks, cp: int) -> None:
    ranks.call(cp_programs.round_trip, cp, list(cp_programs.LAYOUTS), [torch.float32, torch.bfloat16], False)


@pytest.mark.parametrize("cp", SIZES)
def test_dtypes(ranks: Ranks, cp: int) -> None:
    ranks.call(cp_programs.round_trip, cp, ["features", "batch"], MOVED)


@pytest.mark.parametrize(("cp", "zigzag"), [(2, True), (4, True), (4, False)])
def test_without_tails(ranks: Ranks, cp: int, zigzag: bool) -> None:
    ranks.call(cp_programs.without_tails, cp, zigzag, timeout_s=120)


def test_nothing_to_move(ranks: Ranks) -> None:
    ranks.call(cp_programs.nothing, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cp", SIZES)
def test_bit_equal_to_naive(ranks: Ranks, cp: int, dtype: torch.dtype) -> None:
    for few, many in ranks.call(cp_programs.against_naive, cp, 5, dtype):
        assert few == 4
        assert many == 4 * 5 * 3


@pytest.mark.parametrize("cp", SIZES)
def test_rolls(ranks: Ranks, cp: int) -> None:
    """By less and by more than chunks and documents are long."""
    ranks.call(cp_programs.rolls, cp, [-1, 1, -2, 3, -5, 6, -11, 25, -60, 0])


@pytest.mark.parametrize("cp", SIZES)
def test_roll_dtypes(ranks: Ranks, cp: int) -> None:
    ranks.call(cp_programs.roll_dtypes, cp, MOVED)


@pytest.mark.parametrize("cp", SIZES)
def test_one_exchange_for_all_fields_and_shifts(ranks: Ranks, cp: int) -> None:
    assert ranks.call(cp_programs.many_fields, cp) == [(1, 1)] * 4


@pytest.mark.parametrize(
    ("cp", "backend", "by_name"),
    [
        (2, "eager", True),
        (4, "aot_eager", False),
        (2, "aot_eager", True),
        pytest.param(2, "inductor", False, marks=pytest.mark.slow),
        pytest.param(4, "inductor", False, marks=pytest.mark.slow),
    ],
)
def test_compiled(ranks: Ranks, cp: int, backend: str, by_name: bool) -> None:
    for result in ranks.call(cp_programs.compiled, cp, backend, by_name, timeout_s=300):
        assert result["graphs"] <= 2
        # Four changes of layout and one roll, each one collective forward and one backward.
        assert result["counts"] == [[5, 5]] * 5


FAULTS = {
    "odd length, cp_to_hp": "ValueError: packpass: document 1 has 6 slots",
    "odd length, hp_to_cp": "ValueError: packpass: document 1 has 6 slots",
    "odd length, cp_packed_roll": "ValueError: packpass: document 1 has 6 slots",
    "sections": "ValueError: sections[0] = 3 must be a multiple of the context-parallel group's size 2",
    "sum of sections": "ValueError: sections must sum to the 4 heads of all ranks, got [2, 4] = 6",
    "dim": "ValueError: dim must be a dimension of x behind the first",
    "one dimension": "ValueError: x must have at least 2 dimensions",
    "tokens": "ValueError: x must have a multiple of 2 tokens",
    "name": "ValueError: group must be the name of a process group",
    "kind": "TypeError: group must be a torch.distributed.ProcessGroup",
    "shift": "ValueError: shift must be at most 1024 in magnitude, got -5000",
    "fill": "ValueError: fill must have one entry per field (2), got 1",
    "slots": "ValueError: all fields must have the same number of slots",
}


@pytest.mark.parametrize("backend", [None, "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_faults_raise_on_every_rank(ranks: Ranks, backend: str | None) -> None:
    for said in ranks.call(cp_programs.faults, backend, timeout_s=200):
        assert len(said) == (len(FAULTS) if backend is None else 3)
        for what, message in said.items():
            assert message.startswith(FAULTS[what]), (what, message)


# === The harness itself =========================================================================================


@pytest.mark.parametrize(
    ("program", "timeout_s", "message"),
    [(cp_programs.hang, 3, "rank 0: no answer within 3 s"), (cp_programs.die, 50, "rank 1: died")],
)
def test_a_rank_that_hangs_or_dies_is_an_error(program, timeout_s: int, message: str) -> None:  # type: ignore[no-untyped-def]
    pool = Ranks(2)
    started = monotonic()
    with pytest.raises(RuntimeError, match=message):
        pool.call(program, 1, timeout_s=timeout_s)
    assert monotonic() - started < 60
