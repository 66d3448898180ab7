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
    """Where the user wrote the op of an FX node, or None: the innermost frame of its recorded stack that is neither
    torch's nor ours (``torch.nn.functional.pad`` is Python, too)."""
    lines = _lines_of_node(node)
    return shorten(*lines[-1]) if lines else None


def way_to_node(node: Any) -> tuple[str, ...]:
    """The user's lines by which the code comes to the op of an FX node, outermost first."""
    return tuple(f"{filename}:{line}" for filename, line in _lines_of_node(node))


def _lines_of_node(node: Any) -> list[tuple[str, int]]:
    trace = node.meta.get("stack_trace") if node is not None else None
    frames = [(name, int(line)) for name, line in re.findall(r'File "([^"]+)", line (\d+)', trace or "")]
    return [frame for frame in frames if not is_library(frame[0])] or frames


def is_library(filename: str) -> bool:
    """Is this file torch's, or one of ours that user code calls?"""
    return _LIBRARIES.search(filename) is not None


_LIBRARIES = re.compile(
    r"[\\/](?:site-packages|dist-packages)[\\/]torch[\\/]|[\\/]packpass[\\/](?:_packed\.py|ops[\\/]\w+\.py|capture[\\/]\w+\.py)$"
)
