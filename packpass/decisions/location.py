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
    trace = node.meta.get("stack_trace") if node is not None else None
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace or "")
    users = [frame for frame in frames if not is_library(frame[0])] or frames
    return shorten(users[-1][0], int(users[-1][1])) if users else None


def is_library(filename: str) -> bool:
    """Is this file torch's, or one of ours that user code calls?"""
    return _LIBRARIES.search(filename) is not None


_LIBRARIES = re.compile(
    r"[\\/](?:site-packages|dist-packages)[\\/]torch[\\/]|[\\/]packpass[\\/](?:_packed\.py|ops[\\/]\w+\.py|capture[\\/](?:plain|exchanges)\.py)$"
)
