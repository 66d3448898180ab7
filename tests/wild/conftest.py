"""Groups run once per session; the table comes at the end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wild import groups
from tests.wild.measure import Outcome


@pytest.fixture(scope="session")
def outcomes() -> dict[str, dict[str, Outcome]]:
    """By group; filled as groups are asked for."""
    return {}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or "wild" not in str(config.getoption("-m")).replace("not wild", ""):
        return
    from tests.wild import table

    saved = groups.saved()
    if saved:
        terminalreporter.section("model code as it is found")
        terminalreporter.write_line(table.text(saved))
