"""One message for what documents have one of each, on real gloo ranks."""

from __future__ import annotations

import pytest

from tests.dist import each_programs, each_runs
from tests.dist.ranks import Ranks

# Eager scatters its gradient by the numbers of ranks in a group, which are not those of a group of two among four.
NOT_IN_GROUPS = ("gathered_with_gradient",)


@pytest.mark.parametrize("name", each_programs.REWRITTEN)
def test_one_message(ranks: Ranks, name: str) -> None:
    ranks.call(each_runs.rewritten, 4 if name in NOT_IN_GROUPS else 2, name, "aot_eager", timeout_s=120)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in each_programs.REWRITTEN if name not in NOT_IN_GROUPS])
def test_one_message_of_four_ranks(ranks: Ranks, name: str) -> None:
    ranks.call(each_runs.rewritten, 4, name, "aot_eager", timeout_s=180)


@pytest.mark.parametrize("name", ["softmax_over_ranks", "differentiable_sum"])
def test_generated_code(ranks: Ranks, name: str) -> None:
    ranks.call(each_runs.rewritten, 2, name, "inductor", timeout_s=240)


@pytest.mark.parametrize("name", each_programs.LEFT)
def test_left(ranks: Ranks, name: str) -> None:
    for codes in ranks.call(each_runs.left, 2, name, timeout_s=120):
        assert codes
