"""A branch that documents without slots, or with few, take one way, and all others the other: ``if n == 0:
out.append(zeros)``.

Capture has followed one way in each traced iteration. Where these leave the same, nothing has to be known of the
branch. Where they do not, each arm is interpreted for the documents that take it, and what they leave is put together:
a row of slots is that of the arm with slots, for the other has none in it; a value of every document is chosen by its
length. The arm with slots is guarded as everything is behind a skip, so that what it would make of nothing reaches no
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example, storage
from packpass.semantics.effects import mutated_after
from passes.document_loops.aliasing import outside_nodes
from passes.document_loops.documents import document
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.integers import FULL
from passes.document_loops.machine import Cell, Document, Machine, Segment, Store, refuse_mixing
from passes.document_loops.rules import rule
from passes.document_loops.terms import Apply, DocAssign, Outside, Row, Take, Term, walk
from passes.document_loops.uneven import of_long
from passes.loops import LoopFound
from passes.refused import Refused

Interpreted = tuple[Machine, dict[fx.Node, Any]]


@rule("last_slot")
def _last_slot(machine: Machine, node: fx.Node) -> Any:
    """``x[-1:]`` of documents that are known to have a slot: a value of each."""
    value, dim = machine.value(node.args[0]), node.args[1]
    whole = isinstance(value, Segment) and value.window == FULL and value.store.exact
    if not whole or dim != value.rank + value.dim or machine.least < 1:
        raise Refused("length-branch", "x[-1:] behind a branch that does not say that the document has a slot", node)
    whole_document: Any = node.args[0]
    if mutated_after(node.graph, node, node) or mutated_after(node.graph, whole_document, node, _last_use(node)):
        raise Refused("aliasing", "x[-1:] is a view of a document, and one of both is written to", node)
    taken = machine.intern(Take(machine.read(value, node), -1, value.dim))
    return document(machine, Apply(torch.unsqueeze, False, (taken, value.dim), (), 0))


def _last_use(view: fx.Node) -> fx.Node | None:
    """The last node that sees a view, or a view of it; None if these are in a list, which may be read until the end."""
    seen, last, memory = [view], view, storage(view)
    for node in seen:
        if node.target is markers.LIST_COLLECT:
            return None
        last = max(last, node)
        if node is view or storage(node) == memory:
            seen.extend(user for user in node.users if user not in seen)
    return last


def joined(graph: fx.Graph, loop: LoopFound, both: list[Interpreted]) -> Interpreted:
    """What all documents leave; raises `Refused` if that is not known from the two arms."""
    if [machine.short is None for machine, _ in both] not in ([True, False], [False, True]):
        raise Refused("not-generic", "the branch is none on whether a document has slots, or enough of them")
    which = 1 if both[0][0].short is None else 0
    (empty, without), (filled, appended) = both[which], both[1 - which]
    least = filled.least
    if empty.short != least:
        raise Refused("not-generic", "the two ways of the branch are not those of short and of longer documents")
    _same_work(empty, filled)
    if least > 1:
        _only_long(empty, filled, least)
    for key in [*filled.rows, *(key for key in empty.rows if key not in filled.rows)]:
        _join_rows(graph, loop, key, empty, filled)
    found = {}
    for collect, value in appended.items():
        sources = collect.args[which], collect.args[1 - which]
        found[collect] = _join_entries(graph, loop, filled, (without[collect], value), sources, collect)
    return filled, found


def _same_work(empty: Machine, filled: Machine) -> None:
    """May the arm without slots do what it does? Writing to no slot is nothing, but a check, or a slot at a boundary,
    is something."""
    differs = Refused("not-generic", "documents without slots do more than to leave another value")
    if empty.boundaries not in (None, filled.boundaries) or any(c not in filled.checks for c in empty.checks):
        raise differs
    machines = (empty, filled)
    if any(m.skips_empty or m.skip is not None for m in machines) or any(
        n not in filled.split_of for n in empty.split_of
    ):
        raise differs
    for machine in machines:
        for store in machine.outer.values():
            if store.version and (store.point_fills or not _writes_slots(store)):
                raise differs


def _only_long(empty: Machine, filled: Machine, least: int) -> None:
    """Short documents that have slots: these stay as they were."""
    if any(store.version for store in empty.outer.values()):
        raise Refused("not-generic", "short documents are written to, in another way than longer ones")
    filled.skip = (least, {})
    filled.finish()


def _writes_slots(store: Store) -> bool:
    return isinstance(store.outer, Row) or (isinstance(store.outer, Elsewhere) and not store.outer.at_end)


def _join_rows(graph: fx.Graph, loop: LoopFound, key: Any, empty: Machine, filled: Machine) -> None:
    """What is written to the row that each document has of an outer tensor."""
    cells = [machine.rows.get(key) for machine in (empty, filled)]
    outer = next(cell.outer for cell in cells if cell is not None)
    if outer is None:
        raise Refused("not-generic", "documents without slots do more than to leave another value")
    before, after = (outer if cell is None else cell.term for cell in cells)
    if before is after:
        return
    target = filled.rows.setdefault(key, Cell(outer, outer))
    _known_before(graph, loop, before)
    if before is not outer and not (isinstance(before, DocAssign) and before.base is outer and _plain(before.value)):
        raise Refused("not-generic", "documents without slots write what has a gradient of its own")
    target.term = filled.intern(DocAssign(before, after, filled.least))
    target.version += 1


def _plain(value: Any) -> bool:
    """Is this a number, or a tensor that was there before and has no gradient?"""
    if isinstance(value, Outside):
        return value.node is not None and not example(value.node).requires_grad
    return isinstance(value, (bool, int, float))


def _join_entries(
    graph: fx.Graph, loop: LoopFound, machine: Machine, values: tuple[Any, Any], sources: Any, collect: fx.Node
) -> Any:
    """What is appended to a list. None: nothing, for documents without slots have no part in what is joined."""
    without, value = values
    if without is None and isinstance(value, Segment) and machine.least == 1:
        if value.window != FULL or not value.store.exact:
            raise Refused("not-generic", "documents append another part of themselves than all of it", collect)
        return value
    if without is None and machine.least > 1:
        return of_long(machine, loop, collect, value)
    if without is None or value is None:
        raise Refused(
            "not-generic", "only some documents append to a list, which is not known to make no more", collect
        )
    fakes = [example(source) for source in sources]
    differs = Refused("not-generic", "what documents without slots append is of another form than others", collect)
    if any(not isinstance(fake, torch.Tensor) for fake in fakes) or fakes[0].dtype != fakes[1].dtype:
        raise differs
    if fakes[0].dim() != fakes[1].dim() or fakes[0].device != fakes[1].device:
        raise differs
    if machine.least > 1:
        if not isinstance(value, Document):
            raise differs
        refuse_mixing(value.cell.term, machine.least)
    if isinstance(value, Segment):
        at = value.rank + value.dim
        others = [d for d in range(value.rank) if d != at]
        whole = value.window == FULL and value.store.exact
        if not whole or not all(statically_known_true(fakes[0].shape[d] == fakes[1].shape[d]) for d in others):
            raise differs
        if not isinstance(without, Segment) or (without.window, without.dim) != (FULL, value.dim):
            raise differs
        if not without.store.exact:
            raise differs
        if not _with_gradient(machine.read(without, collect)) <= _with_gradient(machine.read(value, collect)):
            # Nothing of it is in the row, but what eager makes of no slots has a gradient, of zeros.
            raise Refused("not-generic", "what documents without slots append has a gradient of its own", collect)
        return value
    if not isinstance(value, Document) or not isinstance(without, Document):
        raise differs
    if not all(statically_known_true(a == b) for a, b in zip(fakes[0].shape, fakes[1].shape, strict=True)):
        raise differs
    if without.cell.term is value.cell.term:
        return value
    if fakes[0].requires_grad:
        # It is made for documents with slots as well, and where there are no others it has no gradient in eager.
        raise Refused("not-generic", "what documents without slots append has a gradient of its own", collect)
    _known_before(graph, loop, without.cell.term)
    return document(machine, DocAssign(without.cell.term, value.cell.term, machine.least))


def _with_gradient(term: Term) -> set[fx.Node]:
    """The tensors from outside that a value is made from and that have a gradient."""
    nodes = {getattr(part, "node", None) for part in walk(term)}
    return {node for node in nodes if isinstance(node, fx.Node) and example(node).requires_grad}


def _known_before(graph: fx.Graph, loop: LoopFound, term: Term) -> None:
    """Is a tensor from outside still what it was, where what is made of the list is read?"""
    begin = loop.iterations[0][0]
    if any(mutated_after(graph, node, begin) for node in outside_nodes([term])):
        raise Refused("aliasing", "documents without slots leave a tensor that is changed before it is read")
