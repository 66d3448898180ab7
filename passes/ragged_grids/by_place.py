"""What depends on where a slot is alone: the diagonal of a matrix, and what lies on one side of it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import Call, example
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Applied, Filled, Numbers, Read, Term


def by_place(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``eye``; ``tril``, ``triu`` and the diagonal of a tensor; None for other calls."""
    fake = example(node)
    if not isinstance(fake, torch.Tensor) or call.several or call.in_place:
        return None
    dims = machine.dims(fake, node)
    if call.op == "eye" and not call.operands:
        if node.kwargs.get("requires_grad") or fake.layout != torch.strided:
            return None
        on = _compared(machine, dims, fake.device, operator.eq, 0)
        return Applied(dims, fake.dtype, fake.device, False, "to", True, (on, fake.device, fake.dtype), ())
    if len(call.operands) != 1:
        return None
    term = machine.term(call.operands[0].node, node)
    if call.op in ("diagonal", "diag"):
        return _diagonal(machine, call, term, fake)
    diagonal = call.get("diagonal", default=0)
    if call.op not in ("tril", "triu") or type(diagonal) is not int:
        return None
    kept = _compared(machine, dims, fake.device, operator.le if call.op == "tril" else operator.ge, diagonal)
    form = (dims, fake.dtype, fake.device)
    nothing = machine.intern(Filled(*form, False, False if fake.dtype is torch.bool else 0))
    reads = (machine.read(term, coordinates(dims)), machine.read(nothing, coordinates(dims)))
    return Applied(*form, fake.requires_grad, torch.where, False, (kept, *reads), ())


def _diagonal(machine: Machine, call: Call, term: Term, fake: torch.Tensor) -> Term | None:
    """That of a square matrix."""
    wanted = {"offset": 0, "diagonal": 0, "dim1": 0, "dim2": 1}
    square = len(term.dims) == 2 and machine.same(*term.dims)
    if not square or any(call.get(name, default=number) != number for name, number in wanted.items()):
        return None
    form = (term.dims[:1], fake.dtype, fake.device, fake.requires_grad)
    return machine.moved(form, machine.read(term, coordinates(term.dims[:1]) * 2))


def _compared(machine: Machine, dims: tuple[Any, ...], device: torch.device, op: Any, number: int) -> Read:
    """How far to the right of the diagonal of its matrix a slot is, compared with a number."""
    row, column = coordinates(dims)[-2:]
    ahead = machine.intern(Numbers(dims, torch.int64, device, False, column - row))
    is_there = Applied(dims, torch.bool, device, False, op, False, (machine.read(ahead, coordinates(dims)), number), ())
    return machine.read(machine.intern(is_there), coordinates(dims))
