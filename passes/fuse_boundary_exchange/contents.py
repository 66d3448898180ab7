"""What new tensors hold: a number, or nothing yet."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, blank, contents_of, example, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.meaning import Uniform, Uninitialised
from passes.document_loops.emit_shifts import stored
from passes.fuse_boundary_exchange.values import ZERO, Constant, Int, Own, Run, Unset, number
from passes.refused import Refused


def made(node: fx.Node) -> Constant | Unset:
    """The content of ``torch.zeros``, ``full_like``, ``x.new_empty`` and their kin."""
    held = contents_of(node)
    if held == Uninitialised():
        return Unset()
    if not isinstance(held, Uniform) or not isinstance(held.value, (bool, int, float, complex)):
        raise Refused("no-rule", "a fill that is not a constant", node)
    return constant(held.value, example(node).dtype)


def constant(value: Any, dtype: torch.dtype) -> Constant:
    held = stored(value, dtype)
    return Constant(held, repr(held))


def before(node: fx.Node, since: fx.Node, dim: int, whole: Int) -> tuple[Run, ...]:
    """The slots of a document in an outer tensor when a loop begins: those of a row that was rolled as a whole, so that
    at one end are slots of another document, what it was made with, or its own."""
    if not mutated_after(node.graph, node, node.next, since):
        rolled = _rolled(node, since, dim, whole)
        if rolled:
            return rolled
        if blank(node):
            with contextlib.suppress(Refused):
                return (Run(whole, made(node)),)
    return (Run(whole, Own(node, dim, ZERO)),)


def _rolled(node: fx.Node, since: fx.Node, dim: int, whole: Int) -> tuple[Run, ...]:
    if op_name(node) != "roll":
        return ()
    row: Any = node.args[0]
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims")
    (shift, *more), (along, *_) = ((v,) if type(v) is int else tuple(v or (None,)) for v in (shifts, dims))
    if type(shift) is not int or more or type(along) is not int or mutated_after(node.graph, row, node, since):
        return ()
    rest = whole.plus(number(abs(shift)), -1)
    if along % example(node).dim() - example(node).dim() != dim or not rest.at_least(ZERO) or not shift:
        return ()
    others = Run(number(abs(shift)), Unset())
    return (Run(rest, Own(row, dim, number(-shift))), others) if shift < 0 else (others, Run(rest, Own(row, dim, ZERO)))
