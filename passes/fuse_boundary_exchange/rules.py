"""What the ops of a roll mean for `machine`: cutting, rolling and joining slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass._registry import registrar
from packpass.semantics import argument, example
from packpass.semantics.bound_mixers import pad_of
from packpass.semantics.creation import LIKE, SIZED
from passes.document_loops.indices import expand_index
from passes.document_loops.op_names import label, name_of
from passes.fuse_boundary_exchange import contents
from passes.fuse_boundary_exchange.machine import OPAQUE, PARTWISE, RULES, Machine
from passes.fuse_boundary_exchange.values import (
    ONE,
    ZERO,
    Int,
    Memory,
    Needs,
    Run,
    Stack,
    View,
    normal,
    number,
    total,
)
from passes.refused import Refused

rule = registrar(RULES)
"""Registers the meaning of ops by name, of markers by the op."""


# === Reading =================================================================================================


def indexed(machine: Machine, base: Any, index: Any, node: fx.Node) -> View | Stack:
    """What ``base[index]`` refers to."""
    if not isinstance(base, fx.Node):
        raise Refused("no-rule", "this index has no rule", node)
    rank = example(base).dim()
    view = machine.value(base)
    if isinstance(view, Stack):
        return _of_stack(machine, view, expand_index(index, rank, node), node)
    if isinstance(view, View) and None in (given := index if isinstance(index, tuple) else (index,)):
        return _with_new_dimensions(view, given, rank, node)
    entries = expand_index(index, rank, node)
    if isinstance(view, View):
        return _of_view(machine, settle(view, base, -1) if view.kept is None and rank else view, entries, node)
    cuts = [d for d, entry in enumerate(entries) if entry != slice(None)]
    if machine.is_outer(view) and len(cuts) == 1:
        entry = entries[cuts[0]]
        if not isinstance(entry, slice):
            return _outer_slot(machine, view, entry, cuts[0] - rank, node)
        start, stop = machine.integer(entry.start), machine.integer(entry.stop)
        if start is not None and stop is not None and entry.step in (None, 1) and start.start and stop.start:
            return machine.outer(view, start, stop, cuts[0] - rank, node)
    raise Refused("unknown-bounds", f"this part of a document is not understood ({label(node)})", node)


def _of_view(machine: Machine, view: View, entries: list[Any], node: fx.Node) -> View:
    """What an index, one entry for each dimension, refers to in a part of a document."""
    cuts = [d for d, entry in enumerate(entries) if entry != slice(None)]
    if not cuts:
        return view
    if len(cuts) == 1 and view.kept and view.dim is not None and cuts[0] == len(entries) + view.dim:
        entry = entries[cuts[0]]
        return _slice(machine, view, entry, node) if isinstance(entry, slice) else _slot(machine, view, entry, node)
    raise Refused("unknown-bounds", f"this part of a document is not understood ({label(node)})", node)


def _of_stack(machine: Machine, stack: Stack, entries: list[Any], node: fx.Node) -> View | Stack:
    """The same of parts that are stacked: of one of them, or of each."""
    which = entries.pop(stack.axis)
    if which != slice(None):
        return _of_view(machine, _part(machine, stack, which, stack.axis, node), entries, node)
    gone = sum(not isinstance(entry, slice) for entry in entries[: stack.axis])
    return Stack(tuple(_of_view(machine, part, entries, node) for part in stack.parts), stack.axis - gone)


def _with_new_dimensions(view: View, given: tuple[Any, ...], rank: int, node: fx.Node) -> View:
    """``slot[:, None]``: one slot, with its packed dimension back."""
    entries = list(given)
    at = entries.index(Ellipsis) if Ellipsis in entries else len(entries)
    entries[at : at + 1] = [slice(None)] * (rank - sum(e is not None and e is not Ellipsis for e in entries))
    if any(entry is not None and entry != slice(None) for entry in entries):
        raise Refused("no-rule", "an index that cuts a document and gives it a dimension", node)
    for d in range(len(entries)):
        if entries[d] is None:
            view = _with_dimension(view, d - len(entries), node)
    return view


def _with_dimension(view: View, dim: int, node: fx.Node) -> View:
    """A new dimension, counted in the result, that is the packed one of a slot that was selected."""
    if view.kept is None or (view.kept is False and view.dim == dim):
        return dataclasses.replace(view, dim=dim, kept=True)
    raise Refused("no-rule", "a new dimension beside the packed one", node)


def _slice(machine: Machine, view: View, entry: slice, node: fx.Node) -> View:
    """``view[start:stop]`` along the packed dimension, with Python's meaning of negative constants."""
    if entry.step not in (None, 1):
        raise Refused("strided-slice", "a slice with a step over documents", node)
    ends: list[Int] = []
    plain: list[int | None] = []
    for bound, default in ((entry.start, ZERO), (entry.stop, view.length)):
        at = machine.integer(bound) if bound is not None else default
        if at is None or not at.local:
            raise Refused("unknown-bounds", "a slice of a document has a bound that is not understood", node)
        plain.append(at.const if bound is not None else None)
        ends.append(view.length.plus(at) if bound is not None and at.is_const and at.const < 0 else at)
    start, stop = ends
    empty = len(range(view.empty)[slice(*plain)])
    if not (start.at_least(ZERO) and stop.at_least(start) and view.length.at_least(stop)):
        raise Refused("not-a-roll", "which slots a slice has depends on how short the document is", node)
    return view.part(start, stop.plus(start, -1), empty)


def _slot(machine: Machine, view: View, position: Any, node: fx.Node) -> View:
    at = machine.integer(position)
    if at is None or not at.local:
        raise Refused("unknown-bounds", "a slot of a document at a position that is not understood", node)
    at = view.length.plus(at) if at.is_const and at.const < 0 else at
    if not (at.at_least(ZERO) and view.length.at_least(at.plus(ONE))):
        raise Refused("not-a-roll", "a slot that short documents do not have", node)
    machine.raises_if_empty |= not view.empty
    return view.part(at, ONE, 1, kept=False)


def _outer_slot(machine: Machine, row: Any, position: Any, dim: int, node: fx.Node) -> View:
    """``x[s]``, a slot of a document that is taken out of the row."""
    at = machine.integer(position)
    if at is None or not at.start:
        raise Refused("unknown-bounds", "a slot of a row at a position that is not understood", node)
    machine.needs = machine.needs if machine.skips_empty else Needs.ALL
    return machine.outer(row, at, at.plus(ONE), dim, node).part(ZERO, ONE, 1, kept=False)


def settle(view: View, of: Any, dim: int, kept: bool | None = None) -> View:
    """A tensor of given sizes in the form that its use asks for."""
    sizes, slots = example(of).shape, view.length.const
    has = len(sizes) >= -dim and bool(statically_known_true(sizes[dim] == slots))
    if slots > 1 and not (has and kept in (None, True)):
        raise Refused("length-mismatch", "a tensor of other sizes than the slots of a message")
    kept = has if kept is None else kept
    return dataclasses.replace(view, dim=dim, kept=kept)


@rule("getitem")
def _getitem(machine: Machine, node: fx.Node) -> Any:
    base, index = node.args
    parts = machine.values.get(base)  # type: ignore[arg-type]
    if isinstance(parts, tuple) and type(index) is int:
        found: Any = parts[index]
        return found
    return indexed(machine, base, index, node)


@rule(markers.SEGMENT)
def _segment(machine: Machine, node: fx.Node) -> View:
    """The document of a row that an earlier loop has made."""
    row: Any
    row, boundaries, index, dim = node.args
    at = machine.integer(index)
    ends = [machine.boundary(boundaries, at.plus(number(k)), node) for k in (0, 1)] if at is not None else []  # type: ignore[arg-type]
    if len(ends) != 2 or not all(isinstance(end, Int) for end in ends) or row in machine.inside:
        raise Refused("unknown-bounds", "a document by boundaries that are not understood", node)
    return machine.outer(row, ends[0], ends[1], dim - example(row).dim(), node)


@rule("size")
def _sizes(machine: Machine, node: fx.Node) -> Any:
    """``x.shape``: along the packed dimension a length, otherwise sizes that nobody asks about."""
    view, rank = machine.value(node.args[0]), example(node.args[0]).dim()
    known = isinstance(view, View) and view.kept and view.dim is not None
    return tuple(view.length if known and d == rank + view.dim else OPAQUE for d in range(rank))


@rule("select")
def _select(machine: Machine, node: fx.Node) -> View:
    return _along(machine, node, lambda at: at)


@rule("narrow")
def _narrow(machine: Machine, node: fx.Node) -> View:
    length = machine.integer(argument(node, 3, "length"))

    def stretch(start: Any) -> Any:
        first = machine.integer(start)
        if first is None or length is None or (first.is_const and first.const < 0):
            raise Refused("unknown-bounds", "a slice bound is not a boundary of the document", node)
        return _Bounds(first, first.plus(length))

    return _along(machine, node, stretch)


class _Bounds:
    """A slice whose bounds are known integers, not nodes."""

    def __init__(self, start: Int, stop: Int) -> None:
        self.start, self.stop = start, stop


def _along(machine: Machine, node: fx.Node, entry_of: Callable[[Any], Any]) -> View:
    base: Any = node.args[0]
    rank = example(base).dim()
    dim = argument(node, 1, "dim") % rank - rank
    position = argument(node, 2, "index") if name_of(node) == "select" else argument(node, 2, "start")
    entry = entry_of(position)
    view = machine.value(base)
    if isinstance(view, Stack):
        return _part(machine, view, entry, dim + rank, node)
    if isinstance(view, View):
        if not view.kept or view.dim != dim:
            raise Refused("no-rule", f"{label(node)} along another dimension than the packed one", node)
        if not isinstance(entry, _Bounds):
            return _slot(machine, view, entry, node)
        if entry.start.local and entry.start.at_least(ZERO) and view.length.at_least(entry.stop):
            if entry.stop.at_least(entry.start):
                return view.part(entry.start, entry.stop.plus(entry.start, -1), 0)
    elif machine.is_outer(view):
        if not isinstance(entry, _Bounds):
            return _outer_slot(machine, view, entry, dim, node)
        return machine.outer(view, entry.start, entry.stop, dim, node)
    raise Refused("unknown-bounds", f"this part of a document is not understood ({label(node)})", node)


@rule("chunk")
def _chunk(machine: Machine, node: fx.Node) -> tuple[View, View]:
    view = machine.view(node.args[0], node)
    count, rank = argument(node, 1, "chunks"), example(node.args[0]).dim()
    if (
        count != machine.form.chunks
        or count != 2
        or view.dim is None
        or not view.kept
        or argument(node, 2, "dim", 0) % rank != rank + view.dim
    ):
        raise Refused("no-rule", "a document is cut in other parts than its two chunks", node)
    if view.length != machine.whole:
        raise Refused("not-a-roll", "something else than a whole document is cut in two chunks", node)
    chunk = machine.form.chunk
    return view.part(ZERO, chunk, 0), view.part(chunk, chunk, 0)


@rule("contiguous", "detach", "alias")
def _same(machine: Machine, node: fx.Node) -> Any:
    """The same slots, in memory that may be the same."""
    row = machine.value(node.args[0])
    if name_of(node) == "detach":
        machine.detaches |= example(node.args[0]).requires_grad
        if machine.is_outer(row):
            return row
    view = machine.view(node.args[0], node)
    memory = Memory(machine.read(view, node), view.length, view.empty, parent=(view.memory, view.memory.version))
    return View(memory, ZERO, view.length, view.empty, view.dim, view.kept)


@rule("clone")
def _clone(machine: Machine, node: fx.Node) -> View:
    view = machine.view(node.args[0], node)
    return machine.fresh(machine.read(view, node), view)


@rule("pad")
def _pad(machine: Machine, node: fx.Node) -> View:
    """Slots of a number in front of a part of a document, or behind it."""
    pad = pad_of(node)
    view = machine.view(node.args[0], node)
    if pad is None or not view.kept or pad.dim - example(node).dim() != view.dim:
        raise Refused("no-rule", "a pad along another dimension than the packed one, or not by a number", node)
    counts = (pad.before, pad.after)
    if any(type(count) is not int or count < 0 for count in counts):
        raise Refused("no-rule", "a pad by something else than some slots", node)
    fill = contents.constant(pad.fill, example(node).dtype)
    before, after = (Run(number(count), fill) for count in counts)
    runs = normal([before, *machine.read(view, node), after])
    length, empty = total([before.length, view.length, after.length]), view.empty + sum(counts)
    return View(Memory(runs, length, empty), ZERO, length, empty, view.dim, True)


def check_alike(part: Any, other: Any, dim: int, node: fx.Node) -> None:
    """Two tensors of one dtype whose sizes differ along the packed dimension at most."""
    a, b = example(part), example(other)
    if a.dtype != b.dtype or not same_rest(a.shape, b.shape, dim, kept_a=True, kept_b=True):
        raise Refused("dim-mismatch", "tensors of different sizes or dtypes are put together", node)


@rule(*LIKE)
def _like(machine: Machine, node: fx.Node) -> View:
    """``empty_like`` and its kin: the same sizes, other content."""
    view = machine.view(node.args[0], node)
    if example(node).dtype != example(node.args[0]).dtype:
        raise Refused("no-rule", "a conversion between the messages of a roll is not understood", node)
    return machine.fresh((Run(view.length, contents.made(node)),), view)


@rule(*SIZED)
def _sized(machine: Machine, node: fx.Node) -> View:
    """``torch.empty(sizes)``: the slots of a message; of one, if the packed dimension is kept, its use will tell."""
    content = contents.made(node)
    for sizes in node.all_input_nodes:
        like = machine.value(sizes.args[0]) if name_of(sizes) == "size" and len(sizes.args) == 1 else None
        if isinstance(like, View) and len(node.all_input_nodes) <= 2:  # x.new_empty(y.shape), torch.empty(y.shape)
            return machine.fresh((Run(like.length, content),), like)
    sent = machine.form.sent
    return View(Memory((Run(sent, content),), sent, sent.const), ZERO, sent, sent.const, None, None)


def _part(machine: Machine, stack: Stack, index: Any, axis: int, node: fx.Node) -> View:
    """One of the parts that are stacked."""
    at = machine.integer(index)
    if axis != stack.axis or at is None or not at.is_const or not -len(stack.parts) <= at.const < len(stack.parts):
        raise Refused("no-rule", "more than one part of what is stacked, or not a whole one", node)
    return stack.parts[at.const]


@rule("unsqueeze")
def _unsqueeze(machine: Machine, node: fx.Node) -> View:
    view, rank = machine.view(node.args[0], node), example(node).dim()
    return _with_dimension(view, argument(node, 1, "dim") % rank - rank, node)


@rule("squeeze")
def _squeeze(machine: Machine, node: fx.Node) -> View:
    view, dim = machine.view(node.args[0], node), argument(node, 1, "dim")
    rank = example(node.args[0]).dim()
    if type(dim) is int and view.kept and view.length == ONE and view.dim == dim % rank - rank:
        return dataclasses.replace(view, kept=False)
    raise Refused("no-rule", "a squeeze of something else than one slot", node)


def same_rest(a: Sequence[Any], b: Sequence[Any], dim: int | None, kept_a: bool, kept_b: bool) -> bool:
    """Are all sizes but the packed one equal?"""
    left, right = list(a), list(b)
    for sizes, kept in ((left, kept_a), (right, kept_b)):
        if kept and dim is not None:
            del sizes[dim]
    return len(left) == len(right) and all(statically_known_true(x == y) for x, y in zip(left, right, strict=True))


PARTWISE.update({_same, _clone, _like})
