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
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics.expand import Pieces, expand
from passes.autocast import open_autocasts
from passes.refused import Refused
from passes.vectorize_segments.machine import PER_DOCUMENT, Machine, Segment, Store, example, frozen_args
from passes.vectorize_segments.terms import (
    FULL,
    Apply,
    Assign,
    Guard,
    Outside,
    Positions,
    Row,
    Term,
    children,
    map_args,
)

log = logging.getLogger("packpass.passes.vectorize_segments")
_DEEPEST = 8
"""Definitions within definitions."""


def taken_apart(machine: Machine, node: fx.Node, refused: Refused) -> Any:
    """The value of a call that no rule understands; raises ``refused`` if its pieces are not understood either."""
    if machine.depth >= _DEEPEST or node.target in markers.MARKERS or node.target in markers.SHADOWS:
        raise refused
    grads = _differentiated(node)
    values = [machine.value(arg) for arg in node.all_input_nodes]
    if not any(isinstance(v, (Segment, *PER_DOCUMENT)) for v in values):
        raise refused
    whole = expand(node, False, _slots(machine, node))
    if whole is None:
        raise refused
    machine.depth += 1
    try:
        return _as_whole_or_pieces(machine, node, whole, grads, refused)
    finally:
        machine.depth -= 1


def _slots(machine: Machine, node: fx.Node) -> list[tuple[fx.Node, int]]:
    """The packed dimensions of the operands: of one size, where they have the same slots of the document."""
    found = [(arg, v) for arg in node.all_input_nodes if isinstance(v := machine.value(arg), Segment)]
    return [(arg, v.dim) for arg, v in found if v.window == found[0][1].window and v.store.exact]


def _as_whole_or_pieces(machine: Machine, node: fx.Node, whole: Pieces, grads: bool, refused: Refused) -> Any:
    before = machine.state()
    try:
        results = _run(machine, whole)
    except Refused as why:
        log.debug("%s: a piece is refused: %s", node, why)
        machine.restore(before)
        raise refused from None
    if _slotwise(machine, node, results):
        return _whole_call(machine, node, whole, results)
    if grads:
        machine.restore(before)
        parts = expand(node, True, _slots(machine, node)) if whole.composite else None
        if parts is None or not parts.composite:
            raise refused
        results = _run_or_refuse(machine, parts, refused)
    if open_autocasts(node.graph, node):
        raise refused
    return results if whole.several else results[0]


def _run_or_refuse(machine: Machine, pieces: Pieces, refused: Refused) -> tuple[Any, ...]:
    before = machine.state()
    try:
        return _run(machine, pieces)
    except Refused:
        machine.restore(before)
        raise refused from None


def _run(machine: Machine, pieces: Pieces) -> tuple[Any, ...]:
    """Run the pieces on the machine, with the values of the call's operands."""
    from passes.vectorize_segments.rules import step

    for placeholder, operand in pieces.inputs:
        machine.values[placeholder] = machine.value(operand)
    gradients = {p for p, operand in pieces.inputs if example(p) is not None and _requires(example(p))}
    for piece in pieces.nodes:
        # Torch's trace runs below autograd: which results need a gradient is written down here.
        if any(i in gradients for i in piece.all_input_nodes) and _differentiable(example(piece)):
            gradients.add(piece)
            _require(example(piece))
        machine.inside.add(piece)
        step(machine, piece)
    return tuple(machine.value(result) for result in pieces.results)


def _requires(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _differentiable(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) for v in values)


def _require(value: Any) -> None:
    for v in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex()) and v.grad_fn is None:
            v.requires_grad_()


def _differentiated(node: fx.Node) -> bool:
    fake = example(node)
    return any(_requires(v) for v in (fake if isinstance(fake, (tuple, list)) else (fake,)))


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


def _whole_call(machine: Machine, node: fx.Node, pieces: Pieces, results: tuple[Any, ...]) -> Any:
    from passes.vectorize_segments.rules_tokenwise import differentiated, operand

    window = _operands(machine, node)[0].window
    fill = 1 if differentiated(node) else None

    def leaf(arg: Any) -> Any:
        return operand(machine, arg, window, node, fill)

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
    store = Store(term, result.window, parent=result.store.parent, exact=result.store.exact)
    return Segment(store, result.window, result.rank)

