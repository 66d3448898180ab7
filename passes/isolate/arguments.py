"""What calls are told besides tensors: ends of cuts, and numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.semantics import example
from passes.isolate.lengths import settled


def from_the_end(call: Any) -> bool:
    """Is the end of a cut counted from the end? There a row that is padded, and one that is not, differ."""
    ends = [at.stop for at in _flat(call.arguments.get("index")) if isinstance(at, slice)]
    ends = [example(end) for end in (*ends, call.arguments.get("end"))]
    known = [hint_of(end) if isinstance(end, torch.SymInt) else end for end in ends]
    return any(isinstance(end, int) and end < 0 for end in known)


def _flat(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, (tuple, list)) else (index,)


def numbers_of(node: fx.Node) -> list[int | float]:
    """The numbers that a call is given, as they are or as sizes that are known."""
    given = [settled(example(arg)) for arg in (*node.args, *node.kwargs.values())]
    return [arg for arg in given if isinstance(arg, (int, float)) and not isinstance(arg, bool)]
