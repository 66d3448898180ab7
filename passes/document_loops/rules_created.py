"""Rules for tensors that are made for a document: positions, and rows of one number."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example, op_name
from packpass.semantics.creation import LENT, LIKE, SIZED, uniform
from passes.document_loops.documents import as_term, cast, document, is_per_document, require_slots, spread
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.integers import FULL, Affine, Bound, Boundaries, Invariant, Window
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.moved import first_slots
from passes.document_loops.op_names import label
from passes.document_loops.padded import filler
from passes.document_loops.rules import documents, outside_call, rule
from passes.document_loops.rules_documents import source
from passes.document_loops.rules_views import first_bound, shape_with_length
from passes.document_loops.terms import Apply, DocVector, Flip, Outside, Positions
from passes.document_loops.uneven import Strided
from passes.refused import Refused


@rule("arange")
def _arange(machine: Machine, node: fx.Node) -> Any:
    bounds = [machine.affine(a) for a in node.args]
    step = bounds.pop() if len(bounds) == 3 else Affine.of(1)
    if step is None or not step.is_const or step.const == 0 or step.const < -1:
        raise Refused("no-rule", "this arange has no rule", node)
    if any(b is None for b in bounds) or not 1 <= len(bounds) <= 2 or set(node.kwargs) - {"dtype", "device"}:
        raise Refused("no-rule", "this arange has no rule", node)
    start, stop = (Affine.of(0), bounds[0]) if len(bounds) == 1 else bounds
    assert start is not None and stop is not None
    if step.const == -1:  # the same numbers, the last one first
        start, stop = stop.plus(Affine.of(1)), start.plus(Affine.of(1))
    if start.is_const and stop.is_const:
        return machine.computed(
            (node.target, False, tuple(node.args), tuple(sorted(node.kwargs.items()))), example(node)
        )
    extent = stop.plus(start, -1)
    shared = _shared_by_all(machine, node.args) if start.is_shared and stop.is_shared else None
    if shared is not None:
        return machine.computed((node.target, False, shared, tuple(sorted(node.kwargs.items()))), example(node))
    length, few = extent.length_of(), first_slots(machine, extent)
    if few is not None and length is None and start.is_const and step.const == 1:
        fake = example(node)
        return machine.fresh(Positions(True, start.const, fake.dtype, fake.device), 1, few)
    if length is None and machine.boundaries is None and start == Affine() and step.const == 1:
        length = _alone(machine, extent, node)
    if length is None or length[1] > 0 or (length[1] and step.const != 1):
        raise Refused("no-rule", "an arange that is no part of the document has no rule", node)
    if length[0].made is None:
        machine.use((length[0], first_bound(extent)), node)
    fake = example(node)
    single = start.single()
    if step.const > 1 and (start.is_const or (single is not None and isinstance(single[0], Bound))):
        return Strided(start, step.const, fake.dtype, fake.device)
    if not start.is_const and not _is_own_begin(machine, start):
        return _from_a_number(machine, node, start, step.const, length[1])
    per_document = start.is_const
    window, offset = _part(machine, start.const, -length[1], per_document, node)
    counted = machine.intern(Positions(per_document, offset, fake.dtype, fake.device))
    return machine.fresh(Flip(counted, -1) if step.const == -1 else counted, 1, window)


def _is_own_begin(machine: Machine, start: Affine) -> bool:
    """Is this where the document begins in the row, or so many slots behind it?"""
    single = start.single()
    if single is None or not isinstance(single[0], Bound) or machine.boundaries is None:
        return False
    documents, k = machine.boundaries
    return single[0].of == documents and single[0].k == k


def _from_a_number(machine: Machine, node: fx.Node, start: Affine, step: int, more: int) -> Any:
    """``arange(p, p + n)``, ``p`` being a number of the document: its slots' places in it, and that number."""
    if step != 1:
        raise Refused("no-rule", "this arange has no rule", node)
    fake = example(node)
    window, offset = _part(machine, 0, -more, True, node)
    counted = machine.intern(Positions(True, offset, torch.int64, fake.device))
    number = machine.intern(DocVector(start, torch.int64))
    places = machine.intern(Apply(torch.add, False, (counted, spread(machine, number, (), -1, node)), (), -1))
    return machine.fresh(machine.intern(Apply("to", True, (places, fake.dtype), (), -1)), 1, window)


def _alone(machine: Machine, extent: Affine, node: fx.Node) -> tuple[Boundaries, int] | None:
    """As many slots as a number of the document says, if nothing is known of documents: they are as long."""
    documents = own_documents(extent)
    if documents is None:
        return None
    machine.use((documents, 0), node)
    machine.require(extent, "ge", Affine(), "packpass: an arange of fewer numbers than none")
    return documents, 0


def _part(machine: Machine, start: int, lacking: int, per_document: bool, node: fx.Node) -> tuple[Window, int]:
    """The slots whose positions such numbers are, and what they are more than these positions.

    ``arange(s + 1, e)`` and ``arange(1, n)``, both ``lacking`` one slot, are the positions of all slots but the first.
    ``arange(n - 1)`` counts those of all but the last.
    """
    if not lacking:
        return FULL, start
    front = min(max(start, 0), lacking)
    if front != start and not per_document:
        raise Refused("no-rule", "an arange that is no part of the document has no rule", node)
    require_slots(machine, FULL, lacking, "an arange that would end before it starts, in a document with too few slots")
    return Window(front, lacking - front), start - front


@documents(*LENT, "full")
@rule(*SIZED)
def _create(machine: Machine, node: fx.Node) -> Any:
    """A tensor with a dimension of the document's length: the same call with the row's length."""
    name = op_name(node)
    lent = name in LENT
    args = node.args[1:] if lent else node.args
    unknown = set(node.kwargs) - {"dtype", "device", "fill_value", "requires_grad", "layout"}
    if unknown or node.kwargs.get("requires_grad") or (not args):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    takes_fill = name in ("full", "new_full")
    sizes, tail = (args[0], args[1:]) if isinstance(args[0], (tuple, list)) else (args, ())
    if takes_fill and not isinstance(args[0], (tuple, list)):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    if any(isinstance(t, fx.Node) for t in (*tail, node.kwargs.get("fill_value"))):
        return _filled_by_document(machine, node, sizes, tail[0] if tail else node.kwargs["fill_value"])
    shared = _shared_by_all(machine, sizes)
    if shared is not None:
        if lent and not isinstance(machine.value(node.args[0]), Outside):
            fake = example(node)  # a segment lends only its dtype and device
            kwargs = {"dtype": fake.dtype, "device": fake.device}
            fill = tail[0] if tail else node.kwargs.get("fill_value")
            call = (
                (torch.full, False, (shared, fill))
                if takes_fill
                else (getattr(torch, name.removeprefix("new_")), False, (shared,))
            )
            return machine.computed((*call, tuple(sorted(kwargs.items()))), fake)
        if all(isinstance(size, int) for size in shared):
            return outside_call(machine, node)
        given = (machine.value(node.args[0]), shared) if lent else (shared,)
        call = (node.target, node.op == "call_method", (*given, *tail))
        return machine.computed((*call, tuple(sorted(node.kwargs.items()))), example(node))
    fill = uniform(name, (None, *args) if lent else args, dict(node.kwargs))
    few = [(size, slots) for size in sizes if (slots := first_slots(machine, machine.affine(size))) is not None]
    lacking = None if few else filler(machine, node, sizes, fill)
    if lacking is not None:
        return lacking
    shape, dim = shape_with_length(machine, sizes, node, *(size for size, _ in few))
    shape = tuple(machine.intern(s) if isinstance(s, Outside) else s for s in shape)
    head: tuple[Any, ...] = ()
    if lent:
        base = machine.value(node.args[0])
        if not isinstance(base, (Segment, Outside)):
            raise Refused("no-rule", f"this {label(node)} has no rule", node)
        head = (machine.read(base, node) if isinstance(base, Segment) else base,)
    term = Apply(node.target, node.op == "call_method", (*head, shape, *tail), tuple(sorted(node.kwargs.items())), dim)
    return machine.fresh(term, len(shape), few[0][1] if few else FULL)


def _shared_by_all(machine: Machine, sizes: Any) -> tuple[Any, ...] | None:
    """Sizes that all documents have in common: numbers, and symbols from outside of the loop; None if one is not."""
    found: list[Any] = []
    for size in sizes:
        if isinstance(size, int):
            found.append(size)
            continue
        value = machine.affine(size)
        single = value.single() if value is not None else None
        if single is None or single[1] or not isinstance(single[0], Invariant):
            return None
        found.append(machine.intern(Outside(single[0].node)))
    return tuple(found)


def _filled_by_document(machine: Machine, node: fx.Node, sizes: Any, fill: Any) -> Any:
    """``full((e - s,), i)``: a number that every document has one of, in all of its slots."""
    value, fake = machine.value(fill), example(node)
    if not is_per_document(value) or fake.dtype == torch.bool or fake.requires_grad:
        raise Refused("index-as-number", f"{label(node)} with a value that is not a constant has no rule", node)
    if not sizes:
        moved = Apply("to", True, (as_term(machine, fill, node), fake.device, fake.dtype), (), 0)
        return document(machine, machine.intern(moved))
    shape, dim = shape_with_length(machine, sizes, node)
    if any(isinstance(s, Outside) for s in shape):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    number = machine.intern(Apply("to", True, (as_term(machine, fill, node), fake.dtype), (), 0))
    kwargs = (("device", fake.device), ("dtype", fake.dtype))
    zeros = machine.intern(Apply(torch.zeros, False, (shape,), kwargs, dim))
    term = Apply(torch.add, False, (zeros, spread(machine, number, (), dim, node)), (), dim)
    return machine.fresh(machine.intern(term), len(shape))


@documents(*LIKE)
def _like(machine: Machine, node: fx.Node) -> Any:
    """Of a per-document value, filled with a constant; or a segment filled with a number of the document."""
    first = machine.value(node.args[0])
    fill = argument(node, 1, "fill_value")
    if isinstance(first, Segment) and isinstance(fill, fx.Node) and not set(node.kwargs) - {"fill_value", "dtype"}:
        fake = example(node)
        have = example(fill).dtype if isinstance(example(fill), torch.Tensor) else torch.int64
        term = spread(machine, cast(machine, as_term(machine, fill, node), have, fake.dtype), (), first.dim, node)
        base = machine.intern(Apply(torch.empty_like, False, (machine.read(first, node),), (), first.dim))
        wide = Apply("expand_as", True, (term, base), (), first.dim)
        return machine.fresh(wide, first.rank, first.window, least=first.store.least)
    _, term, _ = source(machine, node)
    kwargs = tuple(sorted(node.kwargs.items()))
    return document(machine, Apply(node.target, node.op == "call_method", (term, *node.args[1:]), kwargs, 0))
