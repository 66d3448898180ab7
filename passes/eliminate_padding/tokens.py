"""The one rule of all calls whose meaning is known: tokens pass through a call that treats each of them by itself.

A packed value goes through if the loops along which its batch and its tokens run have no role in the call. The same
call on packed forms, `rebound` where it names dimensions, then does for all tokens of the batch what it did per row.
`packpass.semantics` says which loops these are. Nothing is emitted before that is decided.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from packpass.semantics import Call, Meaning, Relation, call_of, meaning_of, op_of
from packpass.semantics.meaning import KEPT, Cut, Flipped, How, Joined, Looked, Padded, Role, Rolled, Selected
from packpass.semantics.memory import writes_of
from packpass.semantics.rebind import broadcasts, confirmed, rebound
from passes.eliminate_padding.fills import fill_of
from passes.eliminate_padding.machine import Machine, feature, physical
from passes.eliminate_padding.tile import MOVES, Across, Carried, Dims, carried, holds, moved_by, named
from passes.eliminate_padding.values import Packed, Value
from passes.eliminate_padding.writes import not_asked, unseen
from passes.refused import Refused

TOKENS = 9973
"""How many tokens a call is tried with: no feature has this size."""
_FORMATS = (None, torch.contiguous_format, torch.preserve_format)


@dataclasses.dataclass(frozen=True)
class Kept:
    """A call that may be repeated on packed forms: all that is to be known before anything is emitted."""

    call: Call
    meaning: Meaning
    given: Mapping[int, Packed]
    carried: tuple[Carried, ...]


def keep(m: Machine, node: fx.Node) -> Value | Across:
    """The packed form of a call on packed values; what stands in its way where a dimension does not come through."""
    found = _check(m, node)
    if isinstance(found, Across):
        return found
    _checked_features(found, node)
    # === Transform ===
    if found.meaning.family == "views" and (value := _view(m, node, found)) is not None:
        return value
    return _again(m, node, found)


def _check(m: Machine, node: fx.Node) -> Kept | Across:
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        what = call.op if call is not None else op_of(node)
        raise Refused("cross-token", f"{what} may mix the tokens of a row with its padding: it has no rule", node)
    written = writes_of(call)
    if written and (written != {0} or not unseen(node) or not _has_value_form(call)):
        raise Refused("in-place", f"{call.name} writes into a value that is used elsewhere", node)
    if node.kwargs.get("memory_format") not in _FORMATS:
        raise Refused("no-rule", f"{call.op} into a memory format of its own", node)
    read = meaning.relations[0].operands
    given = {k: p for k, o in enumerate(call.operands) if read[k] is not None and (p := m.packed(o.node)) is not None}
    if not given:
        raise Refused("no-rule", f"{call.op} of a value without tokens", node)
    dims = {k: p.dims for k, p in given.items()}
    all_carried = []
    for relation in meaning.relations:
        moved = moved_by(m.tile, call, dims[0]) if list(dims) == [0] else None
        one = carried(m.tile, relation, dims) if moved is None else moved
        if isinstance(one, Across):
            return one
        if not all(sum(holds(parts, part) for parts in one.dims) == 1 for part in ("B", "S")):
            return Across(next(iter(given)), 0, ("B", "S"), None)
        all_carried.append(one)
    return Kept(call, meaning, given, tuple(all_carried))


def _has_value_form(call: Call) -> bool:
    """Is there a form of an in-place call that makes a new value?"""
    return bool(call.arguments.get("inplace")) or (call.name != call.op and hasattr(Tensor, call.op))


def _checked_features(found: Kept, node: fx.Node) -> None:
    for one in found.carried:
        for parts in one.dims:
            for part in parts:
                if not isinstance(part, str):
                    feature(part, node)


# === The same slots in other places ==========================================================================


def _view(m: Machine, node: fx.Node, found: Kept) -> Value | None:
    """A reshape, or a permutation with new dimensions; None for what is more than that."""
    (relation,), (one,) = found.meaning.relations, found.carried
    packed = found.given.get(0)
    if packed is None or found.call.results[0].dtype is not found.call.operands[0].value.dtype:
        return None
    if relation.in_order():
        return Value(packed=m.viewed(packed, one.dims))
    axes = relation.operands[0] or ()
    own = [axis.loops for axis in axes]
    kept = [loops for loops in relation.result if loops in own]
    if any(len(loops) > 1 for loops in [*own, *relation.result]) or any(axis.how != KEPT for axis in axes):
        return None
    if sorted(filter(None, own)) != sorted(filter(None, kept)):
        return None
    slots = [d for d, loops in enumerate(own) if loops and packed.dims[d] != ("B",)]
    new = packed.node
    if len(slots) != len(physical(packed.dims)):  # dimensions of one slot
        new = m.call("reshape", new, physical(tuple(packed.dims[d] for d in slots)))
    order = [own.index(loops) for loops in kept if loops]
    new = m.permuted(new, [slots.index(d) for d in order if d in slots])
    shape = physical(one.dims)
    places = [loops for loops, parts in zip(relation.result, one.dims, strict=True) if parts != ("B",)]
    if len(shape) != len(slots):
        old = [n if loops and loops in own else 1 for n, loops in zip(shape, places, strict=True)]
        new = m.call("reshape", new, old)
    if any(n != 1 and loops not in own for n, loops in zip(shape, places, strict=True)):
        new = m.call("expand", new, shape)
    return Value(packed=dataclasses.replace(packed, node=new, dims=one.dims))


# === The same call ===========================================================================================


def _again(m: Machine, node: fx.Node, found: Kept) -> Value:
    """The call on packed forms."""
    call, first = found.call, found.carried[0]
    relation = found.meaning.relations[0]
    aligned = broadcasts(call.op)
    dims: dict[int, Dims | None] = {k: p.dims for k, p in found.given.items()}
    others = [k for k, axes in enumerate(relation.operands) if axes is not None and k not in found.given]
    for k in others:
        dims[k] = None if aligned else _tokens_of(m, node, call, k, relation, first)
    packed = {k: own for k, own in dims.items() if own is not None}
    gone = {k: own.index(("B",)) for k, own in packed.items() if ("B",) in own}
    shapes = {k: list(operand.value.shape) for k, operand in enumerate(call.operands)}
    shapes.update({k: [TOKENS if n == -1 else n for n in physical(own)] for k, own in packed.items()})
    result = first.dims.index(("B",)) if ("B",) in first.dims else None
    arguments = (node.args, node.kwargs) if aligned else rebound(call, gone, result)
    if arguments is None or not (aligned or confirmed(call, arguments, shapes, gone)):
        raise Refused("no-rule", f"{call.op} of tokens in this form is not known to work without the batch", node)
    forms = {call.operands[k].node: p.node for k, p in found.given.items()}
    for k in others:
        operand, own = call.operands[k].node, dims[k]
        if aligned:
            forms[operand] = m.aligned(operand, first.dims)
        else:
            forms[operand] = m.pack(operand, own).node if own is not None else m.plain(operand, node)
    for k, axes in enumerate(relation.operands):
        if axes is None:
            forms[call.operands[k].node] = m.any_form(call.operands[k].node)
    new = m.again(node, arguments[0], arguments[1], forms)
    if call.in_place:
        new = _not_in_place(m, call, new)
    return _packed(m, node, found, new)


def _tokens_of(m: Machine, node: fx.Node, call: Call, k: int, relation: Relation, first: Carried) -> Dims | None:
    """The dimensions of another operand whose slots belong to tokens; None if it has no tokens."""
    operand = call.operands[k]
    dims: list[tuple[Any, ...]] = []
    for size, axis in zip(operand.value.shape, relation.operands[k] or (), strict=True):
        parts = first.along(axis.loops)
        if named(parts) and axis.how != KEPT:
            raise Refused("cross-token", f"{call.op} combines the tokens of a row with one another", node)
        dims.append(parts if named(parts) else (size,) if not isinstance(size, int) or size != 1 else ())
    has = [any(holds(parts, part) for parts in dims) for part in ("B", "S")]
    if not any(has):
        return None
    if not all(has) or m.values[operand.node].whole is None:
        raise Refused("not-tokens", f"{call.op} combines tokens of the batch with other values", node)
    return tuple(dims)


def _not_in_place(m: Machine, call: Call, new: fx.Node) -> fx.Node:
    """``x += y`` where nothing sees that x changes: a new value, in the dtype of x.

    Packed forms share memory where padded ones do not, so that nothing may be written into them.
    """
    if call.arguments.get("inplace"):
        not_asked(new)
        return new
    new.op, new.target = "call_method", call.op
    return m.call("to", new, call.results[0].dtype)


def _packed(m: Machine, node: fx.Node, found: Kept, new: fx.Node) -> Value:
    """The result, or the results."""
    fill = None
    if found.meaning.family in MOVES and list(found.given) == [0]:
        fill = found.given[0].fill
    elif not found.call.several:
        forms = {found.call.operands[k].node: p for k, p in found.given.items()}
        fill = fill_of(m, node, found.call, forms, found.carried[0].dims)
    if not found.call.several:
        return Value(packed=Packed(new, found.carried[0].dims, fill))
    items = [m.graph.call_function(operator.getitem, (new, i)) for i in range(len(found.carried))]
    return Value(
        items=tuple(Value(packed=Packed(x, one.dims, fill)) for x, one in zip(items, found.carried, strict=True))
    )


# === Refusals ================================================================================================

_CUTS: tuple[type[How], ...] = (Cut, Selected)
_MOVES: tuple[type[How], ...] = (Rolled, Flipped, Joined, Padded)


def refusal(call: Call, node: fx.Node, found: Across) -> Refused:
    """Why a dimension does not come through."""
    op, what = call.op, found.what
    if what is None:
        return Refused("cross-token", f"{op} combines the tokens of a row with one another", node)
    if isinstance(what, Looked):
        return Refused("cross-token", "tokens are looked up by an index that is not understood", node)
    if isinstance(what, Role) and holds(found.parts, "B"):
        return Refused("cross-token", f"{op} over the whole batch would count padding", node)
    if isinstance(what, Role):
        return Refused("cross-token", f"{op} over the tokens of a row would see padding", node)
    if isinstance(what, _CUTS):
        return Refused("cross-token", f"{op} cuts the tokens of a row, other than x[:, 0] and x[:, -1]", node)
    if isinstance(what, _MOVES):
        return Refused("cross-token", f"{op} moves the tokens of a row", node)
    return Refused("cross-token", f"{op} merges or cuts the tokens of a row", node)
