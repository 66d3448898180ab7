"""User locations: ``file.py:123``, relative to the working directory where that is shorter."""

from __future__ import annotations

import os
import re
from typing import Any


def shorten(filename: str, line: int) -> str:
    """``filename:line`` with the path made relative to the working directory if the file lies below it."""
    if not filename.startswith("<"):
        try:
            relative = os.path.relpath(filename)
        except ValueError:  # another drive
            relative = filename
        if not relative.startswith(os.pardir):
            filename = relative
    return f"{filename}:{line}"


def location_of_node(node: Any) -> str | None:
    """Where the user wrote the op of an FX node (innermost frame of its recorded stack), or None."""
    trace = node.meta.get("stack_trace") if node is not None else None
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace or "")
    return shorten(frames[-1][0], int(frames[-1][1])) if frames else None
