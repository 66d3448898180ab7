"""Rules for slots at places that all documents share: ``x[s:e].index_select(0, places)``, ``index_add``, ``trace``.

Places count from the document's start. They are read on the device: each is one number per document, which must lie
within it, as eager checks too.

Does not handle: parts of documents, many places, places that are the documents' own, writes in place.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import document, own_slots, spread
from passes.document_loops.integers import FULL, Reach
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import bound_arguments, outside_call, rule
from passes.document_loops.rules_orders import reordered
from passes.document_loops.rules_reductions import over
from passes.document_loops.terms import Apply, Outside, Take, Term
from passes.refused import Refused

_MOST = 16
"""Places that are told apart; every one of them is an op of its own."""


@dataclasses.dataclass(frozen=True, eq=False)
class Place(Term):
    """The ``item``-th of the places ``at``, in every document: int64 ``[N + 1]``; ``wraps``: negative from the end."""

    at: Outside
    item: int
    wraps: bool
    reach: Reach
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """The node, and the check that every document has such a slot."""
        given = emitter.call("reshape", emitter.node(self.at), -1, method=True)
        one = emitter.call("to", emitter.call(torch.select, given, 0, self.item), torch.int64, method=True)
        lengths = emitter.call("to", emitter.lengths(), torch.int64, method=True)
        place = emitter.call(torch.add, emitter.call(torch.zeros_like, lengths), one)
        if self.wraps:
            behind = emitter.call(torch.add, place, lengths)
            place = emitter.call(torch.where, emitter.call(operator.lt, place, 0), behind, place)
        inside = emitter.call(
            torch.logical_and, emitter.call(operator.ge, place, 0), emitter.call(operator.lt, place, lengths)
        )
        message = "packpass: an index lies outside of a document"
        emitter.call(torch._assert_async, emitter.for_every_document(inside, self.reach), message)
        made: fx.Node = place
        return made


@dataclasses.dataclass(frozen=True)
class Places:
    """A whole document and places in it, from `_places`."""

    machine: Machine
    node: fx.Node
    segment: Segment
    term: Term
    at: Outside
    count: int
    wraps: bool

    def apply(self, target: Any, *args: Any, **kwargs: Any) -> Term:
        term: Term = self.machine.intern(Apply(target, False, args, tuple(sorted(kwargs.items())), self.segment.dim))
        return term

    def place(self, item: int) -> Term:
        """[N + 1]: one place in every document."""
        term: Term = self.machine.intern(Place(self.at, item, self.wraps, self.machine.reach, 0))
        return term

    def hit(self, item: int) -> Term:
        """A row that is true at one place of every document."""
        dim = self.segment.dim
        there = spread(self.machine, self.place(item), (), dim, self.node)
        return self.apply(torch.eq, own_slots(self.machine, example(self.node).device, dim), there)

    def done(self, term: Term) -> Segment:
        return self.machine.fresh(term, self.segment.rank)


def _places(machine: Machine, node: fx.Node, given: dict[str, Any], index: Any, wraps: bool) -> Places | None:
    """None if no segment takes part; refuses what has no rule."""
    if all(isinstance(machine.value(n), Outside) for n in node.all_input_nodes):
        return None
    unknown = Refused("no-rule", f"this {label(node)} has no rule", node)
    value = machine.value(given.get("input"))
    at = machine.value(index)
    if not isinstance(value, Segment) or not isinstance(at, Outside) or value.window != FULL or not value.store.exact:
        raise unknown
    dim: Any = given.get("dim", 0)
    if type(dim) is not int or dim % value.rank != value.rank + value.dim:
        raise unknown
    fake = machine.fake(at)
    if fake.dtype not in (torch.int32, torch.int64) or not all(isinstance(s, int) for s in fake.shape):
        raise unknown
    if fake.numel() > _MOST:
        raise Refused("no-rule", f"{label(node)} at more than {_MOST} places has no rule", node)
    return Places(machine, node, value, machine.read(value, node), at, fake.numel(), wraps)


# === Reading =================================================================================================


@rule("index_select", "take")
def _taken(machine: Machine, node: fx.Node) -> Any:
    given, several = bound_arguments(node), name_of(node) == "take"
    if not several and given.get("dim") == 0:
        in_order = reordered(machine, node, machine.value(node.args[0]), given.get("index"))
        if in_order is not None:
            return in_order
    found = _places(machine, node, given, given.get("index"), wraps=several)
    if found is None:
        return outside_call(machine, node)
    if not found.count or (several and found.segment.rank != 1):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    dim = found.segment.dim
    taken = tuple(machine.intern(Take(found.term, found.place(i), dim)) for i in range(found.count))
    at = found.segment.rank + dim + 1
    term = machine.intern(Apply(torch.stack, False, (taken, at), (), 0))
    if several:
        term = machine.intern(Apply("reshape", True, (term, -1, *example(node).shape), (), 0))
    return document(machine, term)


# === Writing to a copy =======================================================================================


@rule("index_fill")
def _filled(machine: Machine, node: fx.Node) -> Any:
    given = bound_arguments(node)
    found = _places(machine, node, given, given.get("index"), wraps=True)
    if found is None:
        return outside_call(machine, node)
    value = machine.value(given.get("value"))
    if not isinstance(value, (Outside, bool, int, float)):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    term = found.apply(torch.clone, found.term)
    for i in range(found.count):
        term = found.apply(torch.masked_fill, term, found.hit(i), value)
    return found.done(term)


@rule("index_copy", "index_add")
def _at_places(machine: Machine, node: fx.Node) -> Any:
    given = bound_arguments(node)
    found = _places(machine, node, given, given.get("index"), wraps=False)
    if found is None:
        return outside_call(machine, node)
    adds = name_of(node) == "index_add"
    return _put(found, given.get("source"), adds, given.get("alpha", 1), found.segment.dim)


@rule("put", "index_put")
def _put_at(machine: Machine, node: fx.Node) -> Any:
    given = bound_arguments(node)
    flat = name_of(node) == "put"
    index: Any = given.get("index") if flat else given.get("indices")
    if not flat:
        if not isinstance(index, (tuple, list)) or len(index) != 1:
            raise Refused("no-rule", f"this {label(node)} has no rule", node)
        (index,) = index
    found = _places(machine, node, given, index, wraps=True)
    if found is None:
        return outside_call(machine, node)
    if (flat and found.segment.rank != 1) or (not flat and machine.fake(found.at).dim() != 1):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    source = given.get("source" if flat else "values")
    return _put(found, source, bool(given.get("accumulate")), 1, -1 if flat else found.segment.dim, flat)


@rule("index_reduce")
def _reduced_at(machine: Machine, node: fx.Node) -> Any:
    """The product, or the larger or smaller one, of a slot and a number."""
    given = bound_arguments(node)
    found = _places(machine, node, given, given.get("index"), wraps=False)
    if found is None:
        return outside_call(machine, node)
    how = given.get("reduce")
    combine = torch.mul if how == "prod" else {"amax": torch.maximum, "amin": torch.minimum}.get(str(how))
    if combine is None or found.count != 1 or given.get("include_self", True) is not True:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    hit, source = found.hit(0), _part(found, machine.value(given.get("source")), 0, found.segment.dim)
    # Other slots must not meet the number: what they hold times a gradient of 0 need not be 0.
    alone = found.apply(torch.where, hit, found.term, 1)
    alone = machine.guard(alone, FULL, found.segment.dim)
    return found.done(found.apply(torch.where, hit, found.apply(combine, alone, source), found.term))


def _put(found: Places, source: Any, adds: bool, alpha: Any, dim: int, flat: bool = False) -> Segment:
    value = found.machine.value(source)
    if not isinstance(value, Outside) or type(alpha) not in (int, float):
        raise Refused("no-rule", f"this {label(found.node)} has no rule", found.node)
    if flat and found.machine.fake(value).dim() != 1:
        fake = found.machine.fake(value)
        value = found.machine.computed(("reshape", True, (value, -1), ()), fake.reshape(-1))
    if not adds and found.count > 1 and found.machine.fake(value).requires_grad:
        # Of two numbers for one slot both get the gradient in eager, and here the one that stays.
        raise Refused("no-rule", f"the gradient of {label(found.node)} at several places has no rule", found.node)
    term = found.apply(torch.clone, found.term)
    for i in range(found.count):
        new = _part(found, value, i, dim)
        if adds:
            new = found.apply(torch.add, term, new, alpha=alpha)
        term = found.apply(torch.where, found.hit(i), new, term)
    return found.done(term)


def _part(found: Places, value: Any, item: int, dim: int) -> Term:
    """The part of a source that belongs to one place, with a size of 1 along the packed dimension."""
    fake: Any = found.machine.fake(value) if isinstance(value, Outside) else None
    if (
        fake is None
        or fake.dtype != example(found.node).dtype
        or fake.dim() != found.segment.rank
        or fake.shape[dim] != found.count
    ):
        raise Refused("no-rule", f"this {label(found.node)} has no rule", found.node)
    return found.apply(torch.narrow, value, dim, item, 1)


# === The diagonal ============================================================================================


@rule("trace")
def _trace(machine: Machine, node: fx.Node) -> Any:
    """The sum of the slots whose place is that of their column."""
    found = over(machine, node, None)
    if found is None:
        return outside_call(machine, node)
    if found.segment.window != FULL or found.segment.rank != 2:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    dim, width = found.segment.dim, found.shape[-3 - found.segment.dim]
    if not isinstance(width, int):
        raise Refused("no-rule", f"{label(node)} of a document of dynamic width has no rule", node)
    device = example(node).device
    columns: Any = machine.intern(Apply(torch.arange, False, (width,), (("device", device),), dim))
    if dim == -1:
        columns = machine.intern(Apply(torch.unsqueeze, False, (columns, -1), (), dim))
    kept = found.apply(torch.where, found.apply(torch.eq, own_slots(machine, device, dim), columns), found.term, 0)
    return found.done(found.of(kept).to(example(node).dtype).reduce("sum"))
