"""Four ranks for the tests of a session; groups of two are made from them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.dist.ranks import Ranks

WITHOUT_PROCESSES = {"test_asking.py", "test_meeting.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist one worker has the ranks: two sets of four processes on two cores only wait for each other.

    Together they take longer than all of the fast tier, which has its exchanges from groups without processes.
    """
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent and item.path.name not in WITHOUT_PROCESSES:
            item.add_marker(pytest.mark.slow)
        if {"ranks", "two"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("ranks"))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    pool = Ranks(4)
    yield pool
    pool.close()
