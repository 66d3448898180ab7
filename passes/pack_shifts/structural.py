"""Calls that move, join, cut or reshape rows: what they do to slots."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true as known
from packpass.semantics import argument, call_of, example, kept_axis, meaning_of, op_name, storage
from packpass.semantics.indexing import SPLITTING, TURNING
from packpass.semantics.meaning import Cut, Flipped, Kept, Selected, is_one
from packpass.semantics.memory import copied
from passes.pack_shifts.interpret import Interpreter
from passes.pack_shifts.numbers import numbers_of
from passes.pack_shifts.pieces import UNKNOWN, ZERO, Const, Pieces, Pos, crop, flipped, joined, rolled, whole
from passes.pack_shifts.registry import STRUCTURAL, rule
from passes.pack_shifts.values import Uniform, View, constant, fixed, is_plain, new_store, position, recast

# === Moving and joining ======================================================================================


@rule("roll")
def _roll(run: Interpreter, node: fx.Node) -> Any:
    view = run.view(node.args[0])
    shifts, dims = argument(node, 1, "shifts"), argument(node, 2, "dims", ())
    shifts = [fixed(n) for n in shifts] if isinstance(shifts, (tuple, list)) else [fixed(shifts)]
    dims = [dims] if isinstance(dims, int) else dims
    if view is None or view.dim is None:
        return None
    rank = example(node).dim()
    others = [n for d, n in enumerate(example(node).shape) if d != view.dim]
    if not dims and all(isinstance(n, int) and n == 1 for n in others):
        dims = [view.dim]  # of the flattened tensor, which is the row
    if not isinstance(dims, (tuple, list)) or len(shifts) != len(dims):
        return None
    moves = [
        (_turns(n, view), d % rank) for n, d in zip(shifts, dims, strict=True) if not is_one(example(node).shape[d])
    ]
    if len(moves) != 1 or moves[0][1] != view.dim or not isinstance(moves[0][0], int):
        return None
    moved = [rolled(p, moves[0][0]) for p in run.read(view, node)]
    return run.made(node, view.dim, view.store.size, [p for p in moved if p is not None], node)


def _turns(shift: Any, view: View) -> Any:
    """``T - 1`` and ``1 - T`` roll a row of T slots by -1 and by 1."""
    if isinstance(shift, int) or view.stop - view.start != position(view.store.size, view.store.size):
        return shift
    given = example(shift) if isinstance(shift, fx.Node) else shift
    for sign in (1, -1):
        at = position(given * sign, view.store.size) if isinstance(given, torch.SymInt) else None
        if at is not None and at.n == 1:
            return at.c * sign
    return shift


@rule(*TURNING)
def _flip(run: Interpreter, node: fx.Node) -> Any:
    """A row that is turned round, perhaps to be turned back once it is shifted."""
    call, meaning = call_of(node), meaning_of(call_of(node))
    view = None if call is None else run.view(call.get("input", "self"))
    if view is None or view.dim is None or meaning is None or run.shift(view.store) is not None:
        return None  # who turns a shift looks at it
    axes = meaning.relations[0].operands[0]
    turned = [d for d, axis in enumerate(axes or ()) if isinstance(axis.how, Flipped)]
    if turned != [view.dim]:
        return None
    return run.made(node, view.dim, view.store.size, [flipped(p) for p in run.read(view, node)[:1]], node)


@rule("pad")
def _pad(run: Interpreter, node: fx.Node) -> Any:
    call = call_of(node)
    if call is None:
        return None
    view, pad, mode = run.view(call.get("input", "self")), call.get("pad"), call.get("mode", default="constant")
    fill = call.get("value", default=None)
    fill = 0 if fill is None else fill
    if view is None or view.dim is None or not isinstance(fill, (bool, int, float)):
        return None
    if not isinstance(pad, (tuple, list)) or not all(isinstance(p, int) for p in pad):
        return None
    rank = example(node).dim()
    pairs = {rank - 1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    left, right = pairs.pop(view.dim, (0, 0))
    if any(p != (0, 0) for p in pairs.values()) or (left, right) == (0, 0):
        return None
    number = constant(fill, example(node).dtype) if mode == "constant" else UNKNOWN

    def padded(pieces: Pieces) -> Pieces:
        length = pieces[-1].stop
        inner = crop(pieces, Pos(0, max(-left, 0)), length - Pos(0, max(-right, 0)))
        return joined([whole(Pos(0, max(left, 0)), number), inner, whole(Pos(0, max(right, 0)), number)])

    return run.made(node, view.dim, view.store.size, [padded(p) for p in run.read(view, node) if p], node)


@rule("cat")
def _cat(run: Interpreter, node: fx.Node) -> Any:
    return _joined_along(run, node, argument(node, 1, "dim", node.kwargs.get("axis", 0)))


@rule("hstack", "column_stack")
def _beside(run: Interpreter, node: fx.Node) -> Any:
    return _joined_along(run, node, 1 if example(node).dim() > 1 else 0)


@rule("vstack")
def _below(run: Interpreter, node: fx.Node) -> Any:
    return _joined_along(run, node, 0)


def _joined_along(run: Interpreter, node: fx.Node, dim: Any) -> Any:
    """Tensors of the rank of the result, one behind the other."""
    tensors = argument(node, 0, "tensors")
    if not isinstance(tensors, (tuple, list)) or not isinstance(dim, int):
        return None
    if any(example(t).dim() != example(node).dim() for t in tensors):
        return None
    dim %= example(node).dim()
    views = [v for t in tensors if (v := run.view(t)) is not None]
    if not views or any(v.dim != dim for v in views):
        return None
    size = views[0].store.size
    parts: list[list[Pieces]] = []
    for t in tensors:
        view, length = run.view(t), position(example(t).shape[dim], size)
        if view is not None:
            cast = [recast(p, example(t).dtype, example(node).dtype) for p in run.read(view, node)]
            parts.append([p for p in cast if p is not None])
        elif length is None:
            return None
        else:
            value = run.values.get(t)
            content = constant(value.value, example(node).dtype) if isinstance(value, Uniform) else UNKNOWN
            parts.append([whole(length, content)])
    if not all(parts):
        return None
    both = [joined([p[0] for p in parts]), joined([p[-1] for p in parts])]
    return run.made(node, dim, size, both, node)


# === Cutting =================================================================================================


@rule("getitem")
def _getitem(run: Interpreter, node: fx.Node) -> Any:
    base, index = node.args
    if not isinstance(base, fx.Node):
        return None
    if isinstance(example(base), (tuple, list)):
        return _item(run, node, base)
    view = target_view(run, base, index, None) if storage(node) == storage(base) else run.view(base)
    if view is None or view.dim is None:
        return None
    if storage(node) != storage(base):
        return STRUCTURAL["lookups"](run, node)
    cut = cut_of(view, example(base).shape, index)
    if cut is None:
        return None
    start, stop, dim, whole_rest = cut
    if not whole_rest:
        return None
    return cut_view(view, node, start, stop, dim)


def target_view(run: Interpreter, base: fx.Node, index: Any, value: Any) -> View | None:
    """The row that is written. A tensor made of one number becomes a row along the dimension that is cut."""
    uniform = run.values.get(base)
    if not isinstance(uniform, Uniform):
        return run.view(base)
    rank = example(base).dim()
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (rank - len(entries) + 1)
    entries += [slice(None)] * (rank - len(entries))
    if any(e is None for e in entries):
        return None
    shape = example(base).shape
    cut = [d for d, e in enumerate(entries) if e != slice(None) and not (isinstance(shape[d], int) and shape[d] == 1)]
    if len(cut) != 1:
        return None
    dim = cut[0]
    size = shape[dim]
    source = run.view(value)
    if source is not None and position(size, source.store.size) is not None:
        size = source.store.size
    view = new_store(base, dim, size, [()], None)
    view.store.alternatives = [whole(view.stop, Const(uniform.value))]
    run.keep(view.store)
    run.values[base] = view
    return view


def cut_view(view: View, node: fx.Node, start: Pos, stop: Pos, dim: int | None) -> View:
    """Slots ``[start, stop)`` of a view, as ``node``."""
    if start == ZERO and stop == view.stop - view.start and not view.chain:
        straight = view.straight and dim == view.dim
        return dataclasses.replace(view, dim=dim, base=node, straight=straight, based=straight)
    chain = (*view.chain, node)
    return dataclasses.replace(view, start=view.start + start, stop=view.start + stop, dim=dim, chain=chain)


def cut_of(view: View, shape: Any, index: Any) -> tuple[Pos, Pos, int | None, bool] | None:
    """``(start, stop, dimension after the cut, are all other dimensions whole?)`` of an index into a view."""
    entries = list(index) if isinstance(index, tuple) else [index]
    given = sum(e is not None and e is not Ellipsis for e in entries)
    if any(isinstance(e, fx.Node) and isinstance(example(e), torch.Tensor) for e in entries):
        return None
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (len(shape) - given)
    else:
        entries += [slice(None)] * (len(shape) - given)
    length = view.stop - view.start
    start, stop, dim, whole_rest = ZERO, length, None, True
    d = to = 0
    for entry in entries:
        if entry is None:
            to += 1
            continue
        if d == view.dim:
            if isinstance(entry, slice):
                found = bounds(entry, length, view.store.size)
                if found is None:
                    return None
                (start, stop), dim = found, to
            else:
                at_slot = from_start(entry, length, view.store.size)
                if at_slot is None:
                    return None
                start, stop = at_slot, at_slot + Pos(0, 1)
        elif isinstance(entry, slice):
            whole_rest = whole_rest and entry == slice(None)
        else:
            whole_rest = whole_rest and isinstance(shape[d], int) and shape[d] == 1  # the only row there is
        d, to = d + 1, to + isinstance(entry, slice)
    return start, stop, dim, whole_rest


def bounds(cut: slice, length: Pos, size: Any) -> tuple[Pos, Pos] | None:
    """The slots of a slice; None if it is not understood."""
    if cut.step not in (None, 1):
        return None
    start = ZERO if cut.start is None else from_start(cut.start, length, size)
    stop = length if cut.stop is None else from_start(cut.stop, length, size)
    if start is None or stop is None:
        return None
    start, stop = min(max(start, ZERO), length), min(max(stop, ZERO), length)
    return (start, stop) if start <= stop else None


def from_start(bound: Any, length: Pos, size: Any) -> Pos | None:
    at = position(bound, size)
    if at is None:
        return None
    return length + at if at.n == 0 and at.c < 0 else at


@rule("select", "narrow")
def _select(run: Interpreter, node: fx.Node) -> Any:
    base, dim = node.args[0], argument(node, 1, "dim")
    if not isinstance(base, fx.Node) or not isinstance(dim, int):
        return None
    index = [slice(None)] * example(base).dim()
    index[dim] = slice(0, 1)  # any real cut: which dimension it is
    view = target_view(run, base, tuple(index), None)
    if view is None or view.dim is None or not isinstance(dim, int) or dim % example(base).dim() != view.dim:
        return None
    length = view.stop - view.start
    start = from_start(argument(node, 2, "start", node.kwargs.get("index")), length, view.store.size)
    if start is None:
        return None
    if op_name(node) == "select":
        return cut_view(view, node, start, start + Pos(0, 1), None)
    count = position(argument(node, 3, "length"), view.store.size)
    return None if count is None else cut_view(view, node, start, start + count, view.dim)


@rule(*SPLITTING)
def _split(run: Interpreter, node: fx.Node) -> Any:
    """Parts of a row are cuts of it, each taken out of the tuple by its number."""
    items = [user for user in node.users if op_name(user) == "getitem" and isinstance(user.args[1], int)]
    known_all = len(items) == len(node.users) and all(_part(run, node, user.args[1]) for user in items)
    return True if known_all else None


def _item(run: Interpreter, node: fx.Node, base: fx.Node) -> Any:
    if op_name(base) not in SPLITTING or not _split(run, base):
        return None
    found = _part(run, base, node.args[1])
    return None if found is None else cut_view(found[0], node, *found[1:])


def _part(run: Interpreter, node: fx.Node, item: Any) -> tuple[View, Pos, Pos, int | None] | None:
    """The row that is split, and the slots of one part; None if they are not known."""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None or not -len(call.results) <= item < len(call.results):
        return None
    axes, view = meaning.relations[item].operands[0], run.view(call.operands[0].node)
    if axes is None or view is None or view.dim is None:
        return None
    if view.chain and not is_plain(view.store):
        return None  # of a cut that may be a shift by itself: a use of it, like any other
    how, size = axes[view.dim].how, view.store.size
    if any(not isinstance(axis.how, Kept) for d, axis in enumerate(axes) if d != view.dim):
        return None
    if isinstance(how, Selected):
        start = from_start(how.index, view.stop - view.start, size)
        return None if start is None else (view, start, start + Pos(0, 1), None)
    if not isinstance(how, Cut) or how.step != 1:
        return None
    start, length = position(how.start, size), position(call.results[item].shape[view.dim], size)
    return None if start is None or length is None else (view, start, start + length, view.dim)


# === The same slots under another shape ======================================================================


@rule("views", "packpass::packed")
def _shape(run: Interpreter, node: fx.Node) -> Any:
    base = argument(node, 0, "input")
    view = run.view(base)
    if not isinstance(base, fx.Node) or view is None or view.dim is None:
        return None
    declared = op_name(node) == "packpass::packed"
    to = view.dim if declared else kept_axis(node, base, view.dim)
    if to is None:
        return None
    if storage(node) != storage(base):
        return None  # a copy: a row of its own
    same = declared or (to == view.dim and _same_places(node, base))
    if view.chain:
        return dataclasses.replace(view, dim=to, chain=(*view.chain, node), straight=view.straight and same)
    straight = view.straight and same
    return dataclasses.replace(view, dim=to, base=node, straight=straight, based=straight)


def _same_places(node: fx.Node, base: fx.Node) -> bool:
    """Does every element stand where it stood, or are other dimensions exchanged, split or read as another dtype?"""
    before, after = example(base), example(node)
    if before.dtype != after.dtype or before.dim() != after.dim():
        return False
    sizes = list(zip(before.shape, after.shape, strict=True))
    return all(known(a == b) and (is_one(a) or kept_axis(node, base, d) == d) for d, (a, b) in enumerate(sizes))


@rule("copies")
def _copy(run: Interpreter, node: fx.Node) -> Any:
    base = copied(node)
    if not isinstance(base, fx.Node):
        return None
    value = run.values.get(base)
    if isinstance(value, Uniform):
        return None if storage(node) == storage(base) else Uniform(constant(value.value, example(node).dtype).value)
    view = run.view(base)
    if view is None or view.dim is None or len([n for n in node.all_input_nodes if run.view(n)]) > 1:
        return None
    if example(node).device != example(base).device:
        return None
    plain = view.complete and view.straight and view.store.origin is None and numbers_of(view) is None
    if plain and storage(node) != storage(base):
        return None  # a plain copy of a plain row is a row of its own
    return run.copied(node, view)
