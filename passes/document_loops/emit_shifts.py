"""A shift of documents and the fill of what it left open, as one packed roll."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.integers import Window
from passes.document_loops.terms import ANY, Assign, Outside, Roll, Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops: Any = torch.ops.packpass


def as_roll(emitter: Emitter, value: Assign) -> fx.Node | None:
    """A shift and the fill of what it left open, as one packed roll."""
    pairs = [(value, value.base)]
    if isinstance(value.base, Assign):
        pairs = [(value, value.base), (value.base, value)]
    for fill, shift in pairs:
        number = fill.value
        if isinstance(number, (Term, Outside)):
            continue
        if isinstance(shift, Assign):
            rolled = shift.value
            if not (isinstance(rolled, Roll) and rolled.fill is ANY and shift.window.complements(fill.window)):
                continue
            base = shift.base if shift is value.base else fill.base
        elif isinstance(shift, Roll) and fill is value:
            rolled, base = shift, None
            if rolled.fill is not None and rolled.fill is not ANY:
                continue
        else:
            continue
        opened = Window(last=-rolled.shift) if rolled.shift < 0 else Window(first=rolled.shift)
        if fill.window != opened:
            continue
        source = emitter.node(rolled.of)
        like = example(emitter.node(base)) if base is not None else example(source)
        if example(source).dtype != like.dtype or tuple(example(source).shape) != tuple(like.shape):
            continue
        number = stored(number, like.dtype)
        return emitter.call(_ops.packed_roll.default, source, emitter.cu, rolled.shift, rolled.dim, number, None)
    return None


def stored(number: Any, dtype: torch.dtype) -> Any:
    """What a tensor of ``dtype`` holds after ``tensor[...] = number``."""
    return torch.empty((), dtype=dtype).fill_(number).item()
