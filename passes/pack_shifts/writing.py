"""Calls that overwrite slots, in place or in a copy."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example, op_name, storage
from passes.pack_shifts.choosing import choose, flags_of, number
from passes.pack_shifts.interpret import Interpreter
from passes.pack_shifts.numbers import combining
from passes.pack_shifts.pieces import ZERO, Const, Piece, Pieces, Place, Pos, merged, overwritten, whole
from passes.pack_shifts.registry import rule, rule_of_result
from passes.pack_shifts.structural import bounds, cut_of, from_start, target_view
from passes.pack_shifts.values import View, from_right, position, recast


@rule("setitem")
def _setitem(run: Interpreter, node: fx.Node) -> Any:
    base, index, value = node.args
    if not isinstance(base, fx.Node):
        return None
    entries = index if isinstance(index, tuple) else (index,)
    given = [e for e in entries if isinstance(e, (fx.Node, list)) and not isinstance(example(e), (int, torch.SymInt))]
    if given:
        return _indexed_write(run, node, base, entries, given, value)
    view = target_view(run, base, index, value)
    if view is None or view.dim is None:
        return None
    cut = cut_of(view, example(base).shape, index)
    if cut is None or not cut[3]:
        return None
    start, stop, _, _ = cut
    return write(run, node, view, view.start + start, view.start + stop, value)


def contents(run: Interpreter, node: fx.Node, view: View, start: Pos, stop: Pos, value: Any) -> list[Pieces] | None:
    """What the memory of a view holds after slots ``[start, stop)`` of it got a value; None if not understood."""
    store, dtype = view.store, example(view.store.root).dtype
    if start > stop:
        return None
    source = run.view(value)
    if source is None or source.dim is None:
        at = position(value, store.size) if isinstance(example(value), torch.SymInt) else None
        news = [whole(stop - start, number(run, value, dtype) if at is None else Place(at))]
    else:
        node_of = source.node
        if from_right(source) != (view.dim or 0) - example(view.base).dim() or not view.straight:
            return None
        cast = [recast(p, example(node_of).dtype, dtype) for p in run.read(source, node)]
        news = [p for p in cast if p is not None and p and p[-1].stop == stop - start]
        if not news:
            return None
    olds = store.alternatives
    which = (0, -1) if len(olds) + len(news) > 2 else (0,)
    return [overwritten(olds[i], start, stop, news[i]) for i in which]


def write(run: Interpreter, node: fx.Node, view: View, start: Pos, stop: Pos, value: Any) -> Any:
    """``row[start:stop] = value``; None if it is not understood."""
    store = view.store
    if store.found is not None:
        return None
    after = contents(run, node, view, start, stop, value)
    if after is None:
        return None
    if run.view(value) is not None:
        store.origin = store.origin or node
    store.replace(after, node)
    return True


def _indexed_write(
    run: Interpreter, node: fx.Node, base: fx.Node, entries: tuple[Any, ...], given: list[Any], value: Any
) -> Any:
    """``y[arange(T) == T - 1] = v``, ``y[:, [-1]] = v``."""
    rank, view = example(base).dim(), run.view(base)
    if len(given) != 1 or view is None or view.dim is None or not view.complete or view.store.found is not None:
        return None
    index, before = given[0], entries[: next(i for i, e in enumerate(entries) if e is given[0])]
    before = tuple([slice(None)] * (rank - len(entries) + 1) if e is Ellipsis else [e] for e in before)
    left = [e for group in before for e in group]
    if any(e != slice(None) for e in (*left, *entries[len(before) + 1 :])):
        return None
    mask = run.view(index)
    if mask is not None and flags_of(mask) is not None:
        # A mask covers as many dimensions as it has.
        if len(left) + (mask.dim or 0) != view.dim or not _covers(mask, base, len(left)):
            return None
        flags = flags_of(mask)
    else:
        flags = _at(index, view) if len(left) == view.dim else None
    fill = number(run, value, example(view.store.root).dtype)
    if flags is None or not isinstance(fill, Const) or flags[-1].stop != view.stop:
        return None
    filled = whole(view.stop, fill)
    view.store.replace([choose(flags, filled, p) for p in view.store.alternatives], node)
    return True


def _covers(mask: View, base: fx.Node, left: int) -> bool:
    """A mask of more dimensions than the row must have the same shape there."""
    of = mask.node
    shape = example(of).shape
    return tuple(shape) == tuple(example(base).shape[left : left + len(shape)])


def _at(index: Any, view: View) -> Pieces | None:
    """True at the slots that a list of positions names."""
    if isinstance(index, fx.Node):
        literal = op_name(index) in ("tensor", "as_tensor") and example(index).dim() == 1
        index = index.args[0] if literal else None
    if not isinstance(index, (tuple, list)) or not index:
        return None
    flags = whole(view.stop, Const(False))
    for entry in index:
        at = None if position(entry, view.store.size) is None else from_start(entry, view.stop, view.store.size)
        if at is None or not ZERO <= at < view.stop:
            return None
        flags = overwritten(flags, at, at + Pos(0, 1), (Piece(ZERO, Pos(0, 1), Const(True)),))
    return merged(flags)


@rule("zero_")
def _zero(run: Interpreter, node: fx.Node) -> Any:
    return _filled(run, node, 0)


@rule("fill_", "copy_")
def _fill(run: Interpreter, node: fx.Node) -> Any:
    return _filled(run, node, argument(node, 1, "value", node.kwargs.get("src")))


def _filled(run: Interpreter, node: fx.Node, value: Any) -> Any:
    """``row[1:].copy_(value)``"""
    view = run.view(node.args[0])
    if view is None:
        return None
    if view.dim is None and run.view(value) is not None:
        return None
    if write(run, node, view, view.start, view.stop, value) is None:
        return None
    return dataclasses.replace(view, chain=(*view.chain, node)) if view.chain else view


@rule("out")
def _out(run: Interpreter, node: fx.Node) -> Any:
    """``torch.cat(parts, 1, out=y)``: all of ``y`` is overwritten by what the call makes."""
    out, make = node.kwargs["out"], rule_of_result(node)
    assert isinstance(out, fx.Node)
    if make is None or node.users or example(node).dtype != example(out).dtype:
        return None
    made = make(run, node)
    if not isinstance(made, View) or made.store.root is not node or made.dim is None:
        return None
    run.roots[storage(node)].remove(made.store)
    index: list[Any] = [slice(None)] * example(out).dim()
    index[made.dim] = slice(0, 1)  # any real cut: which dimension it is
    view = target_view(run, out, tuple(index), None)
    if view is None or view.store.found is not None or not (view.complete and view.straight and not view.chain):
        return None
    if not combining(view, made):
        return None
    view.store.origin = view.store.origin or made.store.origin
    view.store.replace(made.store.alternatives, node)
    return True


@rule("masked_fill_", "index_fill_")
def _fill_some(run: Interpreter, node: fx.Node) -> Any:
    """In place, at slots that are known."""
    view = run.view(node.args[0])
    if view is None or view.dim is None or view.chain or not view.complete or view.store.found is not None:
        return None
    flags = _chosen_slots(run, node, view)
    fill = number(run, node.args[-1], example(view.store.root).dtype)
    if flags is None or not isinstance(fill, Const) or node.kwargs:
        return None
    filled = whole(view.stop, fill)
    view.store.replace([choose(flags, filled, p) for p in view.store.alternatives], node)
    return view


def _chosen_slots(run: Interpreter, node: fx.Node, view: View) -> Pieces | None:
    """The slots that ``masked_fill`` or ``index_fill`` writes."""
    if op_name(node).startswith("masked"):
        mask = run.view(node.args[1])
        fits = mask is not None and from_right(mask) == from_right(view) and mask.stop == view.stop
        return flags_of(mask) if fits else None
    dim = node.args[1]
    if not isinstance(dim, int) or len(node.args) != 4 or dim % example(view.base).dim() != view.dim:
        return None
    return _at(node.args[2], view)


@rule("index_fill")
def _index_fill(run: Interpreter, node: fx.Node) -> Any:
    view = run.view(node.args[0])
    if view is None or view.dim is None or node.kwargs or not (view.complete and view.straight):
        return None
    flags = _chosen_slots(run, node, view)
    fill = number(run, node.args[-1], example(node).dtype)
    if flags is None or not isinstance(fill, Const):
        return None
    filled = whole(view.stop, fill)
    after = [choose(flags, filled, p) for p in run.read(view, node)]
    return run.made(node, view.dim, view.store.size, after, view.store.origin)


@rule("select_scatter", "slice_scatter")
def _scatter(run: Interpreter, node: fx.Node) -> Any:
    """A copy with some slots overwritten."""
    base, value = argument(node, 0, "input"), argument(node, 1, "src")
    dim = argument(node, 2, "dim", 0)
    if not isinstance(base, fx.Node) or not isinstance(dim, int):
        return None
    rank = example(base).dim()
    if op_name(node) == "select_scatter":
        at = argument(node, 3, "index")
        cut = slice(at, None if at == -1 else at + 1) if isinstance(at, int) else None
    else:
        cut = slice(argument(node, 3, "start"), argument(node, 4, "end"), argument(node, 5, "step", 1))
    if cut is None:
        return None
    index: list[Any] = [slice(None)] * rank
    index[dim] = cut
    view = target_view(run, base, tuple(index), value)
    if view is None or view.dim is None or dim % rank != view.dim or not (view.complete and view.straight):
        return None
    if op_name(node) == "select_scatter" and run.view(value) is not None:
        return None
    found = bounds(cut, view.stop, view.store.size)
    after = None if found is None else contents(run, node, view, *found, value)
    if after is None:
        return None
    origin = view.store.origin or (node if run.view(value) is not None else None)
    return run.made(node, view.dim, view.store.size, after, origin)
