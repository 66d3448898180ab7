"""Rules for taking apart and putting together along dimensions other than the packed one: chunk, index, stack, pad."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, example
from packpass.semantics.indexing import SPLITTING
from passes.document_loops.documents import document_view
from passes.document_loops.indices import constant_entry, expand_index
from passes.document_loops.machine import OPAQUE, Machine, Segment, frozen_args
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import documents, outside_call, tokenwise
from passes.document_loops.rules_documents import source
from passes.document_loops.rules_lookups import first_rows, table_lookup
from passes.document_loops.rules_tokenwise import (
    exactly,
    known_keywords,
    only_outside,
    operand,
    segments,
    whole_row,
)
from passes.document_loops.terms import Apply, Outside
from passes.document_loops.windows import locate
from passes.refused import Refused


def first_input(machine: Machine, node: fx.Node) -> Any:
    """The value a view is taken of."""
    source = argument(node, 0, "input")
    return machine.value(source) if isinstance(source, fx.Node) else None


def otherwise(machine: Machine, node: fx.Node) -> Any:
    """No segment to look at: the same call once, or another rule's business."""
    return outside_call(machine, node) if only_outside(machine, node) and node.all_input_nodes else NotImplemented


_SIZES = ("chunks", "split_size", "split_sizes", "split_size_or_sections", "sections", "indices_or_sections")

# === Several results =========================================================================================


@tokenwise(*SPLITTING)
def _parts(machine: Machine, node: fx.Node) -> Any:
    value, name = first_input(machine, node), name_of(node)
    if not isinstance(value, Segment):
        return otherwise(machine, node)
    known_keywords(node, "dim", *_SIZES)
    dim = argument(node, 1 if name == "unbind" else 2, "dim", 0)
    at = value.rank + value.dim
    if type(dim) is not int or dim % value.rank == at or node.all_input_nodes != [argument(node, 0, "input")]:
        return NotImplemented
    dropped = 1 if name == "unbind" and dim % value.rank > at else 0
    return whole_row(machine, node, value, value.dim + dropped, linear=True, alias=True)


@documents(*SPLITTING)
def _parts_of_value(machine: Machine, node: fx.Node) -> Any:
    """Parts of a value that documents have one of each: ``shift, scale = table[i].chunk(2)``."""
    value, term, rank = source(machine, node)
    name = name_of(node)
    known_keywords(node, "dim", *_SIZES)
    given = [*node.args[1:2], *(node.kwargs[key] for key in _SIZES if key in node.kwargs)]
    dim = argument(node, 1 if name == "unbind" else 2, "dim", 0)
    if type(dim) is not int:
        raise Refused("no-rule", f"this {label(node)} of a per-document value has no rule", node)
    sizes = () if name == "unbind" else (frozen_args(given[0]),)
    several = machine.intern(Apply(getattr(torch, name or ""), False, (term, *sizes, dim % rank + 1), (), 0))
    parts = (Apply(operator.getitem, False, (several, i), (), 0) for i in range(len(example(node))))
    return tuple(document_view(machine, part, value) for part in parts)


@tokenwise("getitem")
def _getitem(machine: Machine, node: fx.Node) -> Any:
    base, index = node.args
    if not isinstance(base, fx.Node):
        return NotImplemented
    value = machine.value(base)
    if isinstance(value, tuple):
        return value[index] if isinstance(index, int) else NotImplemented
    looked_up = table_lookup(machine, node)
    if looked_up is not NotImplemented or not isinstance(value, Segment) or not isinstance(index, tuple):
        return looked_up
    if any(isinstance(e, fx.Node) for e in index) or not any(_selects(e) for e in index):
        return NotImplemented
    return _selection(machine, node, base, value, list(index))


def _selects(entry: Any) -> bool:
    return entry is not None and entry is not Ellipsis and entry != slice(None)


def _selection(machine: Machine, node: fx.Node, base: fx.Node, value: Segment, index: list[Any]) -> Any:
    """``segment[1:, None, :4]``: a window of the document, parts of other dimensions and new dimensions at once."""
    given = tuple(e for e in index if e is not None)
    entries, packed = expand_index(given, value.rank, node), value.rank + value.dim
    if isinstance(entries[packed], slice) and entries[packed].step not in (None, 1):
        return NotImplemented  # every so many slots are documents of their own
    window = locate(machine, node, base, given)[1]
    others = [e for d, e in enumerate(entries) if d != packed]
    if not isinstance(entries[packed], slice) or (None not in index and all(e == slice(None) for e in others)):
        return NotImplemented  # a plain window of the document may be written through
    entries[packed] = slice(None)
    if not all(constant_entry(machine, e) for e in entries):
        return NotImplemented
    # New dimensions go back to where they stood among the others.
    at = index.index(Ellipsis) if Ellipsis in index else len(index)
    tail = index[at + 1 :]
    ahead = value.rank - sum(e is not None for e in tail)
    rest = iter(entries)
    full: list[Any] = []
    for entry in index[:at]:
        full.append(None if entry is None else next(rest))
    full += [next(rest) for _ in range(ahead - sum(e is not None for e in index[:at]))]
    for entry in tail:
        full.append(None if entry is None else next(rest))
    kept = [e for e in full if e is None or isinstance(e, slice)]
    place = [i for i, e in enumerate(full) if e is not None][packed]
    before = sum(e is None or isinstance(e, slice) for e in full[:place])
    term = Apply(operator.getitem, False, (machine.read(value, node), frozen_args(tuple(full))), (), before - len(kept))
    return machine.view(term, len(kept), Segment(value.store, window, value.rank))


@tokenwise("narrow")
def _narrow(machine: Machine, node: fx.Node) -> Any:
    """``narrow`` along another dimension, and the first rows of a table."""
    value = first_input(machine, node)
    dim, start, length = (argument(node, i, n) for i, n in ((1, "dim"), (2, "start"), (3, "length")))
    if type(dim) is not int or (start != 0 and type(start) is not int):
        return NotImplemented
    if isinstance(value, Segment) and type(length) is int and dim % value.rank != value.rank + value.dim:
        return whole_row(machine, node, value, value.dim, linear=True, alias=True)
    rows = machine.affine(length) if length is not None else None
    if isinstance(value, Outside) and start == 0 and rows is not None and not rows.is_const:
        rank = machine.fake(value).dim()
        at = dim % rank
        every = frozen_args(slice(None))
        return first_rows(machine, node, value, rows, (at - rank, rank - at - 1), (every,) * at)
    return NotImplemented


# === Joins ===================================================================================================


@tokenwise("stack")
def _stack(machine: Machine, node: fx.Node) -> Any:
    tensors, dim = argument(node, 0, "tensors"), argument(node, 1, "dim", 0)
    found = segments(machine, node)
    if not found:
        return otherwise(machine, node)
    known_keywords(node, "tensors", "dim")
    if not isinstance(tensors, (tuple, list)) or type(dim) is not int:
        return NotImplemented
    values = [machine.value(t) for t in tensors]
    first = found[0]
    if not all(isinstance(v, Segment) and v.rank == first.rank and v.dim == first.dim for v in values):
        raise Refused("no-rule", "stack of a segment with something else than segments like it has no rule", node)
    behind = dim % (first.rank + 1) > first.rank + first.dim
    return exactly(whole_row(machine, node, first, first.dim - behind, linear=True), found)


@tokenwise("pad")
def _pad(machine: Machine, node: fx.Node) -> Any:
    """``pad`` of other dimensions only."""
    value, pad = first_input(machine, node), argument(node, 1, "pad")
    mode, fill = argument(node, 2, "mode", "constant"), argument(node, 3, "value")
    if not isinstance(value, Segment) or not isinstance(pad, (tuple, list)) or not all(type(p) is int for p in pad):
        return NotImplemented
    pairs = {-1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    if mode != "constant" or isinstance(fill, fx.Node) or pairs.pop(value.dim, (0, 0)) != (0, 0) or not pairs:
        return NotImplemented
    return whole_row(machine, node, value, value.dim, linear=True)


@tokenwise("setitem")
def _setitem(machine: Machine, node: fx.Node) -> Any:
    """``segment[:, 2:4] = value``: a part of other dimensions, on the slots the segment has."""
    base, index, new = node.args
    value = machine.value(base) if isinstance(base, fx.Node) else None
    if not isinstance(value, Segment) or not isinstance(index, tuple) or any(isinstance(e, fx.Node) for e in index):
        return NotImplemented
    if any(e is None for e in index):
        return NotImplemented
    found = locate(machine, node, base, index)  # type: ignore[arg-type]
    packed = value.rank + value.dim
    if len(found) != 3 or found[1] != value.window or not isinstance(found[2][packed], slice):
        return NotImplemented
    if value.store.outer is not None and value.window.back:
        return NotImplemented  # for a leading empty document the slice [0:-back] would be the row
    entries = found[2]
    chosen = [d for d, e in enumerate(entries) if d != packed and e != slice(None)]
    if len(chosen) != 1 or not constant_entry(machine, entries[chosen[0]]):
        return NotImplemented
    (at,) = chosen
    entry, whole = entries[at], machine.read(value, node)
    where = (
        (at - value.rank, entry.start, entry.stop, entry.step or 1)
        if isinstance(entry, slice)
        else (at - value.rank, entry)
    )
    dim = value.dim + (1 if not isinstance(entry, slice) and at > packed else 0)
    part = machine.intern(Apply(operator.getitem, False, (whole, frozen_args(tuple(entries))), (), dim))
    filler = _filling(machine, node, new, value, part, dim)
    scatter = torch.slice_scatter if isinstance(entry, slice) else torch.select_scatter
    term = Apply(scatter, False, (whole, filler, *where), (), value.dim)
    machine.write(value, value.window, machine.fresh(term, value.rank, value.window), node)
    return OPAQUE


def _filling(machine: Machine, node: fx.Node, new: Any, target: Segment, part: Any, dim: int) -> Any:
    """What is assigned, in the shape and dtype of the part it is assigned to."""
    dtype = example(node.args[0]).dtype
    value = machine.value(new)
    if isinstance(value, (bool, int, float)):
        return machine.intern(Apply(torch.full_like, False, (part, value), (), dim))
    if isinstance(value, Segment):
        if value.dim != dim:
            raise Refused("dim-mismatch", "the packed dimensions of the two sides are not the same", node)
    elif isinstance(value, Outside):
        machine.broadcasts(value, dim, node)
    term = operand(machine, new, target.window, node)
    if example(new).dtype != dtype:
        term = machine.intern(Apply("to", True, (term, dtype), (), dim))
    return machine.intern(Apply("expand_as", True, (term, part), (), dim))
