"""Losses of scores for classes, of which a document may have as many as it has slots: each slot is to find itself among
all others, say (``F.cross_entropy(z @ z.T, arange(n))``)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import Call, example
from packpass.semantics.losses import OF_CLASSES, reduction_of
from passes.ragged_grids.groups import along, sum_of_all
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Applied, Index, Read, Term


def loss(machine: Machine, node: fx.Node, call: Call) -> Term | None:
    """``cross_entropy`` and ``nll_loss`` of scores ``[slots, classes]`` and a class for every slot; None for others."""
    reduction, fake = reduction_of(call), example(node)
    scores, target = call.of("input"), call.of("target")
    if call.op not in OF_CLASSES or reduction not in ("none", "sum", "mean") or len(call.operands) != 2:
        return None
    if scores is None or target is None or call.get("label_smoothing", default=0.0) != 0.0:
        return None
    ignored = call.get("ignore_index", default=-100)
    x, classes = (machine.term(operand.node, node) for operand in (scores, target))
    if len(x.dims) != 2 or len(classes.dims) != 1 or classes.dtype != torch.int64 or type(ignored) is not int:
        return None
    if not machine.same(x.dims[0], classes.dims[0]) or x.dtype != fake.dtype or not x.dtype.is_floating_point:
        return None
    powers = along(machine, x, 1, "log_softmax") if call.op == "cross_entropy" else x
    rows, place = (x.dims[0],), coordinates((x.dims[0],))

    def slotwise(dtype: torch.dtype, grad: bool, target: Any, *args: Any) -> Read:
        """A function of every slot; terms among its arguments are read there."""
        given = tuple(machine.read(arg, place) if isinstance(arg, Term) else arg for arg in args)
        term = Applied(rows, dtype, x.device, grad, target, False, given, ())
        return machine.read(machine.intern(term), place)

    counts = slotwise(torch.bool, False, operator.ne, classes, ignored)
    of = slotwise(torch.int64, False, torch.where, counts, classes, 0)
    at = machine.intern(Index(of, False))
    found = machine.moved((rows, x.dtype, x.device, x.grad), machine.read(powers, (*place, at)))
    lost = slotwise(x.dtype, x.grad, torch.neg, found)
    each = slotwise(x.dtype, x.grad, torch.where, counts, lost, 0.0).of
    if reduction == "none":
        return each
    total = sum_of_all(machine, each)
    if reduction == "sum":
        return total
    number = sum_of_all(machine, machine.cast(counts.of, x.dtype))
    reads = tuple(machine.read(term, ()) for term in (total, number))
    return Applied((), x.dtype, x.device, x.grad, operator.truediv, False, reads, ())
