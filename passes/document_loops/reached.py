"""Slots of documents that get to a point of the body, and what others must not do to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, is_tensor, op_name, op_of, storage
from packpass.semantics.creation import WITHOUT_GRADIENT
from packpass.semantics.effects import records_gradients, written_inputs
from packpass.semantics.expand import requires_gradient
from packpass.semantics.pointwise import COPIES
from passes.document_loops.integers import FULL, Boundaries, Reach
from passes.document_loops.terms import Assign, Attention, Guard, Reduce, Scan, Softmax, Term, walk
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class Reached(Term):
    """``then`` in documents of ``reach``, ``otherwise`` in others."""

    reach: Reach
    then: Term
    otherwise: Term
    dim: int

    def emit(self, emitter: Emitter) -> fx.Node:
        """What every slot is, by its document."""
        otherwise = emitter.node(self.otherwise)
        then = self.then
        if isinstance(then, Assign) and then.window == FULL and then.base is self.otherwise:
            new = emitter.fitted(then.value, otherwise)
        else:
            new = emitter.node(then)
        return emitter.where_reached(self.reach, new, otherwise, self.dim)


def refuse_mixing(term: Term, reach: Reach | None) -> None:
    """In documents outside of the reach that a term is worked out for: NaN would reach the gradient, or a division by
    zero would raise. None: which documents these are is not known."""
    for t in walk(term, conditions=False):
        if isinstance(t, Guard) and reach is not None:
            if t.reach == reach:
                continue  # it holds nothing of them
            if t.window.plain and not reach.conditions and t.window.front + t.window.back >= reach.slots - 1:
                continue  # there are no such slots in them
        if isinstance(t, (Attention, Guard, Softmax)) or (isinstance(t, (Reduce, Scan)) and t.op != "sum"):
            raise Refused("skip-condition", "skipped documents would take part in a gradient or a division")


def may_be_none(reach: Reach, boundaries: tuple[Boundaries, int] | None) -> bool:
    """May a row have slots though no document is one of ``reach``? (Of rows whose documents are all empty it is taken
    that they have none.) Of the slots that a mask keeps, a row holds those as well that it does not keep."""
    if reach.conditions or not reach or boundaries is None:
        return bool(reach.conditions)
    mask = _given_to(_given_to(_given_to(boundaries[0].node, "index_select"), "pad"), "cumsum")
    return mask is not None and bool(example(mask).dtype is torch.bool)


def _given_to(node: fx.Node | None, name: str) -> fx.Node | None:
    """The first operand, if a node is such a call."""
    given = node.args[0] if node is not None and op_name(node) == name else None
    return given if isinstance(given, fx.Node) else None


def with_gradient(term: Term | None) -> set[fx.Node]:
    """The tensors from outside that a value is made from and that have a gradient, which it passes on to them."""
    nodes = {getattr(part, "node", None) for part in walk(term, conditions=False, detached=False)}
    return {node for node in nodes if isinstance(node, fx.Node) and is_tensor(node) and example(node).requires_grad}


def gradients_to(values: Collection[fx.Node], body: Collection[fx.Node]) -> set[fx.Node]:
    """The tensors from outside of a traced body to which values pass a gradient on, as torch has traced them: none
    through what has none itself, and through what is made for the form of a tensor alone."""
    if not any(requires_gradient(example(value)) for value in values):
        return set()
    writers = [(node, {storage(target) for target in written_inputs(node)}) for node in body]
    seen, stack = set[fx.Node](), list(values)
    while stack:
        node = stack.pop()
        if node in seen or not requires_gradient(example(node)):
            continue
        seen.add(node)
        if node in body:
            made_of = node.all_input_nodes[:1] if op_of(node) in COPIES else node.all_input_nodes
            stack += () if op_name(node) in WITHOUT_GRADIENT else made_of
            stack += [
                given for writer, memory in writers if storage(node) in memory for given in writer.all_input_nodes
            ]
    return seen.difference(body)


def keep_gradients(inside: Collection[fx.Node], term: Term, instead: Term | None) -> None:
    """What has a gradient from a term has one from another that stands in its place, or anyway; raises `Refused`."""
    not_of_some_alone(inside, with_gradient(term), with_gradient(instead))


def not_of_some_alone(inside: Collection[fx.Node], nodes: set[fx.Node], instead: set[fx.Node]) -> None:
    """Where no document of a batch is of some kind, eager gives what only those use no gradient, and whole rows one of
    zeros, which optimizers take for another thing; raises `Refused`. What is computed in front of the loop is not seen:
    its gradient goes to what it is made of. ``instead``: what the others use."""
    if inside and not records_gradients(min(inside)):
        return
    only = _made_of(nodes - instead) - _made_of(instead)
    used = _made_of(min(only).graph.output_node().all_input_nodes, inside) if only else set()
    for node in sorted(only - used):
        if node.op in ("placeholder", "get_attr"):
            reason = (
                f"only documents that are not skipped use {node.name}, which has no gradient in eager where all are"
            )
            raise Refused("skip-condition", reason, node)


def _made_of(nodes: Collection[fx.Node], beside: Collection[fx.Node] | None = None) -> set[fx.Node]:
    """The tensors that some pass their gradient on to, and themselves; ``beside``: not by way of what a loop makes, nor
    of another loop, where it may be as it is there."""
    found, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        looped = beside is not None and (node in beside or node.target in markers.MARKERS)
        if node not in found and not looped and requires_gradient(example(node)):
            found.add(node)
            stack += () if op_name(node) in WITHOUT_GRADIENT else node.all_input_nodes
    return found
