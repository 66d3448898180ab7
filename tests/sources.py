"""Programs that tests write as text."""

from __future__ import annotations

import linecache
from typing import Any


def remember(source: str, file: str) -> None:
    """Lines that reports, tracebacks and ``inspect`` read back under this name."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)


def defined(source: str, file: str, name: str = "program", **scope: Any) -> Any:
    """The function ``name`` of a source text, which sees ``scope`` as its globals."""
    remember(source, file)
    exec(compile(source, file, "exec"), scope)
    return scope[name]
