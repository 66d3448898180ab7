"""A short, repeatable run of random shifts; the long one is ``python -m tests.fuzz --family shifts``."""

from __future__ import annotations

import pytest

from tests.shifts.at_random import judge


@pytest.mark.parametrize("seed", range(60))
def test_random_spellings(seed: int) -> None:
    found = judge(seed)
    assert found.status != "wrong", found.text
