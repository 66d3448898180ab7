"""A pytest plugin: the fixture ``assert_isolated``. Torch is not imported before a test calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def assert_isolated() -> Callable[..., Any]:
    """:func:`packpass.testing.assert_isolated`: ``assert_isolated(model, args, kwargs=None, cu_seqlens=None)``."""
    from packpass.testing import assert_isolated

    return assert_isolated
