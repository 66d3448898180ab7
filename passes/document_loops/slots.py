"""The first or last slot of every document, set to a value of its own: ``x[e - 1] = v``, ``x[s:e][-1] += v``.

Where a document has no such slot, eager raises, or writes to another document's: that all have one is a check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import as_term, read_cell, require_slots, spread
from passes.document_loops.integers import FULL, Window
from passes.document_loops.machine import Document, Machine, Segment, Slot
from passes.document_loops.op_names import label
from passes.document_loops.terms import Apply, Term
from passes.refused import Refused


def set_slot(machine: Machine, segment: Segment, where: Window | str, value: Any, node: fx.Node) -> None:
    """``where``: a `Window`, or "start" or "end" of an outer tensor; ``value``: that of the last argument."""
    window = _window(where)
    if isinstance(value, Slot) and value.segment.store is segment.store:
        if _window(value.where or value.segment.window) == window:
            return  # set to itself, as ``x[-1] += y`` does with what it has changed in place
    arg = node.args[-1] if len(node.args) > 1 else node.kwargs.get("value")
    if not isinstance(arg, fx.Node):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    fake = example(arg)
    shape = list(fake.shape) if isinstance(fake, torch.Tensor) else []
    _write(machine, segment, window, as_term(machine, arg, node), shape, node)


def change_slot(machine: Machine, node: fx.Node, slot: Slot, changed: Callable[[], Any]) -> Slot:
    """``x[e - 1].add_(v)``; ``changed()``: what the call makes of its operands."""
    if slot.position is not None and slot.where is None:
        raise Refused("outer-tensor-write", "a slot is written by its number in the row", node)
    window, arg = _window(slot.where or slot.segment.window), node.args[0]
    assert isinstance(arg, fx.Node)
    given = machine.values.get(arg)
    try:
        machine.values[arg] = Slot(Segment(slot.segment.store, window, slot.segment.rank))  # the document's own
        value = changed()
    finally:
        machine.values[arg] = given
    if not isinstance(value, Document):
        raise Refused("per-document-value", f"{label(node)} writes slots into one slot", node)
    _write(machine, slot.segment, window, read_cell(value.cell, node), list(example(arg).shape), node)
    return slot


def _window(where: Window | str) -> Window:
    return where if isinstance(where, Window) else Window(last=1) if where == "end" else Window(first=1)


def _write(machine: Machine, segment: Segment, window: Window, term: Term, shape: list[Any], node: fx.Node) -> None:
    """``term``: a value of every document, of that shape."""
    if not window.single:
        raise Refused("per-document-value", "a slot within a document is set to a value that depends on it", node)
    if len(shape) >= segment.rank:
        raise Refused("no-rule", f"{label(node)} of a value of more dimensions", node)
    require_slots(machine, FULL, 1, f"{label(node)} writes a slot that a document does not have")
    if len(shape) >= -segment.dim:  # dimensions before the slots: the slot is one of size 1 behind these
        term = machine.intern(Apply(torch.unsqueeze, False, (term, segment.dim), (), 0))
        shape.insert(len(shape) + segment.dim + 1, 1)
    term = spread(machine, term, shape, segment.dim, node)
    machine.write(segment, window, machine.fresh(term, max(len(shape), -segment.dim), window), node)


def flattened_in_front(machine: Machine, value: Any, target: Segment, node: fx.Node) -> Any:
    """What is assigned, without the dimensions of one entry in front that ``target`` lacks: torch leaves them out."""
    more = value.rank - target.rank if isinstance(value, Segment) else 0
    given = node.args[-1]
    if more < 1 or not isinstance(given, fx.Node):
        return value
    if not all(isinstance(size, int) and size == 1 for size in example(given).shape[:more]):
        return value
    term = machine.intern(Apply(torch.squeeze, False, (machine.read(value, node), tuple(range(more))), (), value.dim))
    return machine.fresh(term, target.rank, value.window, value.store.least)
