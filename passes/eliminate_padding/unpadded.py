"""What this pass hands to the engine: the packed form of a graph."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

META = "packpass_unpadded"
"""Key of `Unpadded` in the meta of a graph module."""


@dataclasses.dataclass(frozen=True)
class Unpadded:
    """The packed form of a graph.

    ``packed`` takes the graph's inputs and the plan (source, slots, cu_seqlens). ``prologue`` gives the padding mask,
    ``[B, S]`` or ``[B, 1, 1, S]``, and the labels of every condition "ignored". ``inverted``: True (1) in the mask is
    padding. ``conditions``: kind, value and what the slots of labels count, as in `_read`. ``results``: per result what
    its dimensions count, where it says nothing at padding; None where it is the padded graph's everywhere. ``random``:
    two runs draw other numbers.
    """

    packed: fx.GraphModule
    prologue: fx.GraphModule
    inverted: bool
    conditions: tuple[tuple[str, int, tuple[Any, ...]], ...]
    results: tuple[tuple[tuple[Any, ...], ...] | None, ...]
    random: bool
