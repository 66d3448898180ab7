"""For every test."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
import torch
import torch._dynamo.guards

from tests.tiers import mark_slow


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_slow(items)


@pytest.fixture(scope="session", autouse=True)
def guards_without_a_stopwatch() -> Iterator[None]:
    """Dynamo times the guards of every frame for a line of its log, with the processor's caches flushed before: about a
    tenth of the time of a test that compiles small programs."""
    if not hasattr(torch._dynamo.guards, "profile_guard_manager"):
        yield
        return

    def no_time(*_: object) -> float:
        return 0.0

    with mock.patch.object(torch._dynamo.guards, "profile_guard_manager", no_time):
        yield


@pytest.fixture(autouse=True)
def the_same_numbers_every_time() -> None:
    """A test that fails fails again: how far compiled and eager lie apart depends on the numbers drawn (two rows that
    nearly agree have a standard deviation whose gradient is mostly rounding)."""
    torch.manual_seed(0)
