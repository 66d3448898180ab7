"""Where ranks do not all do the same, none of them puts anything in place of what they exchange: real gloo ranks."""

from __future__ import annotations

import pytest

from tests.dist import alike_programs
from tests.dist.ranks import Ranks


@pytest.mark.parametrize("name", alike_programs.PROGRAMS)
def test_left_by_all(ranks: Ranks, name: str) -> None:
    """Eager's results on every rank, and the one that found an exchange says why it does not make it."""
    found = ranks.call(alike_programs.run, name, timeout_s=120)
    assert any("ranks-differ" in codes for codes in found)
    assert all(codes for codes in found)


@pytest.mark.parametrize(
    ("name", "mode"),
    [("of_documents", False), ("counted", True), ("copied", False), ("behind_a_break", True)],
)
def test_gradients_on_one_rank(ranks: Ranks, name: str, mode: bool) -> None:
    """No rank joins what is left of the loop, in whichever graph it comes up again."""
    for codes in ranks.call(alike_programs.gradients, name, "eager", mode, timeout_s=120):
        assert "ranks-differ" in codes or "no-rule" in codes


def test_gradients_on_one_rank_after_autograd(ranks: Ranks) -> None:
    """Nor after autograd, where Inductor's graphs differ as well."""
    ranks.call(alike_programs.gradients, "beside_others", "inductor", False, timeout_s=200)


@pytest.mark.parametrize("how", ["by input", "by mode", "in turns"])
@pytest.mark.parametrize("name", alike_programs.STRAIGHT)
def test_gradients_on_one_rank_in_straight_lines(ranks: Ranks, name: str, how: str) -> None:
    found = ranks.call(alike_programs.straight, name, "aot_eager", how, timeout_s=60)
    if (name, how) == ("two_exchanges", "by input"):  # afterwards it is known of these lines
        assert all("ranks-differ" in codes for codes in found)


@pytest.mark.parametrize("name", ["two_exchanges", "functions"])
def test_gradients_on_one_rank_in_straight_lines_after_autograd(ranks: Ranks, name: str) -> None:
    ranks.call(alike_programs.straight, name, "inductor", "by input", timeout_s=200)


@pytest.mark.parametrize("trains", [0, 3])
def test_gradients_on_one_rank_of_a_mesh(ranks: Ranks, trains: int) -> None:
    for codes in ranks.call(alike_programs.on_a_mesh, trains, timeout_s=60):
        assert "ranks-differ" in codes
