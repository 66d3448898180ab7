"""Slots that are put together in groups: sums, means, extremes, softmaxes and running values over dimensions of a
document's own sizes.

The groups are brought into memory one behind the other, as documents of a row of their own, and the ops for documents
work on that.
"""

from __future__ import annotations

import sympy
import torch
from torch import fx

from packpass.ops._monoids import REDUCTIONS
from packpass.semantics import Call, example, meaning, meaning_of
from packpass.semantics.reductions import EXTREMES, PLACED, SCANS
from passes.ragged_grids.machine import Machine, label
from passes.ragged_grids.sizes import Coordinate, coordinates, flat, product, unflat
from passes.ragged_grids.terms import Pooled, Term


def pooled(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """A sum, mean or extreme over any dimensions: those are brought behind each other, and put together in memory."""
    if call.op not in (*REDUCTIONS, "mean", "logsumexp") or call.several or example(node).is_complex():
        return None
    return _together(machine, node, call, call.op, 0)


def extreme(machine: Machine, node: fx.Node, call: Call) -> Term | tuple[Term, ...] | None:
    """The largest or smallest slots along one dimension, and where they are."""
    if call.op not in PLACED or len(call.operands) != 1:
        return None
    if call.get("dim") is None:
        return None if call.several or call.op.startswith("arg") else _together(machine, node, call, f"a{call.op}", 0)
    if not call.several:
        return _together(machine, node, call, call.op, 0) if call.op.startswith("arg") else None
    found = [_together(machine, node, call, op, item) for item, op in enumerate((call.op, f"arg{call.op}"))]
    return None if None in found else tuple(machine.intern(term) for term in found if term is not None)


def _together(machine: Machine, node: fx.Node, call: Call, op: str, item: int) -> Term | None:
    """What ``op`` makes of the slots along the dimensions that a call's result lacks; None where it does not line up
    slots so."""
    means, fake = meaning_of(call), call.results[item]
    if means is None or not isinstance(fake, torch.Tensor):
        return None
    relation, operand = means.relations[item], machine.term(call.operands[0].node, node)
    axes = relation.operands[0] or ()
    gone = [d for d, axis in enumerate(axes) if relation.roles.keys() & set(axis.loops)]
    if not gone or any(axis.how != meaning.KEPT or len(axis.loops) != 1 for axis in axes):
        return None
    if not all(isinstance(role, meaning.Reduced) for role in relation.roles.values()):
        return None
    for d in gone if op in EXTREMES or op in PLACED else ():
        machine.check(operand.dims[d] - 1, ">=", sympy.Integer(0), node, f"{label(node)} of a dimension without slots")
    if op not in PLACED:
        operand = machine.cast(operand, fake.dtype)
    rank, kept, row = _groups(machine, operand, gone)
    size, count = (product(operand.dims[d] for d in part) for part in (gone, kept))
    known = ((count, *operand.dims[rank:]), fake.dtype, fake.device, fake.requires_grad)
    made = machine.intern(Pooled(*known, op, machine.read(row, coordinates(row.dims)), size, count))
    dims = machine.dims(fake, node)
    where = {loops: place for loops, place in zip(relation.result, coordinates(dims), strict=True) if loops}
    kept_at = [where[axes[d].loops] for d in kept]
    features = [where[axes[d].loops] for d in range(rank, len(axes))]
    place = flat(kept_at, [operand.dims[d] for d in kept])
    return machine.moved((dims, *known[1:]), machine.read(made, (place, *features)))


def _groups(machine: Machine, operand: Term, gone: list[int]) -> tuple[int, list[int], Term]:
    """A row of the slots of a tensor in which those that differ along ``gone`` alone are next to each other: how many
    dimensions it has in place of one, and which of these tell the groups apart."""
    own = machine.names.own
    rank = 1 + max(d for d, size in enumerate(operand.dims) if d in gone or size.free_symbols & own)
    kept = [d for d in range(rank) if d not in gone]
    order = (*kept, *gone)
    length = product(operand.dims[:rank])
    places = dict(zip(order, unflat(Coordinate(0, length), [operand.dims[d] for d in order]), strict=True))
    form = ((length, *operand.dims[rank:]), operand.dtype, operand.device, operand.grad)
    at = (*(places[d] for d in range(rank)), *coordinates(form[0])[1:])
    return rank, kept, machine.moved(form, machine.read(operand, at))


def as_many(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """A softmax over slots of the document, or running sums, products and the like."""
    fake, dim = example(node), call.get("dim")
    known = call.op in ("softmax", "log_softmax", *SCANS)
    if not known or call.several or len(call.operands) != 1 or type(dim) is not int:
        return None
    if fake.is_complex() and SCANS.get(call.op) != "sum":
        return None
    operand = machine.cast(machine.term(call.operands[0].node, node), fake.dtype)
    return along(machine, operand, dim % len(operand.dims), call.op) if operand.dims else None


def along(machine: Machine, operand: Term, gone: int, op: str) -> Term:
    """What ``op`` makes of the slots along one dimension, as many of them: a softmax, or a scan."""
    rank, kept, row = _groups(machine, operand, [gone])
    count, size = product(operand.dims[d] for d in kept), operand.dims[gone]
    form = (operand.dtype, operand.device, operand.grad)
    made = machine.intern(Pooled(row.dims, *form, op, machine.read(row, coordinates(row.dims)), size, count))
    at = coordinates(operand.dims)
    place = flat([at[d] for d in (*kept, gone)], [operand.dims[d] for d in (*kept, gone)])
    return machine.moved((operand.dims, *form), machine.read(made, (place, *at[rank:])))


def sum_of_all(machine: Machine, operand: Term) -> Term:
    """All slots of a tensor added up: a tensor without dimensions."""
    gone = list(range(len(operand.dims)))
    _, _, row = _groups(machine, operand, gone)
    form, one = (operand.dtype, operand.device, operand.grad), sympy.Integer(1)
    read = machine.read(row, coordinates(row.dims))
    made = machine.intern(Pooled((one,), *form, "sum", read, product(operand.dims), one))
    return machine.moved(((), *form), machine.read(made, (sympy.Integer(0),)))
