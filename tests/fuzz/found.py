"""What became of the program of one seed."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Found:
    """What became of the program of one seed.

    ``status``: "right", "wrong", or "undefined" where eager itself raises; ``rewritten``: whether anything was;
    ``text`` is the program and how it differs, if it does.
    """

    status: str
    rewritten: bool = False
    text: str = ""


UNDEFINED = Found("undefined")
