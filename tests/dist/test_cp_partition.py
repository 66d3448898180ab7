"""cp_partition and cp_unpartition on real gloo ranks: exact, no collective there, one back and one for the gradient."""

from __future__ import annotations

import pytest
import torch

from tests.dist import partition_programs
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist

SIZES = [2, 4]
MOVED = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.bool,
    torch.uint8, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("cp", SIZES)
def test_round_trips(ranks: Ranks, cp: int) -> None:
    ranks.call(partition_programs.round_trips, cp, MOVED)


def test_gradients_of_gradients(ranks: Ranks) -> None:
    ranks.call(partition_programs.twice, 2)


@pytest.mark.parametrize(
    ("cp", "backend"), [(4, "aot_eager"), (2, "eager"), pytest.param(2, "inductor", marks=pytest.mark.slow)]
)
def test_compiled(ranks: Ranks, cp: int, backend: str) -> None:
    for result in ranks.call(partition_programs.compiled, cp, backend, timeout_s=300):
        assert result["graphs"] == 1
        assert result["counts"] == [(1, 1)] * 3


@pytest.mark.parametrize("cp", SIZES)
def test_training_on_packed_shards(ranks: Ranks, cp: int) -> None:
    ranks.call(partition_programs.train, cp)


FAULTS = {
    "odd length": "ValueError: packpass: document 1 has 6 slots",
    "odd length, cut": "ValueError: packpass: document 0 has 6 slots",
    "name": "ValueError: group must be the name of a process group",
    "pair": "TypeError: group must be a torch.distributed.ProcessGroup",
    "dim": "ValueError: dim must lie in [-2, 1]",
}


def test_faults_raise_on_every_rank(ranks: Ranks) -> None:
    for said in ranks.call(partition_programs.faults):
        assert said.keys() == FAULTS.keys()
        for what, message in said.items():
            assert message.startswith(FAULTS[what]), (what, message)
