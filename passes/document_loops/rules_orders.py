"""Rules for the order of a document's slots by value: sorts, the largest ones, medians and quantiles.

Where slots are equal, eager's choice between them is torch's own; on the CPU the packed ops make the same one. On other
devices only what does not depend on it is rewritten.

Does not handle: parts of documents but for sorts of whole numbers, ``topk`` that is not sorted where all documents have
as many slots picked, several quantiles at once, medians of all numbers of a document of integers.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import document, require_slots
from passes.document_loops.emit_documents import _flattened
from passes.document_loops.integers import FULL, Window
from passes.document_loops.machine import OPAQUE, Machine, Segment
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import bound_arguments, outside_call, rule
from passes.document_loops.rules_best import Best, best, in_front
from passes.document_loops.rules_reductions import Over, over
from passes.document_loops.terms import Apply, Fill, Flip, Positions, Roll, Take, Term
from passes.refused import Refused

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class Sorted(Term):
    """``(values, positions)``: each document's slots in order; with ``others`` all its numbers along these, too."""

    of: Term
    descending: bool
    stable: bool
    dim: int
    others: tuple[int, ...] = ()

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        x, cu, dim = _flattened(emitter, self.of, self.dim, self.others)
        made: fx.Node = emitter.call(_ops.segment_sort.default, x, cu, self.descending, self.stable, dim)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Ranked(Term):
    """What stands at a position (a per-document term) among ``width`` times as many sorted numbers as slots."""

    of: Sorted
    position: Term
    width: int
    dim: int = 0

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        values = emitter.call(operator.getitem, emitter.node(self.of), 0)
        cu = emitter.cu if self.width == 1 else emitter.call(operator.mul, emitter.cu, self.width)
        dim = 0 if self.of.others else self.of.dim
        made: fx.Node = emitter.call(_ops.segment_take.default, values, cu, emitter.node(self.position), dim)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Picked(Term):
    """Positions of ``k`` slots of every document: ``[N + 1, k, *rest]``, see `segment_pick`."""

    of: Term
    op: str
    k: int
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        made: fx.Node = emitter.call(
            _ops.segment_pick.default, emitter.node(self.of), emitter.cu, self.op, self.k, self.dim
        )
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Repeated(Term):
    """A row with its packed dimension in front, followed by one of ``k`` that all hold the same."""

    of: Term
    k: int
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        row = emitter.node(self.of)
        rank = example(row).dim()
        row = emitter.call("unsqueeze", emitter.call("movedim", row, self.of.dim, 0, method=True), 1, method=True)
        made: fx.Node = emitter.call("expand", row, -1, self.k, *[-1] * (rank - 1), method=True)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class Median(Term):
    """The median of all numbers of every document."""

    of: Term
    ignore_nan: bool
    dim: int
    others: tuple[int, ...]

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        x, cu, _ = _flattened(emitter, self.of, self.dim, self.others)
        made: fx.Node = emitter.call(_ops.segment_median.default, x, cu, self.ignore_nan)
        return made


def _whole(machine: Machine, node: fx.Node, dims: Any, keepdim: Any = False, parts: bool = False) -> Over | None:
    """The packed dimension of a whole document (of a part of one, if told so); None for a tensor from outside."""
    found = over(machine, node, dims, keepdim)
    if found is not None and found.segment.window != FULL and not parts:
        raise Refused("no-rule", f"{label(node)} of a part of a document has no rule", node)
    return found


def _as_torch_chooses(found: Over, stable: bool = False) -> bool:
    """Are slots that are equal told apart as eager does it? Refuses gradients that go to others than eager's."""
    if stable or example(found.node.args[0]).device.type == "cpu":
        return True
    if example(found.node.args[0]).requires_grad:
        raise Refused("no-rule", f"{label(found.node)} may choose between equal slots in another way", found.node)
    return False


@dataclasses.dataclass(frozen=True, eq=False)
class Reordered(Term):
    """Each document's slots in the order that ``order`` has for it, positions from its start on, on ``window``."""

    of: Term
    order: Term
    window: Window
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """The row, by one index; slots outside of documents stay where they are."""
        row = emitter.node(self.of)
        device = example(row).device
        at = emitter.once((Reordered, self.order, self.window, device), lambda: self._places(emitter, device))
        made: fx.Node = emitter.call(torch.index_select, row, self.dim, at)
        return made

    def _places(self, emitter: Any, device: torch.device) -> fx.Node:
        own = emitter.call(torch.arange, emitter.total, device=device)
        within = emitter.call(_ops.position_ids.default, emitter.on(emitter.cu, device), emitter.total)
        at = emitter.call(operator.add, emitter.call(operator.sub, own, within), emitter.node(self.order))
        made: fx.Node = emitter.call(torch.where, emitter.on(emitter.mask(self.window), device), at, own)
        return made


def reordered(machine: Machine, node: fx.Node, value: Any, index: Any) -> Any:
    """``x[s:e][scores[s:e].argsort()]``; None for any other index."""
    order = machine.value(index) if isinstance(index, fx.Node) else None
    if not isinstance(order, Segment) or not isinstance(value, Segment) or order.rank != 1:
        return None
    whole = all(v.store.exact for v in (order, value)) and value.window == FULL
    if not whole or value.dim != -value.rank:
        return None
    term: Any = machine.read(order, node)
    moved = _moved_alike(machine, machine.read(value, node), term, order.window, value.dim)
    if moved is not None:
        return machine.fresh(moved, value.rank, order.window)
    if not _holds_positions(term):
        return None
    moved = machine.intern(Reordered(machine.read(value, node), term, order.window, value.dim))
    return machine.fresh(moved, value.rank, order.window)


def _moved_alike(machine: Machine, of: Term, order: Any, window: Window, dim: int) -> Term | None:
    """A document's slots in the order that its own positions have been brought into: what has been done to those, done
    to the slots, as ``x[s:e][arange(n - 1, -1, -1)]`` is ``x[s:e].flip(0)``. None for any other order."""
    if isinstance(order, Positions):
        counted = order.per_document and not order.start and order.dtype in (torch.int32, torch.int64)
        return of if counted else None
    if not isinstance(order, (Flip, Roll)) or window != FULL or getattr(order, "fill", None) is not None:
        return None
    inner = _moved_alike(machine, of, order.of, window, dim)
    if inner is None:
        return None
    return machine.intern(Flip(inner, dim) if isinstance(order, Flip) else Roll(inner, order.shift, None, dim))


def _holds_positions(term: Any) -> bool:
    """Are these positions of slots in their own document?"""
    if isinstance(term, Best):
        return True
    if not isinstance(term, Apply) or term.target is not operator.getitem or not isinstance(term.args[0], Sorted):
        return False
    made = term.args[0]
    if term.args[1] == 1:
        return not made.others
    return _holds_positions(made.of.of if isinstance(made.of, Fill) else made.of)


# === Sorts ===================================================================================================


@rule("sort", "msort")
def _sort(machine: Machine, node: fx.Node) -> Any:
    name, given = name_of(node), bound_arguments(node)
    found = _whole(machine, node, 0 if name == "msort" else given.get("dim", -1), parts=True)
    if found is None:
        return outside_call(machine, node)
    values, positions = _in_order(machine, found, given)
    return values if name == "msort" else (values, positions)


@rule("argsort")
def _argsort(machine: Machine, node: fx.Node) -> Any:
    given = bound_arguments(node)
    found = _whole(machine, node, given.get("dim", -1), parts=True)
    if found is None:
        return outside_call(machine, node)
    positions = _in_order(machine, found, given)[1]
    if positions is OPAQUE:
        raise Refused("no-rule", "argsort may order equal slots in another way", node)
    return positions


def _in_order(machine: Machine, found: Over, given: dict[str, Any]) -> tuple[Any, Any]:
    descending, stable = bool(given.get("descending")), bool(given.get("stable"))
    segment, of, window = found.segment, found.term, FULL
    if segment.window == FULL:
        told = _as_torch_chooses(found, stable)
    else:
        front = in_front(machine, segment, found.term, found.dtype, descending)
        if front is None:
            raise Refused("no-rule", f"{label(found.node)} of a part of a document has no rule", found.node)
        told, (of, window) = False, front  # of equal slots torch may choose others in so many
    term = machine.intern(Sorted(of, descending, stable, segment.dim))
    parts = [machine.intern(Apply(operator.getitem, False, (term, i), (), segment.dim)) for i in (0, 1)]
    values, positions = (machine.fresh(part, segment.rank, window) for part in parts)
    return values, positions if told else OPAQUE


# === Single slots ============================================================================================


@rule("topk")
def _topk(machine: Machine, node: fx.Node) -> Any:
    given = bound_arguments(node)
    k = given.get("k")
    found = _whole(machine, node, given.get("dim", -1))
    if found is None:
        return outside_call(machine, node)
    picked = best(machine, node, found, given) if isinstance(k, fx.Node) else None
    if picked is not None:
        told = _as_torch_chooses(found)
        values = machine.intern(Reordered(found.term, *picked, found.segment.dim))
        both = [machine.fresh(term, found.segment.rank, picked[1]) for term in (values, picked[0])]
        return both[0], both[1] if told else OPAQUE
    if type(k) is not int or k < 1 or given.get("sorted", True) is not True:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    require_slots(machine, FULL, k, f"{label(node)} of a document with fewer slots")
    return _picked(machine, found, "largest" if given.get("largest", True) else "smallest", k, True)


@rule("kthvalue")
def _kthvalue(machine: Machine, node: fx.Node) -> Any:
    given = bound_arguments(node)
    k = given.get("k")
    found = _whole(machine, node, given.get("dim", -1), bool(given.get("keepdim")))
    if found is None:
        return outside_call(machine, node)
    if type(k) is not int or k < 1:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    require_slots(machine, FULL, k, f"{label(node)} of a document with fewer slots")
    return _picked(machine, found, "kth", k, found.keepdim)


@rule("median", "nanmedian")
def _median(machine: Machine, node: fx.Node) -> Any:
    given, name = bound_arguments(node), name_of(node)
    dim = given.get("dim")
    found = _whole(machine, node, dim, bool(given.get("keepdim")))
    if found is None:
        return outside_call(machine, node)
    if dim is not None:
        found.not_empty()
        return _picked(machine, found, name, 1, found.keepdim)
    if not found.dtype.is_floating_point:
        raise Refused("no-rule", f"{label(node)} of integers has no rule", node)
    term = machine.intern(Median(found.term, name == "nanmedian", found.segment.dim, found.others))
    return document(machine, term)


def _picked(machine: Machine, found: Over, op: str, k: int, keepdim: bool) -> tuple[Any, Any]:
    """``(values, positions)`` of chosen slots, with the dimension they were chosen along if it stays."""
    told = _as_torch_chooses(found)
    segment = found.segment
    positions = machine.intern(Picked(found.term, op, k, segment.dim))
    wide = machine.intern(Repeated(found.term, k if op in ("largest", "smallest") else 1, -segment.rank - 1))
    results = []
    for term in (machine.intern(Take(wide, positions, wide.dim)), positions):
        if keepdim:
            at = segment.rank + segment.dim
            term = machine.intern(Apply("movedim", True, (term, 1, at + 1), (), 0))
        else:
            term = machine.intern(Apply("squeeze", True, (term, 1), (), 0))
        results.append(document(machine, term))
    return results[0], results[1] if told else OPAQUE


# === Quantiles ===============================================================================================

_ROUNDED = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}


@rule("quantile", "nanquantile")
def _quantile(machine: Machine, node: fx.Node) -> Any:
    """One quantile of every document, as torch computes it: between its neighbours in the sorted document."""
    given = bound_arguments(node)
    q: Any = given.get("q")
    how: Any = given.get("interpolation", "linear")
    found = _whole(machine, node, given.get("dim"), bool(given.get("keepdim")))
    if found is None:
        return outside_call(machine, node)
    if type(q) not in (int, float) or not 0 <= q <= 1 or how not in (*_ROUNDED, "linear", "midpoint"):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    _as_torch_chooses(found)
    found.not_empty()
    sorted_ = machine.intern(Sorted(found.term, False, False, found.segment.dim, found.others))
    rank = _rank(found, q, name_of(node) == "nanquantile")

    def at(term: Term) -> Term:
        position = found.apply("to", term, torch.int64, method=True, dim_of_term=0)
        taken: Term = machine.intern(Ranked(sorted_, position, math.prod(found.shape[d] for d in found.others)))
        return taken

    if how in _ROUNDED:
        return found.done(at(found.apply(_ROUNDED[how], rank, dim_of_term=0)))
    low, high = (found.apply(rounded, rank, dim_of_term=0) for rounded in (torch.floor, torch.ceil))
    part = found.apply(torch.sub, rank, low, dim_of_term=0) if how == "linear" else 0.5
    return found.done(found.apply(torch.lerp, at(low), at(high), part, dim_of_term=0))


def _rank(found: Over, q: float, ignore_nan: bool) -> Term:
    """The place of the quantile among the sorted numbers, not rounded; a document with NaN gives its last number."""

    def on_documents(target: Any, *args: Any, **kwargs: Any) -> Term:
        return found.apply(target, *args, dim_of_term=0, **kwargs)

    nans = found.of(found.apply(torch.isnan, found.term), torch.bool).to(torch.int64).reduce("sum")
    last = on_documents(torch.sub, found.count(), 1)
    if ignore_nan:
        last = on_documents(torch.sub, last, nans)
    rank = on_documents(torch.mul, on_documents("to", last, found.dtype, method=True), q)
    if ignore_nan:
        return on_documents(torch.clamp, rank, min=0)
    broken = on_documents(torch.gt, nans, 0)
    return on_documents(torch.where, broken, on_documents("to", last, found.dtype, method=True), rank)
