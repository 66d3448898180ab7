"""Operands of a call in its whole-row form."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.integers import Affine, Invariant, Window
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.op_names import label
from passes.document_loops.terms import Outside
from passes.refused import Refused


def differentiated(node: fx.Node) -> bool:
    """May a gradient flow through the result?"""
    fake = example(node)
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in (fake if isinstance(fake, tuple) else (fake,)))


def operand(machine: Machine, arg: Any, window: Window, node: fx.Node, fill: int | None = None) -> Any:
    """An argument in the whole-row form. ``fill`` is what slots outside ``window`` hold (None: whatever they hold)."""
    if not isinstance(arg, fx.Node):
        return arg
    value = machine.value(arg)
    if isinstance(value, Segment):
        term = machine.aligned(value, window, node)
        return term if fill is None else machine.guard(term, window, term.dim, fill)
    if isinstance(value, Outside):
        return value
    if isinstance(value, Affine):
        single = value.single()
        if value.is_const:
            return value.const
        if single is not None and isinstance(single[0], Invariant) and not single[1]:
            return machine.intern(Outside(single[0].node))
    raise Refused(
        "index-as-number", f"{label(node)} uses a boundary, a length or the document's number as a value", node
    )
