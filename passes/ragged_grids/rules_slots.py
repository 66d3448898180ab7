"""Operations that look at several slots of a document: slots that are selected, sums over dimensions that all documents
share, running sums, layers."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from packpass.semantics import Call, example, meaning, meaning_of
from packpass.semantics.indexing import selection
from packpass.semantics.reductions import REDUCING, SCANS
from passes.ragged_grids.layers import layer
from passes.ragged_grids.machine import Machine, label
from passes.ragged_grids.sizes import Coordinate, coordinates, flat, product, regrouped, unflat
from passes.ragged_grids.terms import Kept, Reduced, Scanned, Term, walk
from passes.refused import Refused


def apply(machine: Machine, node: fx.Node, call: Call | None) -> bool:
    """Note the term of such an operation; False if it is none. Raises `Refused`."""
    for rule in RULES:
        made = rule(machine, node, call) if call is not None else None
        if made is not None:
            machine.keep(node, made)
            return True
    return False


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


def _scanned(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``cumsum`` of integers."""
    if SCANS.get(call.op) != "sum" or call.several or len(call.operands) != 1:
        return None
    operand, fake = machine.term(call.operands[0].node, node), example(node)
    if len(operand.dims) != 1 or fake.dtype.is_floating_point or operand.dtype.is_floating_point:
        return None
    read = machine.read(operand, coordinates(operand.dims))
    return Scanned(operand.dims, fake.dtype, fake.device, False, read)


RULES: tuple[Callable[[Machine, fx.Node, Call], Term | None], ...] = (_kept, _reduced, _scanned, layer)
