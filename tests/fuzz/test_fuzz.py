"""A short, repeatable run of the families without one of their own, and the programs that were wrong once."""

from __future__ import annotations

import pytest

from tests.fuzz.families import family

ONCE_WRONG = {
    "mixtures": (7, 11, 25, 62, 1355, 1367, 1415, 20078),
}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["padding", "mixtures"])
def test_short_run(name: str, seed: int) -> None:
    found = family(name)(seed)
    assert found.status != "wrong", found.text


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seeds in ONCE_WRONG.items() for seed in seeds])
def test_once_wrong(name: str, seed: int) -> None:
    found = family(name)(seed)
    assert found.status == "right", found.text
