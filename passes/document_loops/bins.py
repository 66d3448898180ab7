"""Slots of a document added up by a number that each of them has: ``zeros(K).index_add(0, bins[s:e], x[s:e])``.

After, for all documents at once, with bins of their own one behind the other::

    at = where(inside, segment_ids * K + bins, N * K)
    zeros((N + 1) * K, ...).index_add(0, at, x).view(N + 1, K, ...)

The last ``K`` bins take what belongs to no document. A number that is no bin would lie in those of another document: an
assertion says so, where eager raises. So are means, extremes and products (``scatter_reduce``, ``index_reduce``), and
bins that each number of a slot has for itself.

Does not handle: products with a gradient, bins of fewer numbers than slots have.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import Call, call_of, example
from packpass.semantics.indexing import BINNING
from passes.document_loops.documents import as_term, document
from passes.document_loops.emit_documents import reached_slots
from passes.document_loops.integers import FULL, Reach
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.rules_documents import assign_document
from passes.document_loops.terms import Outside, Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class Binned(Term):
    """``[N + 1, K, ...]``: ``base``, one of each document or of all, and the slots of ``of`` put to it by ``bins``, as
    the method ``op`` of torch with these arguments does it."""

    base: Term | Outside
    bins: Term
    of: Term
    reach: Reach
    op: str
    how: tuple[tuple[str, Any], ...] = ()
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """One sum for all documents."""
        call, base = emitter.call, emitter.node(self.base)
        if isinstance(self.base, Outside):
            entries = call(torch.ops.aten.sym_size.int, emitter.cu, 0)
            base = call("expand", call(torch.unsqueeze, base, 0), entries, *[-1] * example(base).dim(), method=True)
        count = call(torch.ops.aten.sym_size.int, base, 1)
        bins = call("long", emitter.node(self.bins), method=True)
        owner = call(_ops.segment_ids.default, emitter.cu, emitter.total)
        inside = emitter.mask(FULL)
        if self.reach:  # what others hold need not be bins
            inside = call(torch.logical_and, inside, reached_slots(emitter, self.reach))
        owner, inside = (
            emitter.along(emitter.on(part, example(bins).device), -example(bins).dim()) for part in (owner, inside)
        )
        known = call(torch.logical_and, call(operator.ge, bins, 0), call(operator.lt, bins, count))
        fits = call(torch.all, call(torch.logical_or, known, call(torch.logical_not, inside)))
        call(torch._assert_async, fits, "packpass: a slot of a document is added to a bin that is not there")
        at = call(torch.add, call(operator.mul, owner, count), bins)
        behind = call(operator.mul, emitter.documents(), count)
        at = call(torch.where, inside, at, behind)
        flat = call(torch.flatten, base, 0, 1)
        made = call(self.op, flat, 0, at, emitter.node(self.of), method=True, **dict(self.how))
        sizes = [call(torch.ops.aten.sym_size.int, base, d) for d in range(example(base).dim())]
        out: fx.Node = call("reshape", made, sizes, method=True)
        return out


def binned(machine: Machine, node: fx.Node) -> Any:
    """The value of such a call; NotImplemented for any other."""
    call = call_of(node)
    if call is None or call.op not in BINNING or call.get("alpha", default=1) != 1:
        return NotImplemented
    given, index, source = call.of("input"), call.of("index"), call.of("source") or call.of("src")
    if given is None or index is None or source is None or call.get("dim") not in (0, -given.rank):
        return NotImplemented
    base, bins, of = (machine.value(operand.node) for operand in (given, index, source))
    if not isinstance(base, Document) and (call.in_place or not isinstance(base, Outside)):
        return NotImplemented
    if not isinstance(bins, Segment) or not isinstance(of, Segment) or of.rank != given.rank:
        return NotImplemented
    if of.dim != -of.rank or bins.dim != -bins.rank or not _has_bins(call, index.value, source.value, given.value):
        return NotImplemented
    if any(value.window != FULL or not value.store.exact for value in (bins, of)):
        return NotImplemented
    if given.value.dtype != source.value.dtype or any(type(size) is not int for size in given.value.shape):
        return NotImplemented
    term = machine.read(of, node)
    if example(node).requires_grad:  # a gradient of 0 times the NaN of a slot that nobody asked for
        term = machine.guard(term, FULL, term.dim)
    first = base if isinstance(base, Outside) else as_term(machine, given.node, node)
    op = "index_add" if of.rank == bins.rank == 1 and "add" in call.op else call.op
    how = tuple((name, call.get(name)) for name in ("reduce", "include_self") if call.get(name) is not None)
    if ("reduce", "prod") in how and example(node).requires_grad:
        return NotImplemented
    made = machine.intern(Binned(first, machine.read(bins, node), term, machine.reach, op, how))
    if not call.in_place or not isinstance(base, Document):
        return document(machine, made)
    assign_document(machine, base, made, node)
    return base


def _has_bins(call: Call, bins: torch.Tensor, source: torch.Tensor, base: torch.Tensor) -> bool:
    """Is there a bin for each slot, or for each of its numbers, as the call wants it?"""
    if not call.op.startswith("scatter"):
        return bins.dim() == 1
    shapes = [list(tensor.shape[1:]) for tensor in (bins, source, base)]
    return bins.dim() == source.dim() and shapes[0] == shapes[1] == shapes[2]
