"""Four ranks for the tests of a session; groups of two are made from them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dist.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    pool = Ranks(4)
    yield pool
    pool.close()
