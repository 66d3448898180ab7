"""May a loop over rows of sizes run as one row of slots? Nothing here changes the graph."""

from __future__ import annotations

import dataclasses
import logging
import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.semantics import example
from packpass.semantics.effects import effects_of, mutated_after
from packpass.semantics.names import name_of_target
from passes.loops import LoopFound, hoistable, list_sizes, no_escape
from passes.overlapping import check_apart
from passes.ragged_grids.arms import Arms, arms
from passes.ragged_grids.machine import Check, Machine, label
from passes.ragged_grids.sizes import DOCUMENT, LAST, Names, coordinates
from passes.ragged_grids.steps import finish, step
from passes.ragged_grids.terms import (
    Applied,
    Chosen,
    Count,
    Filled,
    Input,
    Interner,
    Moved,
    Number,
    Padded,
    Piece,
    Read,
    Selected,
    Term,
    Value,
    computed,
    reads,
    walk,
)
from passes.ragged_grids.ways import length_of, ways
from passes.ragged_grids.written import Rows, check_rows
from passes.ragged_grids.written_parts import Part
from passes.refused import Refused
from passes.turned_in_place import check_turned

_INTEGERS = (torch.int32, torch.int64)


Appended = tuple[tuple[fx.Node, Term], ...]
"""List -> what each document appends."""
Written = tuple[tuple[Rows | Part, Term], ...]

log = logging.getLogger("packpass.ragged_grids")


@dataclasses.dataclass(frozen=True)
class Decided:
    """A loop over rows of sizes, with everything the rewrite needs."""

    loop: LoopFound
    names: Names
    appended: Appended
    written: Written
    """Rows, or parts, of a tensor -> what each document's own of it holds behind the loop."""
    checks: tuple[Check, ...]
    hoisted: tuple[fx.Node, ...]
    dead: tuple[fx.Node, ...]

    @property
    def terms(self) -> tuple[Term, ...]:
        """All that documents leave."""
        return tuple(term for _, term in (*self.appended, *self.written))

    @property
    def documents(self) -> Any:
        """How many documents there are: a node or an int."""
        return self.loop.length


def is_over_rows(loop: LoopFound) -> bool:
    """Does the body read numbers of a row of a matrix, or lay a document's slots out by several numbers of its own?"""
    body = loop.iterations[0][1]
    return any(_is_row_number(node, set(body)) or _lays_out(node) for node in body)


def ends_as_rows(loop: LoopFound) -> bool:
    """Is what a document adds to a list as long as its row, with the slots behind it?"""
    sources = [_source(collect, 0) for collect in loop.collects]
    parts = [source.args[0] for source in sources if source.target is markers.RESHAPE]
    return any(isinstance(part, fx.Node) and part.target is torch.cat for part in parts)


def _lays_out(node: fx.Node) -> bool:
    if node.target is not markers.RESHAPE:
        return False
    sizes = [size.node.expr for size in example(node).shape if isinstance(size, torch.SymInt)]
    return len({size for size in sizes if size.is_Symbol and free_unbacked_symbols(size)}) > 1


def _is_row_number(node: fx.Node, body: set[fx.Node]) -> bool:
    """A number that is an entry of a row of a matrix of integers, from outside the loop. (Places that ``nonzero`` has
    found in a vector are a matrix, too, of one column, which is made a vector in front of the loop.)"""
    if not isinstance(example(node), torch.SymInt) or not effects_of(node).host:
        return False
    seen: list[Any] = [node]
    for _ in range(3):
        if seen[-1] not in body and _is_one_row(seen[-1]):
            return False  # a row that was taken in front of the loop is a vector like others
        inputs = [n for n in seen[-1].all_input_nodes if isinstance(example(n), torch.Tensor)]
        if len(inputs) != 1:
            return False
        seen.append(inputs[0])
        fake = example(inputs[0])
        if name_of_target(seen[-2].target) == "sum":
            return False  # of a mask: a length, for which the places in the row do not matter
        if fake.dim() == 2:
            if free_unbacked_symbols(fake.shape[0]):
                return False  # made in the body, of as many rows as the document says
            vector = seen[-2] not in body and statically_known_true(fake.shape[1] == 1)
            return fake.dtype in _INTEGERS and not vector
    return False


def _is_one_row(vector: fx.Node) -> bool:
    at = vector.args[1:] if vector.target in (torch.select, operator.getitem) else ()
    return bool(len(at) in (1, 2) and type(at[-1]) is int and (len(at) == 1 or at[0] == 0))


def decide(graph: fx.Graph, loop: LoopFound) -> Decided:
    """Check every condition; raises `Refused`."""
    if len(loop.iterations) < 2:
        raise Refused("not-captured", "the loop was not traced twice")
    check_turned(loop)
    check_apart(loop)
    hoisted = hoistable(graph, loop)
    inside = loop.nodes - set(hoisted)
    iterations = tuple((b, tuple(n for n in body if n in inside), e) for b, body, e in loop.iterations)
    loop = dataclasses.replace(loop, iterations=iterations)
    intern, names = Interner(), Names(_numbers_before(graph, loop))
    machines = [_interpret(loop, i, intern, names) for i in range(len(loop.iterations))]
    appended, written, checks = _generic(loop, machines)
    dead, begin = list_sizes(loop), loop.iterations[0][0]
    decided = Decided(loop, names, appended, written, checks, hoisted, dead)
    for collect, term in appended:
        _concatenated(decided, collect, term)
    if any(_mentions_last(term) for term in decided.terms):
        raise Refused("no-rule", "the last entry of a list is used otherwise than to count on from it")
    for term in decided.terms:
        _in_one_place(begin, term)
    _from_outside(graph, decided)
    no_escape(loop, label)
    return decided


def _numbers_before(graph: fx.Graph, loop: LoopFound) -> dict[Any, fx.Node]:
    """Numbers that only the data says, and that are worked out in front of the loop, by their name."""
    found: dict[Any, fx.Node] = {}
    depth, node = 0, next(iter(graph.nodes))
    count = example(loop.length)
    # What is as long as there are documents would be made once for each of them.
    documents = count.node.expr if isinstance(count, torch.SymInt) else None
    while node is not loop.iterations[0][0]:
        depth += (node.target is markers.LOOP_BEGIN) - (node.target is markers.LOOP_END)
        value = example(node)
        name = value.node.expr if isinstance(value, torch.SymInt) and not depth else None
        if name is not None and name.is_Symbol and name != documents and free_unbacked_symbols(value):
            found.setdefault(name, node)
        node = node.next
    return found


def _generic(loop: LoopFound, machines: list[Machine]) -> tuple[Appended, Written, tuple[Check, ...]]:
    """What every document appends and writes, and what must hold for it; raises `Refused`."""
    rows = check_rows(loop, machines)
    if not loop.collects and not rows:
        raise Refused("no-effect", "the loop over rows of sizes fills no list, and no rows of a new tensor")
    lists = {collect: _terms(loop, collect, machines) for collect in loop.collects}
    left, checks = _of_all(machines, {**lists, **rows})
    appended = tuple((collect, left[collect]) for collect in lists if collect in left)
    return appended, tuple((row, left[row]) for row in rows), checks


def _of_all(machines: list[Machine], of_each: dict[Any, tuple[Term | None, ...]]) -> tuple[Any, tuple[Check, ...]]:
    """What documents leave, by the list or the rows, and what must hold for them; ``of_each``: in each iteration."""
    first, found = machines[0], list(of_each.items())
    differs = [key for key, terms in found if any(term is not terms[0] for term in terms)]
    if not differs and all(machine.checks == first.checks for machine in machines):
        return {key: terms[0] for key, terms in found if terms[0] is not None}, tuple(first.checks)
    nothing = any(None in terms for _, terms in found)
    few = arms(*machines) if len(machines) == 2 and not nothing else None
    if few is not None:
        try:
            return _of_arms(found, few, few.few is first)
        except Refused:
            log.debug("what a branch leaves is not worked out from sizes")
    known = ways(machines)
    if known is None:
        reason = "two iterations of the loop do different things"
        raise Refused("not-generic", reason, next((key for key in differs if isinstance(key, fx.Node)), None))
    which = [machines.index(machine) for machine in known.machines]
    return {key: known.term([terms[i] for i in which]) for key, terms in found}, known.checks()


def _of_arms(found: Any, few: Arms, in_order: bool) -> tuple[Any, tuple[Check, ...]]:
    return {key: few.term(terms if in_order else terms[::-1]) for key, terms in found}, few.checks()


def _terms(loop: LoopFound, collect: fx.Node, machines: list[Machine]) -> tuple[Term | None, ...]:
    """What each traced iteration appends to a list; None for nothing."""
    found: list[Term | None] = []
    for i, machine in enumerate(machines):
        source = _source(collect, i)
        if source in loop.nodes and source not in loop.iterations[i][1]:
            found.append(None)  # of another iteration: this one appends nothing
            continue
        term = machine.term(source, collect)
        found.append(counted_on(machine, term, collect) if collect.target is markers.LIST_CONTINUE else term)
    return tuple(found)


def _source(collect: fx.Node, which: int) -> fx.Node:
    source = markers.collected_in(collect, which)
    assert isinstance(source, fx.Node)
    return source


def _interpret(loop: LoopFound, which: int, intern: Interner, names: Names) -> Machine:
    begin, body, _ = loop.iterations[which]
    machine = Machine(intern, names, loop.nodes)
    machine.only_segments = not is_over_rows(loop) and not ends_as_rows(loop)
    for index in (begin, *(loop.others[which] if loop.others else ())):
        machine.size.bind(example(index), DOCUMENT)
    for node in body:
        step(machine, node)
    finish(machine)
    return machine


def counted_on(machine: Machine, term: Term, node: fx.Node) -> Term:
    """What a document adds to a list of integers, if it is something plus the last entry before it: that something."""
    while isinstance(term, Applied) and term.copies and term.dtype in _INTEGERS:
        (read,) = [arg for arg in term.args if isinstance(arg, Read)]
        if read.at != coordinates(term.dims):
            break
        term = read.of
    args = _summands(term)
    found = [arg for arg in args if isinstance(arg, Value) and arg.value == LAST]
    rest = [arg for arg in args if isinstance(arg, Read)]
    if len(found) != 1 or len(rest) != 1 or rest[0].at != coordinates(term.dims) or len(term.dims) != 1:
        raise Refused("no-rule", "what is added to a list does not count on from its last entry", node)
    if rest[0].of.dtype not in _INTEGERS:
        raise Refused("no-rule", "what is added to a list of integers is none", node)
    return rest[0].of


def _summands(term: Term) -> tuple[Any, ...]:
    """The two operands of a sum."""
    is_sum = isinstance(term, Applied) and term.target is operator.add and len(term.args) == 2 and not term.kwargs
    return term.args if is_sum and isinstance(term, Applied) else ()


def _mentions_last(term: Term) -> bool:
    held = [size for part in walk(term) for size in part.dims]
    held += [part.value for part in walk(term) if isinstance(part, (Number, Filled))]
    held += [part.start for part in walk(term) if isinstance(part, Count)]
    held += [at for part in walk(term) for read in reads(part) for at in read.at]
    held += [arg.value for part in walk(term) if isinstance(part, Applied) for arg in _values(part.args)]
    return any(isinstance(e, sympy.Basic) and LAST in e.free_symbols for e in held)


def _values(args: Any) -> list[Value]:
    if isinstance(args, tuple):
        return [value for arg in args for value in _values(arg)]
    return [args] if isinstance(args, Value) else []


def _concatenated(decided: Decided, collect: fx.Node, term: Term) -> None:
    """The list may be concatenated or stacked along a dimension; the others must be the same for all documents."""
    for user in collect.users:
        if user in decided.dead or user in decided.loop.nodes:
            continue
        joined = row_of(user, term)
        if joined is None:
            said = "the list of per-document tensors is used by something else than torch.cat or torch.stack"
            raise Refused("list-use", said, user)
        term_of, dim = joined
        if may_be_nothing(term) and is_among(user) and any(p.grad for p in walk(term) if isinstance(p, (Input, Piece))):
            reason = "where no document adds to a list, what it is made of has no gradient in eager"
            raise Refused("length-branch", reason, user)
        own = [size for d, size in enumerate(term_of.dims) if d != dim]
        if any(size.free_symbols & decided.names.own for size in own):
            raise Refused("list-use", "documents of different shapes are joined along another dimension", user)


def _in_one_place(collect: fx.Node, term: Term) -> None:
    for part in walk(term):
        if part.device != term.device:
            raise Refused("no-rule", "tensors of a document are on different devices", collect)
        if isinstance(part, Padded) or (isinstance(part, Chosen) and not part.stacked):
            _no_memory_beside(part, collect)


def _no_memory_beside(term: Term, node: fx.Node) -> None:
    """What is cut out of a longer tensor by where it is, is computed everywhere: also where it must not be."""
    if any(computed(read) for read in reads(term)):
        raise Refused("no-rule", "a padded tensor, or one of several parts, that is computed", node)


def may_be_nothing(term: Term) -> bool:
    """Are there documents that leave nothing?"""
    return isinstance(term, Selected) and sympy.expand(sympy.Add(*term.names)) != 1


def is_among(joined: fx.Node) -> bool:
    """Is what documents leave joined to other tensors, so that there need not be any of them?"""
    return any(user.target is torch.cat for user in joined.users)


def row_of(user: fx.Node, term: Term) -> tuple[Term, int] | None:
    """What each document adds to the row that a use makes of the list, and the dimension along which; None for other
    uses."""
    some = may_be_nothing(term)
    if user.target in (markers.RAGGED_CAT, markers.LIST_JOIN) and term.dims:
        dim = int(str(user.args[1])) % len(term.dims)
        if isinstance(term, Selected) and user.target is markers.RAGGED_CAT:
            length = length_of({part.of: name for part, name in zip(term.parts, term.names, strict=True)}, dim)
            return dataclasses.replace(term, dims=(*term.dims[:dim], length, *term.dims[dim + 1 :])), dim
        return None if some else (term, dim)
    if some:
        return None
    if user.target is markers.LIST_PAD and term.dims:
        return term, 0
    if user.target is markers.LIST_BOUNDARIES and term.dims:
        return term, (int(str(user.args[2])) if len(user.args) > 2 else 0) % len(term.dims)
    if user.target is not markers.LIST_STACK:
        return None
    dim = int(str(user.args[1])) % (len(term.dims) + 1)
    return as_one(term, dim), dim


def as_one(term: Term, dim: int) -> Term:
    """A term with one more dimension, of one slot."""
    dims = (*term.dims[:dim], sympy.Integer(1), *term.dims[dim:])
    form = (dims, term.dtype, term.device, term.grad)
    if isinstance(term, Selected):
        parts = [as_one(part.of, dim) for part in term.parts]
        return Selected(*form, tuple(Read(part, coordinates(part.dims)) for part in parts), term.names)
    at = coordinates(dims)
    return Moved(*form, Read(term, (*at[:dim], *at[dim + 1 :])))


def _from_outside(graph: fx.Graph, decided: Decided) -> None:
    """What the loop reads must be what it was when the list is concatenated; columns must be columns, one per row."""
    begin = decided.loop.iterations[0][0]
    count = decided.documents
    number = example(count) if isinstance(count, fx.Node) else count
    nodes = {column.node for column in decided.names.columns.values()}
    for column in decided.names.columns.values():
        rows = example(column.node).shape[0]
        enough = statically_known_true(rows - column.ahead >= number)
        if not enough and not free_unbacked_symbols(rows) and not free_unbacked_symbols(number):
            enough = bool(rows - column.ahead >= number)  # the graph is for such numbers of documents then
        if not enough and not (isinstance(rows, int) and rows == 1 and not column.ahead):
            raise Refused(
                "unequal-lengths", "there are not known to be as many rows of sizes as documents", column.node
            )
        if example(column.node).dtype not in _INTEGERS:
            raise Refused("boundary-dtype", f"sizes of dtype {example(column.node).dtype}", column.node)
    parts = [part for part in walk(*decided.terms) if isinstance(part, (Input, Piece))]
    for node in {*nodes, *(part.node for part in parts)} - {rows.out for rows, _ in decided.written}:
        if mutated_after(graph, node, begin):
            raise Refused("aliasing", "a tensor that the loop reads is changed before the list is concatenated", node)
