"""Operations that look at several slots of a document: slots that are selected, sums and extremes over some dimensions,
running sums, layers."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from torch import fx

from packpass.ops._monoids import REDUCTIONS
from packpass.semantics import Call, call_of, example, meaning, meaning_of
from packpass.semantics.indexing import entries_of, selection
from packpass.semantics.reductions import EXTREMES, REDUCING, SCANS
from passes.document_loops.boundaries import boundary_vector
from passes.ragged_grids.asked import never_negative
from passes.ragged_grids.complex_numbers import pairs
from passes.ragged_grids.layers import layer
from passes.ragged_grids.machine import Machine, label
from passes.ragged_grids.sizes import Column, Coordinate, coordinates, flat, product, regrouped, unflat
from passes.ragged_grids.terms import Kept, Pooled, Reduced, Scanned, Term, walk
from passes.refused import Refused


def apply(machine: Machine, node: fx.Node, call: Call | None) -> bool:
    """Note the term of such an operation; False if it is none. Raises `Refused`."""
    for rule in RULES:
        made = rule(machine, node, call) if call is not None else None
        if made is not None:
            machine.keep(node, made)
            return True
    return False


def _only_slice(node: fx.Node, call: Call) -> tuple[int, slice] | None:
    """The dimension that an index cuts, and by which slice, if that is all it does."""
    if call.op != "getitem" or len(call.operands) != 1 or not isinstance(example(node), torch.Tensor):
        return None
    rank = call.operands[0].rank
    entries = entries_of(call.get("index"), rank)
    if entries is None or len(entries) != rank or not all(isinstance(e.item, slice) for e in entries):
        return None
    cut = [d for d, e in enumerate(entries) if e.item != slice(None)]
    if len(cut) != 1 or entries[cut[0]].item.step not in (None, 1):
        return None
    return cut[0], entries[cut[0]].item


def _part(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``x[start:stop]`` of a row from outside, where ``start`` goes on by the sizes of every document: as many slots as
    the two are apart, which torch does not know. (Of other numbers, torch takes what there is between them.)"""
    cut, fake = _only_slice(node, call), example(node)
    if cut is None:
        return None
    d, part = cut
    bounds = [example(bound) for bound in (part.start, part.stop)]
    if not all(isinstance(bound, torch.SymInt) for bound in bounds):
        return None
    start, stop = (machine.expression(bound, node) for bound in bounds)
    length, row = sympy.expand(stop - start), machine.term(call.operands[0].node, node)
    size = row.dims[d]
    if not _are_ends(machine.names.columns.get(start), machine.names.columns.get(stop)):
        return None
    if not machine.size.bind(fake.shape[d], length):
        return None
    machine.check(start, ">=", sympy.Integer(0), node, "a document's slots begin in front of their row")
    machine.check(size - stop, ">=", sympy.Integer(0), node, "a document's slots end behind their row")
    machine.check(length, ">=", sympy.Integer(0), node, "a document has less than no slots")
    dims = (*row.dims[:d], length, *row.dims[d + 1 :])
    at = list(coordinates(dims))
    at[d] = at[d] + start
    return machine.moved((dims, fake.dtype, fake.device, fake.requires_grad), machine.read(row, at))


def _first(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``x[:stop]``, where torch does not know how many slots that are: all there are, if there are fewer."""
    cut, fake = _only_slice(node, call), example(node)
    if cut is None or cut[1].start not in (None, 0):
        return None
    d, stop = cut[0], example(cut[1].stop)
    if not isinstance(stop, torch.SymInt) or not machine.size.is_new(fake.shape[d]):
        return None
    end, row = machine.expression(stop, node), machine.term(call.operands[0].node, node)
    if not never_negative(machine, end):
        return None
    length = sympy.Min(row.dims[d], end)
    if not machine.size.bind(fake.shape[d], length):
        return None
    dims = (*row.dims[:d], length, *row.dims[d + 1 :])
    form = (dims, fake.dtype, fake.device, fake.requires_grad)
    return machine.moved(form, machine.read(row, coordinates(dims)))


def _are_ends(start: Column | None, stop: Column | None) -> bool:
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
    found = selection(call)
    if found is None:
        return None
    x, mask = (machine.term(call.operands[k].node, node) for k in found)
    if any(isinstance(part, (Kept, Scanned)) for part in walk(x, mask)):
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


def _pooled(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """A sum, mean or extreme over any dimensions: those are brought behind each other, and put together in memory."""
    means = meaning_of(call) if call.op in (*REDUCTIONS, "mean") else None
    fake = example(node)
    if means is None or call.several or len(call.operands) != 1 or fake.is_complex():
        return None
    relation, operand = means.relations[0], machine.term(call.operands[0].node, node)
    axes = relation.operands[0] or ()
    gone = [d for d, axis in enumerate(axes) if relation.roles.keys() & set(axis.loops)]
    if not gone or any(axis.how != meaning.KEPT or len(axis.loops) != 1 for axis in axes):
        return None
    if not all(isinstance(role, meaning.Reduced) for role in relation.roles.values()):
        return None
    own = machine.names.own
    rank = 1 + max(d for d, size in enumerate(operand.dims) if d in gone or size.free_symbols & own)
    kept = [d for d in range(rank) if d not in gone]
    size, count = (product(operand.dims[d] for d in part) for part in (gone, kept))
    for d in gone if call.op in EXTREMES else ():
        machine.check(operand.dims[d] - 1, ">=", sympy.Integer(0), node, f"{label(node)} of a dimension without slots")
    operand = machine.cast(operand, fake.dtype)
    rest = operand.dims[rank:]
    order = (*kept, *gone)
    at = unflat(Coordinate(0, product((size, count))), [operand.dims[d] for d in order])
    places = dict(zip(order, at, strict=True))
    form = ((product((size, count)), *rest), operand.dtype, operand.device, operand.grad)
    behind = coordinates(form[0])[1:]
    row = machine.moved(form, machine.read(operand, (*(places[d] for d in range(rank)), *behind)))
    known = ((count, *rest), fake.dtype, fake.device, fake.requires_grad)
    made = machine.intern(Pooled(*known, call.op, machine.read(row, coordinates(row.dims)), size))
    dims = machine.dims(fake, node)
    where = {loops: place for loops, place in zip(relation.result, coordinates(dims), strict=True) if loops}
    kept_at = [where[axes[d].loops] for d in kept]
    features = [where[axes[d].loops] for d in range(rank, len(axes))]
    place = flat(kept_at, [operand.dims[d] for d in kept])
    return machine.moved((dims, *known[1:]), machine.read(made, (place, *features)))


def _scanned(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``cumsum`` of integers."""
    if SCANS.get(call.op) != "sum" or call.several or len(call.operands) != 1:
        return None
    operand, fake = machine.term(call.operands[0].node, node), example(node)
    if len(operand.dims) != 1 or fake.dtype.is_floating_point or operand.dtype.is_floating_point:
        return None
    read = machine.read(operand, coordinates(operand.dims))
    return Scanned(operand.dims, fake.dtype, fake.device, False, read)


RULES: tuple[Callable[[Machine, fx.Node, Call], Term | None], ...] = (
    _part,
    _first,
    _kept,
    _reduced,
    _scanned,
    layer,
    _pooled,
    pairs,
)
