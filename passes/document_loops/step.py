"""One node of a loop's body: by its rule, by what the call means, or by its pieces, in this order."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, call_of, example
from packpass.semantics.losses import OF_CLASSES
from packpass.semantics.names import is_in_place
from passes.document_loops.batched import batched
from passes.document_loops.bins import binned
from passes.document_loops.by_meaning import by_meaning, why_not
from passes.document_loops.collectives import collected
from passes.document_loops.copied import copied
from passes.document_loops.each import of_each
from passes.document_loops.foreign import JOINING, foreign_view, refuse_foreign
from passes.document_loops.machine import PER_DOCUMENT, Machine, Segment
from passes.document_loops.moved import meets, onto
from passes.document_loops.op_names import label, name_of
from passes.document_loops.own_backward import own_backward
from passes.document_loops.own_memory import own_memory
from passes.document_loops.rules import (
    DOCUMENTS,
    PAIRS,
    RULES,
    TOKENWISE,
    elementwise,
    in_place,
    is_elementwise,
    opaque,
)
from passes.document_loops.suffixes import suffix
from passes.document_loops.taken_apart import shared, taken_apart
from passes.document_loops.terms import Apply, Outside
from passes.refused import Refused


def step(machine: Machine, node: fx.Node) -> None:
    """Interpret one node of the body."""
    if node.op == "get_attr":
        machine.values[node] = machine.intern(Outside(node))
        return
    elsewhere = _beside(machine, node)
    given = {arg: machine.values[arg] for arg in elsewhere}
    machine.values.update(elsewhere)
    try:
        _interpret(machine, node)
    finally:
        machine.values.update(given)


def _beside(machine: Machine, node: fx.Node) -> dict[fx.Node, Segment]:
    """Operands of a call of which another operand says how many slots there are, to be taken for what they are on the
    slots of that one: with these values. (What is put together slot by slot meets on a common window.)"""
    name = name_of(node)
    losses = name in OF_CLASSES
    if not losses and name != "gather":
        return {}
    places = ((0, "input"), (1, "target")) if losses else ((2, "index"), (0, "input"))
    like, arg = (argument(node, *place) for place in places)
    first, second = (machine.value(a) if isinstance(a, fx.Node) else None for a in (like, arg))
    if not isinstance(first, Segment) or not isinstance(second, Segment) or not meets(machine, (first, second)):
        return {}
    # As many, but of what is picked from there may be more.
    term = onto(machine, second, machine.read(second, node), first.window, "eq" if losses else "le")
    return {arg: machine.fresh(term, second.rank, first.window)}


def _interpret(machine: Machine, node: fx.Node) -> None:
    before, machine.here = machine.state(), node
    try:
        value = _by_rule(machine, node)
        machine.values[node] = own_memory(machine, node, value) if isinstance(value, Outside) else value
    except Refused as refused:
        if refused.code != "no-rule":
            raise
        machine.restore(before)
        value = shared(machine, node)
        value = by_meaning(machine, node) if value is NotImplemented else value
        for look in (of_each, binned, collected, batched):
            value = look(machine, node) if value is NotImplemented else value
        value = own_backward(machine, node, step) if value is NotImplemented else value
        machine.values[node] = taken_apart(machine, node, refused, step) if value is NotImplemented else value


def _cast_like(machine: Machine, node: fx.Node) -> Any:
    """``x.to(other)`` and ``x.type_as(other)``, of a row or of what all documents share: only the other tensor's dtype
    and device count, it is not broadcast."""
    call = call_of(node)
    if call is None or call.op != "to" or not call.unread or isinstance(node.args[0], (tuple, list)):
        return NotImplemented
    value, fake = machine.value(call.get("input")), example(node)
    if isinstance(value, Outside):
        return machine.computed(("to", True, (value, fake.device, fake.dtype), ()), fake)
    if isinstance(value, Segment):
        term = Apply("to", True, (machine.read(value, node), fake.device, fake.dtype), (), value.dim)
        return machine.view(term, value.rank, value)
    return NotImplemented  # what each document has one of, and values of every two slots, are looked at first


def _by_rule(machine: Machine, node: fx.Node) -> Any:
    """The value of a node, by the first rule that knows it; `Refused` if there is none."""
    name = name_of(node)
    for look in (foreign_view, suffix):
        viewed = look(machine, node)
        if viewed is not NotImplemented:
            return viewed
    refuse_foreign(machine, node, joins=name in JOINING)
    for look in (_cast_like, copied):
        value = look(machine, node)
        if value is not NotImplemented:
            return value
    between = PAIRS["*"](machine, node)
    if between is not NotImplemented:
        return between
    if any(isinstance(machine.value(a), PER_DOCUMENT) for a in node.all_input_nodes):
        return DOCUMENTS["*"](machine, node)
    if name in TOKENWISE:
        value = TOKENWISE[name](machine, node)
        if value is not NotImplemented:
            return value
    fn = RULES.get(name)
    if fn is None and is_elementwise(node):
        fn = in_place if is_in_place(name) else elementwise
    if (
        fn is None
        and node.op == "call_function"
        and isinstance(example(node), (int, torch.SymInt, torch.SymBool, torch.SymFloat))
    ):
        fn = opaque  # size arithmetic of Dynamo's own; refused where its result is used for anything else
    if fn is None:
        why = why_not(machine, node)
        reason = f"there is no rule for {label(node)} in a loop over documents{': ' if why else ''}{why}"
        raise Refused("no-rule", reason, node)
    return fn(machine, node)
