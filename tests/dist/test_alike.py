"""Where ranks do not all do the same in a loop, none of them puts an exchange in its place: real gloo ranks."""

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
