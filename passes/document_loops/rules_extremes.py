"""Rules for the largest and smallest slots of a document, and where they are."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.ops._segment_geometry import highest, lowest
from packpass.semantics import argument
from packpass.semantics.reductions import EXTREMES
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import outside_call, rule
from passes.document_loops.rules_reductions import Over, dims_of, over
from passes.document_loops.terms import ArgReduce, Take, Term
from passes.refused import Refused


@rule(*EXTREMES)
def _amax(machine: Machine, node: fx.Node) -> Any:
    name = name_of(node)
    found = over(machine, node, dims_of(node), argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    found.not_empty()
    if name == "aminmax":
        return (found.done(found.reduce("amin")), found.done(found.reduce("amax")))
    return found.done(found.reduce(name))


def _position(found: Over, largest: bool) -> Term:
    window = found.segment.window
    if window.front or window.last is not None or window.between is not None:
        raise Refused("no-rule", f"{label(found.node)} of the end of a document has no rule", found.node)
    fill = lowest(found.dtype) if largest else highest(found.dtype)
    term: Term = found.machine.intern(ArgReduce(found.filled(fill), largest, found.segment.dim, found.others))
    return term


@rule("max", "min")
def _max(machine: Machine, node: fx.Node) -> Any:
    largest = name_of(node) == "max"
    dims = dims_of(node)
    if isinstance(dims, fx.Node) or "other" in node.kwargs:
        raise Refused("no-rule", f"{label(node)} of two tensors has no rule; use torch.maximum", node)
    found = over(machine, node, dims, argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    found.not_empty()
    if dims is None:
        return found.done(found.reduce("max" if largest else "min"))
    index = _position(found, largest)
    values = machine.intern(Take(found.term, index, found.segment.dim))
    return (found.done(values), found.done(index))


@rule("argmax", "argmin")
def _argmax(machine: Machine, node: fx.Node) -> Any:
    dims = dims_of(node)
    found = over(machine, node, dims, argument(node, 2, "keepdim", False))
    if found is None:
        return outside_call(machine, node)
    if found.others and found.segment.dim != -found.segment.rank:
        raise Refused("no-rule", f"{label(node)} of a document whose slots are not its rows has no rule", node)
    found.not_empty()
    return found.done(_position(found, name_of(node) == "argmax"))
