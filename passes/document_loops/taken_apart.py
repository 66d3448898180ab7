"""Ops without a rule: taken apart by torch's own definitions, down to ops that have one.

The pieces (`packpass.semantics.expand`) are run on the abstract machine in place of the call. What they show is used in
one of two ways:

* Every piece treats slots alike (each result is made by ops on whole rows alone): then so does the call, and the *call*
  itself stands on whole rows, with its own kernel and its own gradient.
* Otherwise (a loss with a mean over the document, say) the pieces take its place, if nothing is differentiated or if
  the gradient of the call is that of its pieces.

Does not handle: calls that torch cannot take apart for every size, random numbers, ops in place, pieces without a rule
(they are taken apart in turn), pieces under autocast, which computes the call in one precision and them in another.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from packpass.semantics.effects import open_autocasts
from packpass.semantics.expand import (
    Pieces,
    differentiable,
    expand,
    fails_when_empty,
    mark_gradients,
    plain_overload,
    requires_gradient,
)
from packpass.semantics.names import op_name
from passes.document_loops.documents import require_slots
from passes.document_loops.integers import FULL
from passes.document_loops.machine import PER_DOCUMENT, Machine, Segment, Store, frozen_args
from passes.document_loops.op_names import label
from passes.document_loops.operands import differentiated, operand
from passes.document_loops.terms import Apply, Assign, Guard, Outside, Positions, Row, Term, children, map_args
from passes.refused import Refused

log = logging.getLogger("packpass.passes.document_loops")

Step = Callable[[Machine, fx.Node], None]
"""Interprets one node."""


def taken_apart(machine: Machine, node: fx.Node, refused: Refused, step: Step) -> Any:
    """The value of a call that no rule understands; raises ``refused`` if its pieces are not understood either.

    ``step`` interprets one piece."""
    if node.target in machine.taken_apart or node.target in markers.MARKERS or node.target in markers.SHADOWS:
        raise refused  # or torch's definition leads back to the call
    grads = requires_gradient(example(node))
    values = [machine.value(arg) for arg in node.all_input_nodes]
    if not any(isinstance(v, (Segment, *PER_DOCUMENT)) for v in values):
        raise refused
    machine.taken_apart.append(node.target)
    try:
        whole = _as_whole(machine, node, step)
        return whole if whole is not None else _as_pieces(machine, node, grads, refused, step)
    finally:
        machine.taken_apart.pop()


def shared(machine: Machine, node: fx.Node) -> Any:
    """A call on nothing but constants and tensors that all documents share; NotImplemented for any other.

    That it neither writes nor draws random numbers is seen by taking it apart.
    """
    values = [machine.value(arg) for arg in node.all_input_nodes]
    if not all(isinstance(v, Outside) for v in values) or not op_name(node):
        return NotImplemented
    if not (isinstance(node.target, torch._ops.OpOverload) and plain_overload(node.target)):
        if expand(node, False) is None:
            return NotImplemented

    def leaf(arg: Any) -> Any:
        return machine.value(arg) if isinstance(arg, fx.Node) else arg

    args = frozen_args(map_args(node.args, leaf))
    kwargs = tuple(sorted((k, frozen_args(map_args(v, leaf))) for k, v in node.kwargs.items()))
    fake = example(node)
    made = machine.computed((node.target, node.op == "call_method", args, kwargs), fake)
    if not isinstance(fake, (tuple, list)):
        return made
    return tuple(machine.computed((operator.getitem, False, (made, i), ()), part) for i, part in enumerate(fake))


def _slots(machine: Machine, node: fx.Node) -> list[tuple[fx.Node, int]]:
    """The packed dimensions of the operands: of one size, where they have the same slots of the document."""
    found = [(arg, v) for arg in node.all_input_nodes if isinstance(v := machine.value(arg), Segment)]
    return [(arg, v.dim) for arg, v in found if v.window == found[0][1].window and v.store.exact]


def _as_whole(machine: Machine, node: fx.Node, step: Step) -> Any:
    """The call on whole rows; None if its pieces do not treat slots alike.

    A document without slots has no part in the result, so that the pieces may be those of longer ones.
    """
    slots = _slots(machine, node)
    pieces = expand(node, False, slots, least=1) if slots else None
    if pieces is None:
        return None
    before, defined = machine.state(), machine.defined
    results = _tried(machine, node, pieces, step)
    fails = fails_when_empty(node, slots) if results is not None and _slotwise(machine, node, results) else None
    if results is None or fails is None:
        log.debug("%s: its pieces do not treat slots alike", node)
        machine.restore(before)
        return None
    if fails:
        window = _operands(machine, node)[0].window
        require_slots(machine, window, 1, f"{label(node)} of a document without slots")
    machine.defined += not pieces.composite
    return _whole_call(machine, node, pieces, results, machine.defined != defined)


def _as_pieces(machine: Machine, node: fx.Node, grads: bool, refused: Refused, step: Step) -> Any:
    """What the pieces make in place of the call."""
    slots = _slots(machine, node)
    pieces = expand(node, True, slots)
    if pieces is None and slots and fails_when_empty(node, slots):
        pieces = expand(node, True, slots, least=1)
        require_slots(machine, _operands(machine, node)[0].window, 1, f"{label(node)} of a document without slots")
    if pieces is None or (grads and not pieces.composite) or open_autocasts(node.graph, node):
        log.debug("%s: no pieces with a gradient of their own", node)
        raise refused
    results = _tried(machine, node, pieces, step)
    if results is None:
        raise refused
    return results if pieces.several else results[0]


def _tried(machine: Machine, node: fx.Node, pieces: Pieces, step: Step) -> tuple[Any, ...] | None:
    """The values of the results; None, and nothing learned, if a piece is refused."""
    before = machine.state()
    try:
        return _run(machine, pieces, step)
    except Refused as why:
        log.debug("%s: a piece is refused: %s", node, why)
        machine.restore(before)
        return None


def _run(machine: Machine, pieces: Pieces, step: Step) -> tuple[Any, ...]:
    """Run the pieces on the machine, with the values of the call's operands."""
    for placeholder, given in pieces.inputs:
        machine.values[placeholder] = machine.value(given)
    mark_gradients(pieces)
    for piece in pieces.nodes:
        machine.inside.add(piece)
        step(machine, piece)
    return tuple(machine.value(result) for result in pieces.results)


# === The call itself, on whole rows ==========================================================================


def _operands(machine: Machine, node: fx.Node) -> list[Segment]:
    return [v for v in (machine.value(arg) for arg in node.all_input_nodes) if isinstance(v, Segment)]


def _slotwise(machine: Machine, node: fx.Node, results: tuple[Any, ...]) -> bool:
    """Does every result hold, in every slot, what ops on whole rows make of the operands there?"""
    operands = _operands(machine, node)
    if any(isinstance(machine.value(arg), PER_DOCUMENT) for arg in node.all_input_nodes):
        return False
    if not operands or not all(isinstance(r, Segment) for r in results):
        return False
    window = operands[0].window
    if any(v.window != window for v in (*operands, *results)):
        return False
    given = {operand.store.term for operand in operands}
    return all(_only_rows(result.store.term, given) for result in results)


def _only_rows(term: Term, given: set[Any]) -> bool:
    """Is a term made by ops on whole rows from ``given``, and do these never mind what unread slots hold?"""
    seen: set[int] = set()
    stack: list[Any] = [term]
    while stack:
        value = stack.pop()
        if id(value) in seen or value in given:
            continue
        seen.add(id(value))
        if isinstance(value, Assign) and value.window == FULL:
            stack.append(value.value)
        elif isinstance(value, (Apply, Outside)):
            stack += children(value)
        elif isinstance(value, (Term, Row, Guard, Positions)):
            return False
    return True


def _whole_call(machine: Machine, node: fx.Node, pieces: Pieces, results: tuple[Any, ...], by_definition: bool) -> Any:
    """``by_definition``: torch's definition stood for a kernel, which may look at numbers that the definition does not
    mind: slots that nobody asked for hold numbers that are probabilities and indices."""
    window = _operands(machine, node)[0].window
    fill = 1 if differentiated(node) or by_definition else None

    def leaf(arg: Any) -> Any:
        whole = isinstance(arg, fx.Node) and isinstance(example(arg), torch.Tensor)
        number = 0 if whole and fill is not None and not differentiable(example(arg)) else fill
        return operand(machine, arg, window, node, number)

    args = frozen_args(map_args(node.args, leaf))
    kwargs = tuple(sorted((k, frozen_args(map_args(v, leaf))) for k, v in node.kwargs.items()))
    method = node.op == "call_method"
    called = machine.intern(Apply(node.target, method, args, kwargs, results[0].dim))
    made = []
    for at, result in enumerate(results):
        term = called
        if pieces.several:
            term = machine.intern(Apply(operator.getitem, False, (called, at), (), result.dim))
        made.append(_like(machine, result, term, node))
    return tuple(made) if pieces.several else made[0]


def _like(machine: Machine, result: Segment, term: Term, node: fx.Node) -> Segment:
    """A result of the pieces with another term: what it may share memory with, and its slots, stay."""
    operands = _operands(machine, node)
    if any(result.store is operand.store for operand in operands):
        return result  # the operand itself
    store = Store(term, result.window, parent=result.store.parent, least=result.store.least)
    return Segment(store, result.window, result.rank)
