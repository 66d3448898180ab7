"""What a document writes into a row of its own of a new tensor: ``out[i, : h * w] = x``, ``grid[i, :, :h, :w] = x``.

After the loop, row i holds the values where the document has written them and what was there elsewhere, which is a term
like any other (`passes.ragged_grids.terms.Padded`, over what was there). The rows of all documents are put in at once.
So it is with a tensor that the document makes for itself: from the write on, it holds such a term.

Does not handle: tensors that are there before the graph, which somebody else may look at; rows that the loop reads, or
adds to; places that tensors hold; views of a tensor of the document's own that are taken before a write and looked at.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.markers import is_of_capture
from packpass.semantics import example, is_tensor, storage
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import effects_of, written_inputs
from packpass.semantics.indexing import entries_of
from packpass.semantics.memory import is_new, overwritten, shared_inputs
from passes.loops import LoopFound
from passes.ragged_grids import layers
from passes.ragged_grids.asked import may_be_checked
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import DOCUMENT, Coordinate, coordinates
from passes.ragged_grids.terms import Filled, Form, Input, Moved, Padded, Term
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Rows:
    """A tensor of which document i has row ``i + ahead``."""

    out: fx.Node
    ahead: int


@dataclasses.dataclass(frozen=True)
class Range:
    """``size`` slots along a dimension, from ``start`` on; None for one place, which is no dimension of what is
    written."""

    start: Any
    size: Any


def write(machine: Machine, node: fx.Node) -> bool:
    """A write to a document's row, through whatever view of it; False for another write."""
    found = overwritten(node)
    if found is None:
        return False
    view, index, value = found
    term = machine.values.get(view)
    base = _own(machine, view)
    if base is not None and is_of_capture(base):
        return False  # a list has it, too, or it is a part of another tensor
    if base is not None:
        return isinstance(term, Term) and _write_own(machine, base, view, index, value, node)
    if not isinstance(term, Moved) or not isinstance(term.read.of, Input) or not is_only_written(view):
        return False
    out, (row, *at) = term.read.of.node, term.read.at
    if storage(view) != storage(out):
        return False  # a copy
    ahead = sympy.expand(row - DOCUMENT) if isinstance(row, sympy.Basic) else None
    dims = [_dimension(where) for where in at]
    if not _has_each_place_once(dims, term) or ahead is None or not ahead.is_Integer or ahead < 0:
        return False
    if not is_new_in_graph(out):
        return False
    ranges = _ranges(machine, index, term.dims, node)
    part = value_of(machine, value, term, node)
    rows = Rows(out, int(ahead))
    before = machine.rows.get(rows) or _row(machine, rows)
    machine.rows[rows] = _put(machine, before, part, dims, ranges, node)
    return True


def _own(machine: Machine, view: fx.Node) -> fx.Node | None:
    """The tensor that the document makes, or has from capture, of which this is a view, or itself."""
    memory = storage(view)
    while not is_new(view) and not is_of_capture(view):
        given = shared_inputs(view)
        if memory is None or len(given) != 1 or given[0] not in machine.inside:
            return None
        view = given[0]
    return view if view in machine.inside else None


def _write_own(machine: Machine, base: fx.Node, view: fx.Node, index: list[Any], value: Any, node: fx.Node) -> bool:
    """A write to a tensor of the document's own: it holds something else from there on."""
    before, term = machine.values.get(base), machine.values[view]
    if not isinstance(before, Term) or not _is_seen_behind(base):
        return False
    if view is base:
        dims: list[Any] = [(d, sympy.Integer(0)) for d in range(len(before.dims))]
    elif isinstance(term, Moved) and term.read.of is before:
        dims = [_dimension(where) for where in term.read.at]
    else:
        return False
    if not _has_each_place_once(dims, term):
        return False
    ranges = _ranges(machine, index, term.dims, node)
    made = _put(machine, before, value_of(machine, value, term, node), dims, ranges, node)
    machine.keep(base, made)
    return True


def _is_seen_behind(base: fx.Node) -> bool:
    """Are views of a tensor that somebody looks at taken when all has been written to it?"""
    views, writes, stack = list[fx.Node](), list[fx.Node](), [base]
    while stack:
        seen = stack.pop()
        for user in seen.users:
            if (found := overwritten(user)) is not None and found[0] is seen:
                writes.append(user)
            elif may_be_view(user, base) and user not in views:
                views.append(user)
                stack += [] if is_of_capture(user) else [user]
            elif seen in written_inputs(user):
                return False
    lists = [view for view in views if view.target is markers.LIST_COLLECT]
    return all(
        view in lists or (not is_of_capture(view) and is_only_written(view)) or all(write < view for write in writes)
        for view in views
    )


def may_be_view(user: fx.Node, base: fx.Node) -> bool:
    """Is a result in the memory of a tensor, or are there several of which some may be: the parts of a ``chunk``?"""
    value = example(user)
    if isinstance(value, (tuple, list)):
        return any(isinstance(part, torch.Tensor) for part in value)
    return is_tensor(user) and (storage(user) == storage(base) or is_of_capture(user))


def _has_each_place_once(dims: list[Any], term: Term) -> bool:
    """Is a view neither a diagonal nor one place many times?"""
    seen = [found[0] for found in dims if found is not None and found[0] is not None]
    once = len(set(seen)) == len(seen) and all(size == 1 for d, size in enumerate(term.dims) if d not in seen)
    return once and None not in dims


def is_only_written(view: fx.Node) -> bool:
    """Does nobody in the loop look at what a view of a row holds?"""
    for user in view.users:
        found = overwritten(user)
        written = found is not None and found[0] is view and view not in user.args[1:]
        seen = is_tensor(user) and storage(user) == storage(view) and is_only_written(user)
        if not (seen or asks_sizes(user) or (written and not user.users)):
            return False
    return True


def asks_sizes(user: fx.Node) -> bool:
    """Is a tensor asked for nothing that it holds?"""
    return isinstance(example(user), (int, torch.SymInt, torch.Size)) and not effects_of(user).host


def is_new_in_graph(out: fx.Node) -> bool:
    """Is a tensor made in the graph?"""
    given = {storage(node) for op in ("placeholder", "get_attr") for node in out.graph.find_nodes(op=op)}
    return storage(out) is not None and storage(out) not in given


def _dimension(where: Any) -> tuple[Any, Any] | None:
    """``(dimension of the view, where it begins)`` of a coordinate in the row; of one place the dimension is None."""
    found = where.atoms(Coordinate) if isinstance(where, sympy.Basic) else set()
    if not found:
        return (None, where) if isinstance(where, sympy.Basic) else None
    begin = sympy.expand(where - min(found, key=str))
    return None if len(found) > 1 or begin.has(Coordinate) else (int(min(found, key=str).args[0]), begin)


def _row(machine: Machine, rows: Rows) -> Term:
    """The document's row as it is before the loop."""
    whole = machine.term(rows.out, rows.out)
    dims = whole.dims[1:]
    read = machine.read(whole, (DOCUMENT + rows.ahead, *coordinates(dims)))
    return machine.moved((dims, whole.dtype, whole.device, whole.grad), read)


def _put(machine: Machine, before: Term, part: Term, dims: list[Any], ranges: list[Range], node: fx.Node) -> Term:
    """What a tensor holds, ``before`` that, with a value in ranges of a view with these ``dims``."""
    where, within = {}, []
    for at, size, (d, begin) in zip(coordinates(before.dims), before.dims, dims, strict=True):
        found = Range(sympy.Integer(0), None) if d is None else ranges[d]
        start = sympy.expand(begin + found.start)
        where[d] = sympy.expand(at - start)
        if start != 0 or found.size != size:
            within.append((where[d], sympy.Integer(1) if found.size is None else found.size))
    rooms = [(where.get(d, sympy.Integer(0)), each.size) for d, each in enumerate(ranges) if each.size is not None]
    places = spread_over(machine, part, rooms, node)
    form: Form = (before.dims, before.dtype, before.device, before.grad or part.grad)
    read = layers.in_memory(machine, machine.read(part, places))
    old = machine.read(before, coordinates(before.dims))
    return machine.intern(Padded(*form, read, tuple(within), old)) if within else machine.moved(form, read)


def spread_over(machine: Machine, part: Term, rooms: list[tuple[Any, Any]], node: fx.Node) -> tuple[Any, ...]:
    """Where a value is read for places that are written; ``rooms``: such a place, and how many there are, for every
    dimension."""
    if len(part.dims) > len(rooms):
        raise Refused("no-rule", "a value with more dimensions than the place where it is written", node)
    rooms = rooms[len(rooms) - len(part.dims) :]
    for size, (_, room) in zip(part.dims, rooms, strict=True):
        if size != 1:
            _fits(machine, room, size, node)
    return tuple(sympy.Integer(0) if size == 1 else at for size, (at, _) in zip(part.dims, rooms, strict=True))


def _fits(machine: Machine, room: Any, size: Any, node: fx.Node) -> None:
    """A value has as many slots as are written. Of a document with one slot, eager writes that to all of them, which is
    a failed check here."""

    def uncut(found: Any) -> Any:
        named = [arg for arg in found.args if arg.free_symbols & machine.names.own]
        return named[-1] if named else found

    whole = [found.replace(lambda e: isinstance(e, (sympy.Min, sympy.Max)), uncut) for found in (room, size)]
    if not machine.on_host and sympy.expand(whole[0] - whole[1]) != 0:
        raise Refused("length-mismatch", "a value is not known to have as many slots as are written", node)
    machine.check(room, "==", size, node, "a value does not fit where it is written")


def value_of(machine: Machine, value: Any, row: Term, node: fx.Node) -> Term:
    """What is written, in the dtype of the tensor."""
    if is_tensor(value):
        term = machine.term(value, node)
        if term.device != row.device:
            raise Refused("no-rule", "a value on another device than the tensor that it is written to", node)
        return machine.cast(term, row.dtype)
    number = example(value) if isinstance(value, fx.Node) else value
    if not isinstance(number, (bool, int, float, torch.SymInt)):
        raise Refused("no-rule", "what is written into a row is no tensor and no number", node)
    known = machine.expression(value, node) if isinstance(number, torch.SymInt) else number
    return machine.intern(Filled((), row.dtype, row.device, False, known))


# === Where ===================================================================================================


def _ranges(machine: Machine, index: list[Any], dims: tuple[Any, ...], node: fx.Node) -> list[Range]:
    """What an index takes of each dimension of a view."""
    entries = entries_of(tuple(index), len(dims))
    if entries is None or len(entries) != len(dims):
        raise Refused("no-rule", "an index of what is written that does not name a place for every dimension", node)
    return [_range(machine, entry.item, size, node) for entry, size in zip(entries, dims, strict=True)]


def _range(machine: Machine, entry: Any, size: Any, node: fx.Node) -> Range:
    if _is_number(entry):
        place = machine.expression(entry, node)
        place = sympy.expand(size + place) if place.is_Integer and place < 0 else place
        machine.check(place, ">=", sympy.Integer(0), node, "a place in front of the row is written")
        machine.check(size - place - 1, ">=", sympy.Integer(0), node, "a place behind the row is written")
        return Range(place, None)
    if not isinstance(entry, slice) or entry.step not in (None, 1):
        raise Refused("no-rule", "a part of a row that is no range of slots is written", node)
    start = sympy.Integer(0) if entry.start is None else _bound(machine, entry.start, size, node, begins=True)
    stop = size if entry.stop is None else _bound(machine, entry.stop, size, node)
    if start != 0 and sympy.sympify(stop - start >= 0) != sympy.true:
        stop = sympy.Max(start, stop)
    return Range(start, sympy.expand(stop - start))


def _bound(machine: Machine, entry: Any, size: Any, node: fx.Node, begins: bool = False) -> Any:
    """A bound of a slice, at most the end of the row. It is counted from the end if it is negative, and then it must be
    that for all documents."""
    if not _is_number(entry):
        raise Refused("no-rule", "a bound of what is written that is no number", node)
    bound = machine.expression(entry, node)
    from_end = bound != 0 and all(part.as_coeff_Mul()[0] < 0 for part in sympy.Add.make_args(bound))
    if from_end and bound.free_symbols:
        if not machine.on_host:
            raise Refused("no-rule", "what is written begins so many slots before the end as a document says", node)
        machine.check(-bound - 1, ">=", sympy.Integer(0), node, "a part that begins 0 slots before the end is written")
    bound = sympy.expand(size + bound) if from_end else bound
    if begins and machine.branches and not may_be_checked(machine, bound):
        raise Refused("no-rule", "where what is written begins may be a negative number", node)
    machine.check(bound, ">=", sympy.Integer(0), node, "a part in front of the row is written")
    return bound if from_end else sympy.Min(bound, size)


def _is_number(entry: Any) -> bool:
    value = example(entry) if isinstance(entry, fx.Node) else entry
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


# === The loop ================================================================================================


def check_rows(loop: LoopFound, machines: list[Machine]) -> dict[Any, tuple[Term, ...]]:
    """What each iteration leaves in rows, and in parts; raises `Refused` if somebody else in the loop looks at these
    tensors."""
    found = dict.fromkeys(rows for machine in machines for rows in machine.rows)
    memory = {storage(rows.out) for rows in found}
    own_views = {view for machine in machines for view in machine.own_views}
    if len(memory) < len(found):
        raise Refused("not-generic", "several rows of one tensor are written by one document", None)
    for node in loop.nodes:
        given = [n for n in node.all_input_nodes if n not in loop.nodes and is_tensor(n)]
        seen = [n for n in given if storage(n) in memory]
        if not seen or node in own_views or _only_writes(node, seen):
            continue
        if not (storage(node) in memory and is_only_written(node)):
            raise Refused("aliasing", "a tensor that the loop writes to is looked at in the loop as well", node)
    return {rows: tuple(_left(machine, rows) for machine in machines) for rows in found}


def _only_writes(node: fx.Node, seen: list[fx.Node]) -> bool:
    """Is a tensor nothing to a node but the place where it writes?"""
    found = overwritten(node)
    return found is not None and seen == [found[0]] and found[2] is not found[0]


def _left(machine: Machine, rows: Any) -> Term:
    """What an iteration leaves in its row; what was there, if it writes nothing."""
    if rows in machine.rows:
        return machine.rows[rows]
    if not isinstance(rows, Rows):
        raise Refused("not-generic", "some documents write their slots of a tensor, and others do not", rows.out)
    return _row(machine, rows)


def put_in(documents: Any, count: Any, rows: Rows, made: fx.Node) -> None:
    """The rows of all documents are those of the tensor."""
    out, have = rows.out, example(rows.out).shape[0]
    last = documents.folded(operator.add, [count, rows.ahead])
    number = example(last) if isinstance(last, fx.Node) else last
    if not statically_known_true(have >= number):
        there = documents.call(torch.ops.aten.sym_size.int, out, 0)
        documents.call(torch._check, documents.call(operator.ge, there, last))
    every = not rows.ahead and statically_known_true(have == number)
    documents.call(operator.setitem, out, slice(None) if every else slice(rows.ahead, last), made, fake=NO_VALUE)
