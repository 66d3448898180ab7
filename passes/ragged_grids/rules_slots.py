"""Operations that look at several slots of a document: slots that are selected, sums of integers over dimensions that
all documents share, running sums; and, elsewhere, layers, products, and what is made of groups of slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import fx

from packpass.semantics import Call, call_of, example, meaning, meaning_of
from packpass.semantics.indexing import entries_of, selection
from packpass.semantics.reductions import REDUCING, SCANS
from passes.document_loops.boundaries import boundary_vector
from passes.ragged_grids import classes, groups
from passes.ragged_grids.asked import may_be_checked, never_negative
from passes.ragged_grids.by_place import by_place
from passes.ragged_grids.complex_numbers import pairs
from passes.ragged_grids.layers import layer
from passes.ragged_grids.machine import Machine, label
from passes.ragged_grids.products import matrix_product
from passes.ragged_grids.sizes import Column, Coordinate, coordinates, flat, product, regrouped, unflat
from passes.ragged_grids.terms import OWN_ROWS, Kept, Reduced, Scanned, Term, walk
from passes.refused import Refused


def apply(machine: Machine, node: fx.Node, call: Call | None) -> bool:
    """Note the terms of such an operation; False if it is none. Raises `Refused`."""
    for rule in RULES:
        made = rule(machine, node, call) if call is not None else None
        if isinstance(made, tuple):
            machine.values[node] = made
            return True
        if made is not None:
            machine.keep(node, made)
            return True
    return False


def _part(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``x[start:stop]`` of a row from outside, where ``start`` goes on by the sizes of every document: as many slots as
    the two are apart, which torch does not know. (Of other numbers, torch takes what there is between them.) Other
    dimensions may be selected, cut at constants, or new: ``x[start:stop, None, 0]``."""
    fake = example(node)
    if call.op != "getitem" or len(call.operands) != 1 or not isinstance(fake, torch.Tensor):
        return None
    entries = entries_of(call.get("index"), call.operands[0].rank)
    own = [e for e in entries or () if isinstance(e.item, slice) and is_cut_by_numbers(e.item)]
    if len(own) != 1 or own[0].item.step not in (None, 1):
        return None
    (part,) = own
    start, stop = (machine.expression(bound, node) for bound in (part.item.start, part.item.stop))
    length, row = sympy.expand(stop - start), machine.term(call.operands[0].node, node)
    if not are_ends(machine.names.columns.get(start), machine.names.columns.get(stop)):
        return None
    dims: list[Any] = []
    begins: list[tuple[int | None, Any]] = []
    for entry in entries or ():
        size = row.dims[entry.axis] if entry.axis is not None else None
        if entry is part:
            if not machine.size.bind(fake.shape[len(dims)], length):
                return None
            dims.append(length)
            begins.append((entry.axis, start))
        elif type(entry.item) is int:
            if size is None or not size.is_Integer or not -size <= entry.item < size:
                return None
            begins.append((entry.axis, None))
        elif entry.item is None or isinstance(entry.item, slice):
            begin = 0 if entry.item in (None, slice(None)) else entry.item.start or 0
            if type(begin) is not int or begin < 0 or (entry.item is not None and entry.item.step not in (None, 1)):
                return None
            dims.append(machine.expression(fake.shape[len(dims)], node))
            begins.append((entry.axis, begin))
        else:
            return None
    check_part(machine, start, stop, row.dims[part.axis], node)  # type: ignore[index]
    at = _read_at(entries or [], begins, row, coordinates(dims))
    return machine.moved((tuple(dims), fake.dtype, fake.device, fake.requires_grad), machine.read(row, at))


def check_part(machine: Machine, start: Any, stop: Any, extent: Any, node: fx.Node) -> None:
    """A document's slots lie within a dimension of their row."""
    machine.check(start, ">=", sympy.Integer(0), node, "a document's slots begin in front of their row")
    machine.check(extent - stop, ">=", sympy.Integer(0), node, "a document's slots end behind their row")
    machine.check(sympy.expand(stop - start), ">=", sympy.Integer(0), node, "a document has less than no slots")


def is_cut_by_numbers(part: slice) -> bool:
    """Are both ends of a slice numbers of the graph?"""
    return all(isinstance(example(bound), torch.SymInt) for bound in (part.start, part.stop))


def _read_at(entries: list[Any], begins: list[tuple[int | None, Any]], row: Term, places: tuple[Any, ...]) -> list[Any]:
    """Where along each dimension of a row the slots of an indexed tensor lie."""
    at, left = [], iter(places)
    for entry, (axis, begin) in zip(entries, begins, strict=True):
        if begin is None:
            at.append(sympy.Integer(entry.item) + (row.dims[axis] if entry.item < 0 else 0))  # type: ignore[index]
            continue
        place = next(left)
        if axis is not None:
            at.append(place + begin)
    return at


def _cut(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``x[0, :stop, start:]``, where torch does not know how many slots that are: what there is between numbers that
    are not counted from the end."""
    fake = example(node)
    if call.op != "getitem" or len(call.operands) != 1 or not isinstance(fake, torch.Tensor):
        return None
    entries, row = entries_of(call.get("index"), call.operands[0].rank), machine.term(call.operands[0].node, node)
    if not any(isinstance(e.item, slice) and _is_by_numbers(e.item) for e in entries or ()):
        return None
    dims: list[Any] = []
    found: list[tuple[int | None, Any]] = []
    for entry in entries or ():
        if entry.item is None:
            dims.append(sympy.Integer(1))
        elif type(entry.item) is int:
            size = row.dims[entry.axis]  # type: ignore[index]
            place = entry.item + (size if entry.item < 0 else 0)
            machine.check(place if entry.item < 0 else size - place - 1, ">=", sympy.Integer(0), node, "no such place")
            found.append((None, sympy.sympify(place)))
        else:
            part = _between(machine, node, entry.item, row.dims[entry.axis], fake.shape[len(dims)])  # type: ignore[index]
            if part is None:
                return None
            found.append((len(dims), part[0]))
            dims.append(part[1])
    places = coordinates(dims)
    at = [begin if d is None else places[d] + begin for d, begin in found]
    return machine.moved((tuple(dims), fake.dtype, fake.device, fake.requires_grad), machine.read(row, at))


def _is_by_numbers(part: slice) -> bool:
    return any(isinstance(example(bound), torch.SymInt) for bound in (part.start, part.stop))


def _between(machine: Machine, node: fx.Node, part: Any, size: Any, taken: Any) -> tuple[Any, Any] | None:
    """Where a slice of a dimension begins, and how many slots it has; ``taken``: as far as torch knows."""
    if not isinstance(part, slice) or part.step not in (None, 1):
        return None
    start, stop = (None if b is None else machine.expression(b, node) for b in (part.start, part.stop))
    known = never_negative if start in (None, 0) else may_be_checked  # what only ends a part is a length
    if not all(known(machine, bound) for bound in (start, stop) if bound is not None):
        return None
    begin = sympy.Integer(0) if start is None else start if start == 0 else sympy.Min(start, size)
    end = size if stop is None else sympy.Min(size, stop)
    length = end if begin == 0 else sympy.Max(0, sympy.expand(end - begin))
    for bound in (start, stop if begin != 0 else None):
        if bound is not None:
            machine.check(bound, ">=", sympy.Integer(0), node, "a part that is counted from the end")
    given = taken.node.expr if isinstance(taken, torch.SymInt) else sympy.Integer(taken)
    if given.is_Integer:  # by whom it is written to something, say
        machine.check(length, "==", given, node, "a part is cut off where its row ends")
        return begin, given
    return (begin, length) if machine.size.bind(taken, length) or length == size else None


def are_ends(start: Column | None, stop: Column | None) -> bool:
    """Does a document begin where the ones before it, or their sizes together, end?"""
    if start is None or start.column is not None:
        return False
    if stop is None:
        return _goes_on(start.node)
    (root, offset, lengths), (other, ahead, _) = (boundary_vector(column.node) for column in (start, stop))
    return root is other and not lengths and ahead + stop.ahead == offset + start.ahead + 1


def _goes_on(starts: fx.Node) -> bool:
    """Are these 0 and the running sums of something?"""
    padded = call_of(starts)
    if padded is None or padded.op != "pad" or len(padded.operands) != 1:
        return False
    sums = call_of(padded.operands[0].node)
    return sums is not None and SCANS.get(sums.op) == "sum"


def _kept(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``x[mask]``: how many slots there are is a number of the document like any other."""
    found = selection(call, lambda a, b: machine.same(machine.expression(a, node), machine.expression(b, node)))
    if found is None:
        return None
    x, mask = (machine.term(call.operands[k].node, node) for k in found)
    if any(isinstance(part, (Kept, Scanned)) for part in walk(x, mask, around=OWN_ROWS)):
        raise Refused("no-rule", f"{label(node)} selects slots of what was selected before", node)
    rank, length = len(mask.dims), product(mask.dims)
    flat_mask = machine.moved(
        ((length,), mask.dtype, mask.device, False),
        machine.read(mask, regrouped(mask.dims, (length,), machine.same)),
    )
    rest = x.dims[rank:]
    places = unflat(Coordinate(0, length), mask.dims)
    behind = coordinates((length, *rest))[1:]
    flat_x = machine.moved(((length, *rest), x.dtype, x.device, x.grad), machine.read(x, (*places, *behind)))
    count = machine.names.count(flat_mask)
    fake = example(node)
    if not machine.size.bind(fake.shape[0], count):
        raise Refused("length-mismatch", "the number of selected slots is taken to be another size", node)
    read, of_mask = (machine.read(term, coordinates(term.dims)) for term in (flat_x, flat_mask))
    return Kept((count, *rest), fake.dtype, fake.device, fake.requires_grad, read, of_mask)


def _reduced(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """A reduction over dimensions that all documents share, where the order of slots does not matter."""
    means = meaning_of(call) if call.op in REDUCING else None
    if means is None or call.several or len(call.operands) != 1:
        return None
    relation, fake = means.relations[0], example(node)
    roles = relation.roles.values()
    operand = machine.term(call.operands[0].node, node)
    if fake.dtype.is_floating_point or operand.dtype.is_floating_point or means.counts:
        return None
    if not roles or not all(isinstance(role, meaning.Reduced) and role.identity is not None for role in roles):
        return None
    sizes = {loop: machine.expression(relation.sizes[loop], node) for loop in relation.roles}
    if any(size.free_symbols & machine.names.own or size == 0 for size in sizes.values()):
        return None
    dims = machine.dims(fake, node)
    places = coordinates((*dims, *sizes.values()))
    where = dict(zip(sizes, places[len(dims) :], strict=True))
    for at, loops in zip(places, relation.result, strict=False):
        lengths = [machine.expression(relation.sizes[loop], node) for loop in loops]
        where |= dict(zip(loops, unflat(at, lengths), strict=True)) if loops else {}
    at = []
    for axis in relation.operands[0] or ():
        if axis.how != meaning.KEPT:
            return None
        lengths = [machine.expression(relation.sizes[loop], node) for loop in axis.loops]
        at.append(flat([where[loop] for loop in axis.loops], lengths))
    over = tuple(sizes.values())
    return Reduced(dims, fake.dtype, fake.device, False, call.op, machine.read(operand, at), over)


def _scanned(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``cumsum`` of integers."""
    if SCANS.get(call.op) != "sum" or call.several or len(call.operands) != 1:
        return None
    operand, fake = machine.term(call.operands[0].node, node), example(node)
    if len(operand.dims) != 1 or fake.dtype.is_floating_point or operand.dtype.is_floating_point:
        return None
    read = machine.read(operand, coordinates(operand.dims))
    return Scanned(operand.dims, fake.dtype, fake.device, False, read)


RULES: tuple[Callable[[Machine, fx.Node, Call], Term | tuple[Term, ...] | None], ...] = (
    _part,
    _cut,
    _kept,
    _reduced,
    _scanned,
    layer,
    matrix_product,
    groups.pooled,
    groups.extreme,
    groups.as_many,
    classes.loss,
    by_place,
    pairs,
)
