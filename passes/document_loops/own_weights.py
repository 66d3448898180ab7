"""Products with a matrix that the document has one of: ``x[s:e] @ weights[i]``, the layers of experts.

In every slot the weights would take many times the memory of the row. `segment_matmul` does what eager does, document
by document, in one operation. Slots in front of the documents and behind them go with the first document, and with
none.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.semantics import argument, example
from packpass.semantics.effects import open_autocasts
from passes.document_loops.documents import as_term, spread
from passes.document_loops.integers import FULL
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.terms import Apply, Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class OwnProduct(Term):
    """``[T, columns]``: ``of``, ``[T, inner]``, times each document's matrix of ``weights``.

    These are ``[N + 1, inner, columns]`` or, if they are ``turned``, ``[N + 1, columns, inner]``.
    """

    of: Term
    weights: Term
    turned: bool
    dim: int

    def emit(self, emitter: Emitter) -> fx.Node:
        """One product for every document, of all its slots."""
        call, (row, weights) = emitter.call, (emitter.node(part) for part in (self.of, self.weights))
        sized = [call(torch.ops.aten.sym_size.int, weights, 1 + d) for d in (0, 1)]
        inner, columns = reversed(sized) if self.turned else sized
        slots = emitter.once("slots with those around", lambda: _slots(emitter))
        shared = [call(torch.full_like, slots, size) for size in (1, inner, columns)]
        sizes = call(torch.stack, (shared[0], slots, *shared[1:]), 1)
        count: Any = call(operator.mul, emitter.total, columns)
        flat = [call("flatten", part, method=True) for part in (row, weights)]
        made = call(_ops.segment_matmul.default, *flat, sizes, count, False, self.turned)
        out: fx.Node = call("reshape", made, (emitter.total, columns), method=True)
        return out


def _slots(emitter: Emitter) -> fx.Node:
    """int64 [N + 1]: slots of every document, with those in front of the first; and those behind the last."""
    call = emitter.call
    cu, own = (call("long", part, method=True) for part in (emitter.cu, emitter.lengths()))
    front = call(operator.getitem, cu, slice(0, 1))
    behind = call(operator.add, call(torch.neg, call(operator.getitem, cu, slice(-1, None))), emitter.total)
    numbers = emitter.entries()
    own = call(torch.add, own, call(torch.where, call(operator.eq, numbers, 0), front, 0))
    last = call(operator.eq, numbers, emitter.documents())
    made: fx.Node = call(torch.add, own, call(torch.where, last, behind, 0))
    return made


def own_product(machine: Machine, node: fx.Node, row: Segment, weights: fx.Node, turned: bool) -> Term | None:
    """The term of a row of two dimensions times the document's own matrix; None for other operands."""
    fakes = [example(part) for part in (node, weights)]
    if row.rank != 2 or row.dim != -2 or row.window != FULL or not row.store.exact or fakes[1].dim() != 2:
        return None
    if not isinstance(machine.value(weights), Document) or any(hint_of(size) is None for size in fakes[1].shape):
        return None
    if fakes[0].dtype != fakes[1].dtype or open_autocasts(node.graph, node):
        return None
    term = machine.read(row, node)
    if fakes[0].requires_grad:  # a gradient of 0 times the NaN of a slot that nobody asked for
        term = machine.guard(term, FULL, term.dim)
    made: Term = machine.intern(OwnProduct(term, as_term(machine, weights, node), turned, -2))
    return made


def own_layer(machine: Machine, node: fx.Node) -> Segment | None:
    """``linear(x[s:e], weights[i], bias[i])``; None for other layers."""
    x, weights, bias = (argument(node, k, name) for k, name in enumerate(("input", "weight", "bias")))
    row = machine.value(x) if isinstance(x, fx.Node) else None
    if not isinstance(row, Segment) or not isinstance(weights, fx.Node) or example(x).dtype != example(node).dtype:
        return None
    made = own_product(machine, node, row, weights, turned=True)
    if made is not None and isinstance(bias, fx.Node):
        value, fake = machine.value(bias), example(bias)
        if fake.dtype != example(node).dtype or fake.dim() != 1:
            return None
        other = value
        if isinstance(value, Document):
            other = machine.intern(Apply(torch.unsqueeze, False, (as_term(machine, bias, node), 1), (), 0))
            other = spread(machine, other, (1, *fake.shape), -2, node)
        elif isinstance(value, Segment):
            return None
        made = machine.intern(Apply(torch.add, False, (made, other), (), -2))
    return None if made is None else machine.fresh(made, 2)
