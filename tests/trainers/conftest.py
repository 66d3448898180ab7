"""Two ranks for the tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dist.ranks import Ranks


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist one worker has the ranks."""
    for item in items:
        if "trainer_ranks" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.fixture(scope="session")
def trainer_ranks() -> Iterator[Ranks]:
    pool = Ranks(2)
    yield pool
    pool.close()
