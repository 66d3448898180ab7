"""Parts of what each document has one of are set: ``stats = torch.zeros(4); stats[0] = x[s:e].sum()``.

After, for all documents at once: ``select_scatter(stats, segment_sum(x), 1, 0)``. Only by numbers and slices that are
the same for every document.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import read_cell
from passes.document_loops.indices import constant_entry, expand_index
from passes.document_loops.machine import Cell, Document, Machine, frozen_args
from passes.document_loops.terms import Apply, DocAssign, Term, thawed
from passes.refused import Refused, refuse_stale


def part_is_set(machine: Machine, target: Document, index: Any, value: Any, node: fx.Node) -> None:
    """``target[index] = value`` (a term, an `Outside` or a number), and ``target[mask] = number``."""
    assert isinstance(node.args[0], fx.Node)
    mask = machine.value(index) if isinstance(index, fx.Node) else None
    if isinstance(mask, Document) and example(index).dtype is torch.bool:
        masked = machine.intern(_masked(target.cell, node, read_cell(mask.cell, node), value))
        replace(machine, target.cell, machine.intern(DocAssign(target.cell.term, masked, machine.reach)), node)
        return
    entries = expand_index(index, example(node.args[0]).dim(), node)
    kept, new = sum(isinstance(entry, slice) for entry in entries), example(node.args[2])
    longer = isinstance(node.args[2], fx.Node) and isinstance(new, torch.Tensor) and new.dim() > kept
    if longer or not all(constant_entry(machine, entry) for entry in entries):
        raise Refused("partial-write", "a part of a per-document value is assigned", node)
    replace(machine, target.cell, _put(machine, target.cell.term, entries, value), node)


def _masked(cell: Cell, node: fx.Node, mask: Term, value: Any) -> Term:
    """``target[mask] = number``."""
    base, index = example(node.args[0]), example(node.args[1])
    if tuple(index.shape) != tuple(base.shape) or type(value) not in (int, float, bool):
        raise Refused("partial-write", "a part of a per-document value is assigned by a mask", node)
    return Apply("masked_fill", True, (cell.term, mask, value), (), 0)


def replace(machine: Machine, cell: Cell, term: Term, node: fx.Node) -> None:
    """The content of a value from now on, and of what it is a view of; other views of that are out of date then."""
    if cell.parent is not None:
        whole, place = cell.parent[0], _place(cell)
        if not isinstance(whole, Cell) or place is None:
            raise Refused("write-through-view", "a view, or a tensor that may be one, is changed in place", node)
        refuse_stale(cell, node)
        replace(machine, whole, _put(machine, whole.term, place, term), node)
        cell.parent = (whole, whole.version)
    cell.term = term
    cell.version += 1


def _place(cell: Cell) -> list[Any] | None:
    """The index by which a view was made of what it is a view of."""
    term, whole = cell.term, cell.parent[0] if cell.parent is not None else None
    if not isinstance(whole, Cell) or whole.spot is not None:
        return None
    while isinstance(term, DocAssign):  # it has been set before
        term = term.base
    if not isinstance(term, Apply) or term.target is not operator.getitem or term.kwargs:
        return None
    entries = term.args[1] if isinstance(term.args[1], tuple) else (term.args[1],)
    plain = list(thawed(entries))
    constant = all(type(e) is int or (isinstance(e, slice) and _is_constant(e)) for e in plain)
    return plain[1:] if constant and plain[:1] == [slice(None)] else None


def _is_constant(entry: slice) -> bool:
    return all(bound is None or type(bound) is int for bound in (entry.start, entry.stop, entry.step))


def _put(machine: Machine, base: Term, entries: list[Any], value: Any, dim: int = 1) -> Term:
    """``base`` with ``value`` in the place of ``base[:, .., *entries]``, the first of which is along ``dim``."""
    at = next((i for i, entry in enumerate(entries) if entry != slice(None)), None)
    if at is None:
        set_: Term = machine.intern(DocAssign(base, value, machine.reach))
        return set_
    entry, dim, rest = entries[at], dim + at, entries[at + 1 :]
    if isinstance(entry, int):
        part = machine.intern(Apply(torch.select, False, (base, dim, entry), (), 0))
        new = _put(machine, part, rest, value, dim)
        made: Term = machine.intern(Apply(torch.select_scatter, False, (base, new, dim, entry), (), 0))
        return made
    index = frozen_args((*[slice(None)] * dim, entry))
    part = machine.intern(Apply(operator.getitem, False, (base, index), (), 0))
    new = _put(machine, part, rest, value, dim + 1)
    bounds = (entry.start, entry.stop, 1 if entry.step is None else entry.step)
    made = machine.intern(Apply(torch.slice_scatter, False, (base, new, dim, *bounds), (), 0))
    return made
