"""A branch that some documents take one way, and all others the other: ``if n == 0: out.append(zeros)``.

Capture has followed one way in each traced iteration. Where these leave the same, nothing has to be known of the
branch. Where they do not, each arm is interpreted for the documents that take it, and what they leave is put together:
a value of every document is chosen by its numbers, and so is a row of slots, unless the documents of one arm have no
slots. The other arm is guarded as everything is behind a skip, so that what it would make of nothing reaches no
gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example, op_name, storage
from packpass.semantics.effects import mutated_after, written_inputs
from passes.document_loops.aliasing import memory_of, outside_nodes
from passes.document_loops.documents import document
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.integers import FULL, Reach
from passes.document_loops.machine import Cell, Document, Machine, Segment, Store
from passes.document_loops.reached import (
    Reached,
    gradients_to,
    may_be_none,
    not_of_some_alone,
    refuse_mixing,
    with_gradient,
)
from passes.document_loops.rules import rule
from passes.document_loops.terms import Apply, DocAssign, Outside, Row, Take, Term
from passes.document_loops.uneven import of_long
from passes.document_loops.whole import Whole
from passes.loops import LoopFound, is_unused
from passes.refused import Refused

Interpreted = tuple[Machine, dict[fx.Node, Any]]


@rule("last_slot")
def _last_slot(machine: Machine, node: fx.Node) -> Any:
    """``x[-1:]`` of documents that are known to have a slot: a value of each."""
    value, dim = machine.value(node.args[0]), node.args[1]
    whole = isinstance(value, Segment) and value.window == FULL and value.store.exact
    if not whole or dim != value.rank + value.dim or machine.reach.slots < 1:
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


def joined(graph: fx.Graph, loop: LoopFound, arms: list[Interpreted]) -> Interpreted:
    """What all documents leave; raises `Refused` if that is not known from the arms."""
    which, rest = _two(loop, arms)
    (empty, without), (filled, appended) = arms[which], arms[rest]
    _same_work(empty, filled)
    if filled.reach.misses_slots:
        _apart(loop, (which, rest), empty, filled)
    for key in [*filled.rows, *(key for key in empty.rows if key not in filled.rows)]:
        _join_rows(graph, loop, key, empty, filled)
    found = {}
    for collect, value in appended.items():
        if value is not None and is_unused(collect):
            found[collect] = value
            continue
        sources = markers.collected_in(collect, which), markers.collected_in(collect, rest)
        values = without[collect], value
        given = [_given_by(loop, i, [source]) for i, source in zip((which, rest), sources, strict=True)]
        found[collect] = _join_entries(graph, loop, filled, _known(empty.reach), values, sources, given, collect)
    return filled, found


def _two(loop: LoopFound, arms: list[Interpreted]) -> tuple[int, int]:
    """The arms to put together: that which leaves less, or, of several, one that leaves nothing, as all others do."""
    if len(arms) == 2:
        ways = [i for i in (0, 1) if arms[i][0].others == arms[1 - i][0].reach]
        if not ways:
            raise Refused("not-generic", "the branch is none on numbers that say of every document which way it takes")
        which = min(ways, key=lambda i: _work(loop, i, *arms[i]))
        return which, 1 - which
    leaves = [i for i, arm in enumerate(arms) if not _leaves_nothing(loop, i, *arm)]
    if len(leaves) != 1:
        raise Refused("not-generic", "of several ways through the body more than one leave something")
    rest = [i for i in range(len(arms)) if i not in leaves]
    return min(rest, key=lambda i: not arms[i][0].by_rows), leaves[0]


def _leaves_nothing(loop: LoopFound, which: int, machine: Machine, appended: dict[fx.Node, Any]) -> bool:
    listed = [collect for collect, value in appended.items() if value is not None]
    adds = any(not _adds_nothing(markers.collected_in(collect, which), collect) for collect in listed)
    return not adds and not _written(machine) and not machine.checks and not machine.split_of


def _written(machine: Machine) -> int:
    """How many tensors from outside an arm writes."""
    return sum(bool(held.version) for kept in (machine.outer, machine.rows) for held in kept.values())


def _same_work(empty: Machine, filled: Machine) -> None:
    """May the arm without slots do what it does? Writing to no slot is nothing, but a check, or a slot at a boundary,
    is something."""
    differs = Refused("not-generic", "the documents that go the other way do more than to leave another value")
    checks = [check for check in empty.checks if check not in filled.checks]
    if checks and _known(empty.reach) is None:
        raise differs
    filled.checks += checks  # each says which documents it is for
    if empty.boundaries != filled.boundaries and not empty.by_rows:
        raise differs
    machines = (empty, filled)
    if any(m.skips_empty or m.skip is not None for m in machines):
        raise differs
    if any(node not in filled.split_of for node in empty.split_of):
        raise differs
    if any(store.version and isinstance(store.outer, Whole) for store in empty.outer.values()):
        raise differs
    for machine in machines:
        for store in machine.outer.values():
            if store.version and (store.point_fills or not _writes_slots(store)):
                raise differs


def _known(reach: Reach) -> Reach | None:
    """The documents of an arm; of short ones it is not noted down which they are."""
    return reach if reach.conditions else None


def _work(loop: LoopFound, which: int, machine: Machine, appended: dict[fx.Node, Any]) -> tuple[bool, int]:
    """Does an arm cut documents, and how much does it leave, with what has a gradient counted twice?"""
    sources = [example(markers.collected_in(c, which)) for c, value in appended.items() if value is not None]
    leaves = _written(machine) + sum(1 + getattr(source, "requires_grad", False) for source in sources)
    return not machine.by_rows, leaves


def _apart(loop: LoopFound, arms: tuple[int, int], empty: Machine, filled: Machine) -> None:
    """Each slot that one of the arms writes is that of its own document's arm."""
    without = {key: store for key, store in empty.outer.items() if store.version and store.outer is not None}
    for key, store in without.items():
        refuse_mixing(store.term, _known(empty.reach))
        here = filled.outer.get(key)
        if here is not None and here.version:
            _keep_both(filled, (store.term, here.term), [_given_in_rows(loop, which) for which in arms])
        if here is None:
            assert store.outer is not None
            here = filled.outer[key] = Store(store.outer, outer=store.outer)
        if not here.version:
            filled.turns += 1
            here.version, here.turn = 1, filled.turns
    filled.skip = {key: (store.term, -1) for key, store in without.items()}
    filled.finish()


def _writes_slots(store: Store) -> bool:
    return isinstance(store.outer, (Row, Whole)) or (isinstance(store.outer, Elsewhere) and not store.outer.at_end)


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
    target.term = filled.intern(DocAssign(before, after, filled.reach))
    target.version += 1


def _plain(value: Any) -> bool:
    """Is this a number, or a tensor that was there before and has no gradient?"""
    if isinstance(value, Outside):
        return value.node is not None and not getattr(example(value.node), "requires_grad", False)
    return isinstance(value, (bool, int, float))


def _join_entries(
    graph: fx.Graph,
    loop: LoopFound,
    machine: Machine,
    other: Reach | None,
    values: tuple[Any, Any],
    sources: Any,
    given: list[set[fx.Node]],
    collect: fx.Node,
) -> Any:
    """What is appended to a list. None: nothing, for documents without slots have no part in what is joined."""
    without, value = values
    if without is None and isinstance(value, Segment) and not machine.reach.misses_slots:
        if value.window != FULL or not value.store.exact:
            raise Refused("not-generic", "documents append another part of themselves than all of it", collect)
        return value
    if without is None and machine.reach.misses_slots:
        return of_long(machine, loop, collect, value)
    if without is None or value is None:
        raise Refused(
            "not-generic", "only some documents append to a list, which is not known to make no more", collect
        )
    fakes = [example(source) for source in sources]
    if any(not isinstance(fake, torch.Tensor) for fake in fakes) or fakes[0].dtype != fakes[1].dtype:
        raise _differs(collect)
    if fakes[0].dim() != fakes[1].dim() or fakes[0].device != fakes[1].device:
        raise _differs(collect)
    if isinstance(value, Segment) and isinstance(without, Segment):
        return _join_segments(graph, loop, machine, other, (without, value), fakes, given, collect)
    if not isinstance(value, Document) or not isinstance(without, Document):
        raise _differs(collect)
    if not all(statically_known_true(a == b) for a, b in zip(fakes[0].shape, fakes[1].shape, strict=True)):
        raise _differs(collect)
    if without.cell.term is value.cell.term:
        return value
    for one in (without, value):
        _holds_no_view(graph, loop, one, collect)
    this, that = value.cell.term, without.cell.term
    if machine.reach.misses_slots:
        refuse_mixing(this, machine.reach)
    if may_be_none(machine.reach, machine.boundaries) and not _used_if_some(collect):
        _keep_both(machine, (that, this), given)
    if fakes[0].requires_grad:
        if other is None:  # it is made for documents with slots as well, and where there are no others eager has none
            raise _gradients(collect)
        refuse_mixing(that, other)
    _known_before(graph, loop, that)
    return document(machine, DocAssign(that, this, machine.reach))


def _gradients(node: fx.Node | None) -> Refused:
    reason = "only one way at a branch uses a tensor with a gradient, which it lacks in eager if no document goes there"
    return Refused("not-generic", reason, node)


def _used_if_some(collect: fx.Node) -> bool:
    """Is what a list becomes used only where a document has left more than nothing?"""
    made = [user for user in collect.users if user.target in markers.LIST_USES]
    return all(user.target in (markers.LIST_STACK, markers.LIST_JOIN) and user.args[3:] == (True,) for user in made)


def _keep_both(machine: Machine, terms: tuple[Term, Term], given: list[set[fx.Node]]) -> None:
    """Of two values, each gives a gradient to what the other does, or that has one anyway; ``given``: to which tensors
    they pass one on, as traced. (A term may mention others.)"""
    for i in (0, 1):
        if given[i]:
            instead = with_gradient(terms[1 - i]) & given[1 - i]
            not_of_some_alone(machine.inside, with_gradient(terms[i]), instead)


def _given_by(loop: LoopFound, which: int, values: list[fx.Node]) -> set[fx.Node]:
    return gradients_to(values, set(loop.iterations[which][1]))


def _given_in_rows(loop: LoopFound, which: int) -> set[fx.Node]:
    """To which tensors what an arm writes, and what it writes to, give a gradient."""
    writes = [node for node in loop.iterations[which][1] if written_inputs(node)]
    return _given_by(loop, which, [n for node in writes for n in node.all_input_nodes])


def _adds_nothing(source: Any, collect: fx.Node) -> bool:
    """Is a list summed, to which documents append a 0?"""
    zero = isinstance(source, fx.Node) and source.target is torch.full and bool(source.args[1] == 0)
    stacks = list(collect.users)
    summed = all(user.target is markers.LIST_STACK and all(map(_is_sum, user.users)) for user in stacks)
    return zero and summed


def _is_sum(node: fx.Node) -> bool:
    return op_name(node) == "sum"


def _differs(collect: fx.Node) -> Refused:
    return Refused("not-generic", "what documents append one way is of another form than the other way", collect)


def _join_segments(
    graph: fx.Graph,
    loop: LoopFound,
    machine: Machine,
    other: Reach | None,
    segments: tuple[Segment, Segment],
    fakes: list[torch.Tensor],
    given: list[set[fx.Node]],
    collect: fx.Node,
) -> Segment:
    """Rows of slots of both arms, each slot that of its own document's; ``other``: the documents of the first."""
    without, value = segments
    packed = value.rank + value.dim
    others = [d for d in range(value.rank) if d != packed]
    if not all(statically_known_true(fakes[0].shape[d] == fakes[1].shape[d]) for d in others):
        raise _differs(collect)
    if (without.window, without.dim) != (FULL, value.dim) or value.window != FULL:
        raise _differs(collect)
    if not value.store.exact or not without.store.exact:
        raise _differs(collect)
    this, that = machine.read(value, collect), machine.read(without, collect)
    if not machine.reach.misses_slots:
        if not with_gradient(that) <= with_gradient(this):
            # Nothing of it is in the row, but what eager makes of no slots has a gradient, of zeros.
            raise _gradients(collect)
        return value
    for one in segments:
        _holds_no_view(graph, loop, one, collect)
    _keep_both(machine, (that, this), given)
    refuse_mixing(this, machine.reach)
    refuse_mixing(that, other)
    return machine.fresh(Reached(machine.reach, this, that, value.dim), value.rank)


def _holds_no_view(graph: fx.Graph, loop: LoopFound, value: Segment | Document, collect: fx.Node) -> None:
    """What is put together is no view any more: what was one must stay what it is, and nobody may write through it."""
    memory = memory_of(value)
    if memory.outer is None:
        return
    changed = memory.version or mutated_after(graph, memory.outer.node, loop.iterations[0][0])
    if changed or any(user.target is markers.LIST_GET for user in collect.users):
        reason = "a list holds views of a tensor, which may be changed before or by what is made of the list"
        raise Refused("aliasing", reason, collect)


def _known_before(graph: fx.Graph, loop: LoopFound, term: Term) -> None:
    """Is a tensor from outside still what it was, where what is made of the list is read?"""
    begin = loop.iterations[0][0]
    if any(mutated_after(graph, node, begin) for node in outside_nodes([term])):
        raise Refused("aliasing", "documents without slots leave a tensor that is changed before it is read")
