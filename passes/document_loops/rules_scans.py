"""Rules for ops along a document's slots that keep them: softmax and running sums, products and extremes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from packpass.ops._monoids import SCANS as MONOIDS
from packpass.semantics import argument, example
from packpass.semantics.reductions import SCANS, SOFTMAXES
from passes.document_loops.documents import own_slots, spread
from passes.document_loops.integers import FULL
from passes.document_loops.machine import OPAQUE, Machine
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import outside_call, rule
from passes.document_loops.rules_reductions import Over, over
from passes.document_loops.terms import Roll, Scan, Softmax, Term
from passes.refused import Refused


def _along(machine: Machine, node: fx.Node) -> Over | None:
    dim = argument(node, 1, "dim", node.kwargs.get("axis"))
    if not isinstance(dim, int):
        raise Refused("no-rule", f"{label(node)} without a dimension has no rule", node)
    return over(machine, node, dim)


@rule(*SOFTMAXES)
def _softmax(machine: Machine, node: fx.Node) -> Any:
    found = _along(machine, node)
    if found is None:
        return outside_call(machine, node)
    if name_of(node) == "softmin" or set(node.kwargs) - {"dim", "dtype", "_stacklevel"}:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    row = found.to(example(node).dtype)
    term = Softmax(row.filled(-math.inf), name_of(node) == "log_softmax", found.segment.dim)
    return machine.fresh(term, found.segment.rank, found.segment.window)


@rule("_safe_softmax")
def _safe_softmax(machine: Machine, node: fx.Node) -> Any:
    """A softmax that is 0 where all slots of a document are -inf."""
    found = _along(machine, node)
    if found is None:
        return outside_call(machine, node)
    row = found.to(example(node).dtype)
    lowest_ = row.apply(torch.eq, row.reduce("amax"), -math.inf, dim_of_term=0)
    none = spread(machine, row.with_dims(lowest_), _shape(row), found.segment.dim, node)
    inside = row.of(row.apply(torch.where, none, 0.0, row.term))
    softmax = machine.intern(Softmax(inside.filled(-math.inf), False, found.segment.dim))
    return machine.fresh(row.apply(torch.where, none, 0.0, softmax), found.segment.rank, found.segment.window)


def _shape(row: Over) -> list[Any]:
    """The document's sizes with the packed dimension gone."""
    return [1 if d - row.segment.rank == row.segment.dim else size for d, size in enumerate(row.shape)]


@rule(*SCANS)
def _scan(machine: Machine, node: fx.Node) -> Any:
    """Slots before the window must not be counted; those after it are too late to matter."""
    found = _along(machine, node)
    if found is None:
        return outside_call(machine, node)
    fake, op = example(node), SCANS[name_of(node)]
    row = found.to((fake[0] if isinstance(fake, (tuple, list)) else fake).dtype)
    identity = MONOIDS[op].identity(row.dtype)
    term: Term = machine.intern(Scan(row.filled(identity), op, found.segment.dim))
    values = machine.fresh(term, found.segment.rank, found.segment.window)
    return (values, _where_set(row, term, op, identity)) if op in ("max", "min") else values


def _where_set(row: Over, extreme: Term, op: str, start: Any) -> Any:
    """The place of the last slot that set, or equalled, the extreme so far: as torch, a NaN is beyond all numbers."""
    machine, segment = row.machine, row.segment
    if segment.window != FULL or row.dtype == torch.bool:
        return OPAQUE  # whoever uses the places is refused
    before = machine.intern(Roll(extreme, 1, start, segment.dim))
    sets = row.apply(torch.ge if op == "max" else torch.le, row.term, before)
    if row.dtype.is_floating_point:
        sets = row.apply(torch.logical_or, sets, row.apply(torch.isnan, row.term))
    here = own_slots(machine, example(row.node)[1].device, segment.dim)
    return machine.fresh(machine.intern(Scan(row.apply(torch.where, sets, here, 0), "max", segment.dim)), segment.rank)
