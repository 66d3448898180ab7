"""Complex numbers beside pairs of real ones: every slot of one is made of two of the other's."""

from __future__ import annotations

import sympy
import torch
from torch import fx

from packpass.semantics import Call, example
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Applied, Chosen, Term


def pairs(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``view_as_complex`` and ``view_as_real``; nobody writes to a view in such a loop."""
    fake = example(node)
    if call.op not in ("view_as_complex", "view_as_real") or len(call.operands) != 1 or call.several:
        return None
    term = machine.term(call.operands[0].node, node)
    dims = machine.dims(fake, node)
    form = (dims, fake.dtype, fake.device, fake.requires_grad)
    if call.op == "view_as_complex":
        parts = tuple(machine.read(term, (*coordinates(dims), sympy.Integer(k))) for k in (0, 1))
        return Applied(*form, torch.complex, False, parts, ())
    same = machine.read(term, coordinates(term.dims))
    halves = [
        machine.intern(Applied(term.dims, *form[1:], function, False, (same,), ()))
        for function in (torch.real, torch.imag)
    ]
    where = coordinates(dims)[:-1]
    reads = tuple(machine.read(half, where) for half in halves)
    return Chosen(*form, reads, (sympy.Integer(1), sympy.Integer(2)), len(dims) - 1, True)
