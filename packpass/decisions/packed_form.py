"""The packed form of a padded graph: what `eliminate_padding` hands to the engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import fx


@dataclasses.dataclass(frozen=True)
class PackedForm:
    """A graph that does the same for real tokens only.

    ``packed`` takes the padded graph's inputs and the plan (source, slots, cu_seqlens). ``prologue`` gives the padding
    mask, ``[B, S]`` or ``[B, 1, 1, S]``, and the labels of every condition "ignored". ``inverted``: True (1) in the
    mask is padding. ``conditions``: kind, value and what the slots of labels count, as `packpass.engine.unpadded` reads
    them. ``results``: per result what its dimensions count, where it says nothing at padding; None where it is the
    padded graph's everywhere. ``random``: two runs draw other numbers.
    """

    packed: fx.GraphModule
    prologue: fx.GraphModule
    inverted: bool
    conditions: tuple[tuple[str, int, tuple[Any, ...]], ...]
    results: tuple[tuple[tuple[Any, ...], ...] | None, ...]
    random: bool
