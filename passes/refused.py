"""How a pass gives up on what it looks at."""

from __future__ import annotations

from torch import fx


class Refused(Exception):
    """The program is left as written here; ``code`` is stable (`packpass.decisions.codes`), ``reason`` is for the user,
    ``node`` is where."""

    def __init__(self, code: str, reason: str, node: fx.Node | None = None) -> None:
        super().__init__(reason)
        self.code, self.reason, self.node = code, reason, node
