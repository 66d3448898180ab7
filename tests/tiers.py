"""Which tests are left to ``make test-all``: the fast tier (`make test`) has to end within 15 minutes on 2 cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(items: Iterable[Any], every: int) -> list[Any]:
    """Parameters of which the first of every so many is tested always, and the others only with the slow tests."""
    return [item if i % every == 0 else pytest.param(item, marks=pytest.mark.slow) for i, item in enumerate(items)]
