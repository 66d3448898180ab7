"""How a pass gives up on what it looks at."""

from __future__ import annotations

from typing import Any

from torch import fx


class Refused(Exception):
    """The program is left as written here; ``code`` is stable (`packpass.decisions.codes`), ``reason`` is for the user,
    ``node`` is where."""

    def __init__(self, code: str, reason: str, node: fx.Node | None = None) -> None:
        super().__init__(reason)
        self.code, self.reason, self.node = code, reason, node


def refuse_stale(memory: Any, node: fx.Node) -> None:
    """Refuse to read a view of what has changed since. ``memory`` has a ``parent``, ``(memory, version)`` or None."""
    while memory.parent is not None:
        memory, version = memory.parent
        if memory.version != version:
            raise Refused("stale-view", "a view is used after the tensor it views was changed", node)
