"""What new tensors hold: a number, or nothing yet."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import blank, contents_of, example
from packpass.semantics.effects import mutated_after
from packpass.semantics.meaning import Uniform, Uninitialised
from passes.document_loops.emit_shifts import stored
from passes.fuse_boundary_exchange.values import Constant, Unset
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


def known(node: fx.Node, since: fx.Node) -> Constant | Unset | None:
    """The content of an outer tensor when a loop begins, if it was made with one."""
    if not blank(node) or mutated_after(node.graph, node, node.next, since):
        return None
    try:
        return made(node)
    except Refused:
        return None
