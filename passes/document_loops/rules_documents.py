"""Rules for ops on values that documents have one of each: pooled vectors, single slots, lengths and numbers.

In the whole-row form such a value has one more dimension in front, which counts documents; an op on one document's
tensor becomes the same op with its dimensions counted from the end.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, call_of, example, is_tensor, meaning_of, op_of
from packpass.semantics.binding import parameters_of
from packpass.semantics.names import is_in_place
from packpass.semantics.products import MATMULS
from packpass.semantics.reductions import (
    NORMALISED,
    OF_ALL,
    REDUCES_ONE_TO_ITSELF,
    REDUCING,
    SCANS,
    SOFTMAXES,
    takes_several_axes,
)
from packpass.semantics.views import EXPANDING, REGROUPING, TRANSPOSING, permutation_of
from passes.document_loops import uneven
from passes.document_loops.documents import (
    as_term,
    cast,
    combine,
    document,
    document_view,
    elementwise_target,
    is_per_document,
    lifted,
    number,
    reinterpreted,
    shared_size,
    size_to_expand_to,
    spread,
    with_other_singles,
)
from passes.document_loops.elsewhere import anywhere, elsewhere
from passes.document_loops.indices import expand_index
from passes.document_loops.machine import (
    Cell,
    Document,
    Machine,
    Segment,
    Slot,
    Store,
    frozen_args,
)
from passes.document_loops.op_names import label, name_of, unshadowed
from passes.document_loops.own_parts import replace
from passes.document_loops.own_weights import own_layer
from passes.document_loops.rates import of_numbers
from passes.document_loops.row_slots import numbered_slot, write_spot
from passes.document_loops.row_windows import window_of_row
from passes.document_loops.rules import DOCUMENTS, documents, is_elementwise
from passes.document_loops.rules_lookups import picked_by_slots
from passes.document_loops.slots import change_slot
from passes.document_loops.terms import LENGTH, Apply, DocAssign, DocGuard, Outside, Term, map_args
from passes.refused import Refused


@documents("*")
def _any(machine: Machine, node: fx.Node) -> Any:
    """Every op with a per-document operand comes here first."""
    name = name_of(node)
    if name in DOCUMENTS:
        return DOCUMENTS[name](machine, node)
    if not isinstance(example(node), (torch.Tensor, tuple, list)):
        return of_numbers(machine, node, name)
    if op_of(node) == "to" and is_per_document(machine.value(node.args[0])):
        return reinterpreted(machine, node)
    if is_elementwise(node):
        fn = _in_place if is_in_place(name) else _elementwise
        return fn(machine, node, name)
    raise Refused("no-rule", f"there is no rule for {label(node)} of a value that each document has one of", node)


def _elementwise(machine: Machine, node: fx.Node, name: str) -> Any:
    return combine(machine, node, *elementwise_target(node, name))


def _in_place(machine: Machine, node: fx.Node, name: str) -> Any:
    """``doc.op_(...)``, ``doc op= ...`` and ``segment op= doc``."""
    target = machine.value(node.args[0])
    base, fn, method = elementwise_target(node, name)
    if isinstance(target, Segment):
        value = combine(machine, node, base, fn, method)
        if value.window != target.window:
            raise Refused("length-mismatch", f"{label(node)} combines parts of a document that do not match", node)
        machine.write(target, target.window, value, node)
        return target
    if isinstance(target, Slot) and isinstance(example(node), torch.Tensor):
        return change_slot(machine, node, target, lambda: combine(machine, node, base, fn, method))
    if not isinstance(target, Document):
        raise Refused("outer-tensor-write", f"{label(node)} changes a slot, or a tensor from outside the loop", node)
    if not isinstance(example(node), torch.Tensor):
        return number(machine, node, base)
    value = combine(machine, node, base, fn, method)
    if not isinstance(value, Document):
        raise Refused("per-document-value", f"{label(node)} writes slots into a value of the whole document", node)
    assign_document(machine, target, value.cell.term, node)
    return target


def assign_document(machine: Machine, target: Document, value: Any, node: fx.Node) -> None:
    """``target[...] = value`` (a term, an `Outside` or a number)."""
    cell = target.cell
    if cell.spot is not None:
        write_spot(machine, cell, value, node)
        return
    replace(machine, cell, machine.intern(DocAssign(cell.term, value, machine.reach)), node)


def source(machine: Machine, node: fx.Node, numbers: Collection[fx.Node] = ()) -> tuple[Any, Term, int]:
    """``(value, term, rank)`` of the first argument, which must be a document's; nothing else may be per document.
    ``numbers`` are known to be none."""
    arg = node.args[0] if node.args else None
    known = isinstance(arg, fx.Node) and is_tensor(arg) and isinstance(machine.value(arg), (Document, Slot))
    if not isinstance(arg, fx.Node) or not known:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    for other in node.all_input_nodes:
        if other is not arg and other not in numbers and not isinstance(machine.value(other), Outside):
            raise Refused("no-rule", f"{label(node)} of a per-document value and a segment has no rule", node)
    return machine.value(arg), as_term(machine, arg, node), example(arg).dim()


def _guarded(machine: Machine, term: Term, node: fx.Node) -> Term:
    fake = example(node)
    fakes = fake if isinstance(fake, (tuple, list)) else [fake]
    if any(isinstance(f, torch.Tensor) and f.requires_grad for f in fakes):
        return machine.intern(DocGuard(term, machine.reach))
    return term


# === Views and shapes ========================================================================================


@documents(*TRANSPOSING, *REGROUPING, "unsqueeze", "squeeze")
def _view(machine: Machine, node: fx.Node) -> Any:
    """The result's sizes and the order of dimensions say everything."""
    value, term, _ = source(machine, node)
    fake = example(node)
    if fake.dtype != example(node.args[0]).dtype:
        raise Refused("no-rule", f"{label(node)} reads the bytes of a per-document value as another dtype", node)
    if name_of(node) in TRANSPOSING:
        order = permutation_of(node)
        if order is None:
            raise Refused("no-rule", f"this {label(node)} has no rule", node)
        return document_view(machine, Apply("permute", True, (term, 0, *(d + 1 for d in order)), (), 0), value)
    if all(isinstance(s, int) for s in fake.shape):
        return document_view(machine, Apply("reshape", True, (term, -1, *fake.shape), (), 0), value)
    same = with_other_singles(machine, term, example(node.args[0]), fake)
    if same is None:
        raise Refused("no-rule", f"{label(node)} of a value of dynamic size has no rule", node)
    return document_view(machine, same, value)


@documents("getitem")
def _item(machine: Machine, node: fx.Node) -> Any:
    """A constant part of a per-document value, or the document's slots in its row."""
    base, index = node.args
    window = window_of_row(machine, node, base, index) if isinstance(base, fx.Node) else None
    if window is not None:
        return window
    moved = part_of_row(machine, node)
    if moved is None:
        moved = picked_by_slots(machine, node)
    if moved is not None:
        return moved
    slot = numbered_slot(machine, node)
    if slot is not None:
        return document(machine, Apply(torch.unsqueeze, False, (slot.cell.term, 1), (), 0))
    entries: tuple[Any, ...] = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    numbers = {bound: shared_size(machine, bound) for bound in _bounds(entries)}
    value, term, _ = source(machine, node, {bound for bound, number in numbers.items() if number is not None})
    if len(node.all_input_nodes) != 1 + len(numbers) or any(isinstance(e, (bool, list)) for e in entries):
        raise Refused("no-rule", "this index into a per-document value has no rule", node)
    frozen = map_args(frozen_args((slice(None), *entries)), lambda e: numbers[e] if isinstance(e, fx.Node) else e)
    return document_view(machine, Apply(node.target, node.op == "call_method", (term, frozen), (), 0), value)


def _bounds(entries: tuple[Any, ...]) -> list[fx.Node]:
    """The numbers that slices of an index begin and end at, without constants."""
    ends = [end for e in entries if isinstance(e, slice) for end in (e.start, e.stop)]
    return [end for end in dict.fromkeys(ends) if isinstance(end, fx.Node)]


@documents("narrow")
def constant_part(machine: Machine, node: fx.Node) -> Any:
    """A constant part of a per-document value along one dimension."""
    value, term, rank = source(machine, node)
    name = name_of(node)
    if len(node.all_input_nodes) != 1:
        raise Refused("no-rule", f"{label(node)} by something that is not a constant has no rule", node)
    dim = int(argument(node, 1, "dim")) % rank + 1
    rest = (
        (argument(node, 2, "index"),) if name == "select" else (argument(node, 2, "start"), argument(node, 3, "length"))
    )
    return document_view(machine, Apply(getattr(torch, name or ""), False, (term, dim, *rest), (), 0), value)


def part_of_row(machine: Machine, node: fx.Node) -> Segment | None:
    """``rows[i][:n]``, read or written: the document's slots in its row of a padded tensor."""
    value = machine.value(node.args[0])
    row = value.cell.outer if isinstance(value, Document) and not value.cell.version else None
    index: Any = node.args[1]
    if row is None or row.index or row.k or index is None or (isinstance(index, tuple) and None in index):
        return None
    entries = expand_index(index, example(row.node).dim() - 1, node)
    at = example(row.node).dim() + row.dim
    entries = [*entries[:at], None, *entries[at:]]
    moved = elsewhere(machine, row.node, entries, at)
    return anywhere(machine, row.node, entries, at) if moved is None else moved


@documents(*EXPANDING, "repeat")
def _expand(machine: Machine, node: fx.Node) -> Any:
    """To the document's slots, or along a constant size."""
    value, term, rank = source_of_expand(machine, node)
    fake = example(node)
    packed = packed_dim(machine, node)
    if packed is None:
        if name_of(node) != "expand" or not all(isinstance(s, int) for s in fake.shape):
            raise Refused("no-rule", f"this {label(node)} has no rule", node)
        wide = Apply("expand", True, (lifted(machine, term, fake.dim() - rank), -1, *fake.shape), (), 0)
        return document_view(machine, wide, value) if isinstance(value, (Document, Slot)) else document(machine, wide)
    shape = example(node.args[0]).shape
    if name_of(node) == "repeat" and any(
        r != 1 for d, r in enumerate(_sizes(node)) if d != fake.dim() + packed and type(r) is int
    ):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    whole = spread(machine, term, shape, packed, node)
    sizes = tuple(
        LENGTH if d == packed else size_to_expand_to(s, shape, d) for d, s in enumerate(fake.shape, -fake.dim())
    )
    if None in sizes:
        raise Refused("no-rule", f"{label(node)} to a dynamic size has no rule", node)
    wide = machine.intern(Apply("expand", True, (whole, *sizes), (), packed))
    if name_of(node) == "repeat":
        return machine.fresh(wide, fake.dim())
    memory: Any = value.cell if isinstance(value, Document) else Cell(term)
    memory = value.segment.store if isinstance(value, Slot) else memory
    store = Store(wide, parent=(memory, memory.version))  # slots share memory: writes are refused
    return Segment(store, store.domain, fake.dim())


def source_of_expand(machine: Machine, node: fx.Node) -> tuple[Any, Term, int]:
    arg = node.args[0]
    if not isinstance(arg, fx.Node) or not is_per_document(machine.value(arg)):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    return machine.value(arg), as_term(machine, arg, node), example(arg).dim()


def _sizes(node: fx.Node) -> Any:
    if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)):
        return node.args[1]
    return node.args[1:]


def packed_dim(machine: Machine, node: fx.Node) -> int | None:
    """The dimension (negative) that gets the document's length, by the arguments; None if there is none."""
    from passes.document_loops.rules_views import takes_length

    if name_of(node) == "expand_as":
        like = machine.value(node.args[1])
        if isinstance(like, Segment) and like.window.full and like.store.exact:
            return like.dim
        raise Refused("no-rule", "this expand_as has no rule", node)
    sizes = _sizes(node)
    found = [d - len(sizes) for d, s in enumerate(sizes) if isinstance(s, fx.Node) and takes_length(machine, s)]
    if any(isinstance(s, fx.Node) and not takes_length(machine, s) for s in sizes) or len(found) > 1:
        raise Refused("no-rule", f"{label(node)} to a size that is not understood has no rule", node)
    return found[0] if found else None


# === Ops along dimensions of the value =======================================================================


@documents(*REDUCING, *SCANS, *SOFTMAXES, "normalize")
def _along(machine: Machine, node: fx.Node) -> Any:
    """The same op with its dimensions counted from the end."""
    name = name_of(node)
    if name in ("max", "min") and isinstance(argument(node, 1, "other"), fx.Node):
        return combine(machine, node, f"{name}imum", getattr(torch, f"{name}imum"), False)
    _, term, rank = source(machine, node)
    with unshadowed(node) as plain:
        call, target = call_of(plain), plain.target
    given = call.get("dim") if call is not None else None
    if call is None or isinstance(given, bool) or node.all_input_nodes != [node.args[0]]:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    args, kwargs = list(node.args[1:]), {k: v for k, v in node.kwargs.items() if k != "axis"}
    if rank == 0 and op_of(node) in REDUCES_ONE_TO_ITSELF and not args and not kwargs:
        if example(node).dtype == example(node.args[0]).dtype:
            return document(machine, Apply(torch.clone, False, (term,), (), 0))
    all_at_once = takes_several_axes(call.op) and not args
    if rank and given is None and not args and not kwargs and name in OF_ALL:
        return document(machine, _of_all(machine, _guarded(machine, term, node), name, rank))
    if rank == 0 or (given in (None, (), []) and not all_at_once):
        raise Refused("no-rule", f"this {label(node)} of a per-document value has no rule", node)
    dims: Any = tuple(range(-rank, 0)) if given in (None, (), []) else given
    counted = dims % rank - rank if isinstance(dims, int) else tuple(d % rank - rank for d in dims)
    names = parameters_of(call.overload, target)[1:]
    if "dim" in names[: len(args)]:
        args[names.index("dim")] = counted
    else:
        kwargs["dim"] = counted
    items = tuple(sorted((k, frozen_args(v)) for k, v in kwargs.items()))
    whole = machine.intern(
        Apply(target, node.op == "call_method", (_guarded(machine, term, node), *frozen_args(args)), items, 0)
    )
    return _results(machine, node, whole)


def _of_all(machine: Machine, term: Term, name: str, rank: int) -> Term:
    """The extreme of all entries of a document's value, or its number: ``x[s:e].mean(0).argmax()``."""
    flat = machine.intern(Apply("flatten", True, (term, -rank, -1), (), 0)) if rank > 1 else term
    made: Term = machine.intern(Apply(OF_ALL[name], False, (flat, -1), (), 0))
    return made


def _results(machine: Machine, node: fx.Node, whole: Term) -> Any:
    """One value per document, or one for each result of the call."""
    fake = example(node)
    if not isinstance(fake, (tuple, list)):
        return document(machine, whole)
    return tuple(document(machine, Apply(operator.getitem, False, (whole, i), (), 0)) for i in range(len(fake)))


@documents("linear", *NORMALISED)
def _rows(machine: Machine, node: fx.Node) -> Any:
    """Ops on the last dimensions: documents are rows."""
    layer = own_layer(machine, node) if name_of(node) == "linear" else None
    if layer is not None:
        return layer
    _, term, rank = source(machine, node)
    means = meaning_of(call_of(node))
    if rank == 0 or means is None or means.traits.singular:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    rest = tuple(_outside(machine, a) for a in node.args[1:])
    items = tuple(sorted((k, _outside(machine, v)) for k, v in node.kwargs.items()))
    whole = Apply(node.target, node.op == "call_method", (_guarded(machine, term, node), *rest), items, 0)
    return _results(machine, node, machine.intern(whole))


def _outside(machine: Machine, arg: Any) -> Any:
    return machine.value(arg) if isinstance(arg, fx.Node) else frozen_args(arg)


@documents(*MATMULS)
def _matmul(machine: Machine, node: fx.Node) -> Any:
    """``doc @ weights``, ``weights @ doc`` and ``doc . doc``."""
    a, b = node.args[:2]
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or node.kwargs:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    left, right = machine.value(a), machine.value(b)
    ranks = example(a).dim(), example(b).dim()
    fits = isinstance(left, (Document, Slot)), isinstance(right, (Document, Slot))
    if fits == (True, False) and isinstance(right, Outside) and ranks[1] <= 2:
        term = _guarded(machine, as_term(machine, a, node), node)
        return document(machine, Apply(torch.matmul, False, (term, right), (), 0))
    if fits == (False, True) and isinstance(left, Outside) and ranks in ((2, 1), (1, 1)):
        term = _guarded(machine, as_term(machine, b, node), node)
        fn = torch.nn.functional.linear if ranks[0] == 2 else torch.matmul
        return document(machine, Apply(fn, False, (term, left), (), 0))
    if fits == (True, True) and ranks == (1, 1):
        terms = [_guarded(machine, as_term(machine, x, node), node) for x in (a, b)]
        product = machine.intern(Apply(torch.mul, False, tuple(terms), (), 0))
        return document(machine, Apply(torch.sum, False, (product, -1), (), 0))
    raise Refused("no-rule", f"this {label(node)} of per-document values has no rule", node)


@documents("cat", "stack")
def _joined(machine: Machine, node: fx.Node) -> Any:
    """Values of one document side by side."""
    tensors, dim = argument(node, 0, "tensors"), argument(node, 1, "dim", node.kwargs.get("axis", 0))
    if not isinstance(tensors, (tuple, list)) or not isinstance(dim, int):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    rank = example(node).dim()
    slots = next((found for found in map(uneven.slots_of, map(machine.value, tensors)) if found is not None), None)
    if slots is not None and name_of(node) == "cat" and dim % rank == sum(slots):
        longer = uneven.sequence(machine, node, [machine.value(t) for t in tensors], *slots)
        if longer is not None:
            return longer
    terms = []
    for t in tensors:
        if not isinstance(t, fx.Node) or not is_per_document(machine.value(t)) or not hasattr(example(t), "dtype"):
            raise Refused("no-rule", f"{label(node)} of a per-document value with another tensor has no rule", node)
        terms.append(cast(machine, as_term(machine, t, node), example(t).dtype, example(node).dtype))
    fn = torch.stack if name_of(node) == "stack" else torch.cat
    return document(machine, Apply(fn, False, (tuple(terms), dim % rank - rank), (), 0))
