"""All-to-all joined after autograd, on real gloo ranks: exact, counted as executed, forward and backward."""

from __future__ import annotations

import pytest

from tests.dist import bucket_programs
from tests.dist.ranks import Ranks

pytestmark = pytest.mark.dist

JOINED = {
    # program: collectives forward and backward, as they are and joined
    "heads": ([3, 3], [1, 1]),
    "projected": ([6, 6], [1, 1]),
    "many_dtypes": ([8, 4], [4, 2]),
    "nothing": ([4, 4], [1, 1]),
    "not_contiguous": ([4, 4], [1, 1]),
    "results_that_live_on": ([3, 3], [1, 1]),
    "written_between": ([2, 0], [1, 0]),
}
ALONE = {
    "chain": ([3, 3], set()),
    "chains": ([4, 4], set()),
    "uneven": ([2, 2], {"uneven-splits"}),
    "overlapped": ([3, 1], {"overlapped"}),  # in the backward graph nothing is in between
    "two_groups": ([2, 2], {"collective-order"}),
}


@pytest.mark.parametrize(
    ("name", "cp"),
    [*((name, 2) for name in JOINED), ("heads", 4), pytest.param("many_dtypes", 4, marks=pytest.mark.slow)],
)
def test_joined(ranks: Ranks, name: str, cp: int) -> None:
    plain, joined = JOINED[name]
    for result in ranks.call(bucket_programs.compare, name, cp, timeout_s=200):
        assert result["plain"] == plain
        assert result["ran"] == joined
        assert result["after"] == joined[0]


@pytest.mark.parametrize("name", ALONE)
def test_left_alone(ranks: Ranks, name: str) -> None:
    counts, codes = ALONE[name]
    for result in ranks.call(bucket_programs.compare, name, 4 if name == "two_groups" else 2, timeout_s=200):
        assert result["ran"] == counts
        assert result["plain"][0] == counts[0]
        assert result["after"] == result["before"]
        assert set(result["refusals"]) == codes
        assert not [details for details in result["details"] if details["stage"] == "forward"]


def test_lengths(ranks: Ranks) -> None:
    for graphs, counts in ranks.call(bucket_programs.lengths, 2, timeout_s=200):
        assert graphs <= 2
        assert counts == [[1, 1]] * 5


@pytest.mark.parametrize("cp", [2, 4])
def test_measured(ranks: Ranks, cp: int) -> None:
    results = ranks.call(bucket_programs.measure, cp, timeout_s=200)
    for first in range(0, 4, cp):
        assert len({link for link, _ in results[first : first + cp]}) == 1
    for link, ran in results:
        assert link.latency_us > 0
        assert link.bandwidth_gbs > 0
        assert ran == [3, 3]
