"""For every test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from tests.quick import fewer_collections, guards_without_a_stopwatch, no_trace_of_compiles
from tests.tiers import mark_slow

gc.disable()  # until the first test: what imports and the collection of tests make stays


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_slow(items)


@pytest.fixture(scope="session", autouse=True)
def quick_compiles() -> Iterator[None]:
    """Many small programs are compiled here."""
    with guards_without_a_stopwatch(), no_trace_of_compiles(), fewer_collections():
        yield


@pytest.fixture(autouse=True)
def the_same_numbers_every_time() -> None:
    """A test that fails fails again: how far compiled and eager lie apart depends on the numbers drawn (two rows that
    nearly agree have a standard deviation whose gradient is mostly rounding)."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def nothing_stays_entered() -> Iterator[None]:
    """A mode that is left entered is seen by whatever runs later: under autocast, weights that were cast are kept."""
    yield
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    for _ in range(nesting):
        torch.autocast_decrement_nesting()
    assert not nesting, f"{nesting} autocast regions were entered and not left"
    assert torch.is_grad_enabled()
