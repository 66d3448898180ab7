"""Distances of every two slots, ``torch.cdist(x[s:e], x[s:e])``: norms of differences, which nobody needs in memory.

Of more than 25 slots eager takes them from products, which may be off in the third digit; these are exact.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from packpass.semantics import Call, example
from passes.ragged_grids.layers import in_row
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import coordinates, flat
from passes.ragged_grids.terms import Applied, Layer, Term


def distance(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """The term of ``cdist`` with the Euclidean norm; None for others."""
    fake = example(node)
    if call.op != "cdist" or len(call.operands) != 2 or call.get("p", default=2.0) != 2.0:
        return None
    a, b = (machine.term(operand.node, node) for operand in call.operands)
    features = a.dims[-1]
    if len(a.dims) != len(b.dims) or features.free_symbols & machine.names.own or {a.dtype, b.dtype} != {fake.dtype}:
        return None
    if not all(machine.same(s, t) for s, t in zip((*a.dims[:-2], features), (*b.dims[:-2], b.dims[-1]), strict=True)):
        return None
    dims = (*a.dims[:-1], b.dims[-2], features)
    *batch, i, j, k = coordinates(dims)
    form = (fake.dtype, fake.device, fake.requires_grad)
    reads = (machine.read(a, (*batch, i, k)), machine.read(b, (*batch, j, k)))
    apart = machine.intern(Applied(dims, *form, operator.sub, False, reads, ()))
    rank = len(dims) - 1
    row = in_row(machine, apart, rank)
    given = ((machine.read(row, coordinates(row.dims)),), (("dim", -1),))
    norms = machine.intern(Layer(row.dims[:1], *form, row, torch.linalg.vector_norm, False, *given, 1))
    return machine.moved((dims[:-1], *form), machine.read(norms, (flat(coordinates(dims[:-1]), dims[:-1]),)))
