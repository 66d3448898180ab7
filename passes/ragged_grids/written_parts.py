"""What a document writes into its own slots of a new tensor: ``out[s:e] = f(x[s:e])``, ``out[:, s:e].copy_(x)``.

The slots between two neighbouring boundaries are nobody else's, so that the order in which documents write does not
matter: what they write is put in at once, slot by slot, as if it had been added to a list and concatenated.

Does not handle: tensors that are there before the graph, several parts of one tensor, parts that some documents do not
write, parts that the loop reads (each is refused).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import fx

from packpass.semantics import example, storage
from packpass.semantics.build import NO_VALUE
from packpass.semantics.indexing import entries_of
from packpass.semantics.memory import overwritten
from passes.document_loops.boundaries import begins_of
from passes.ragged_grids.documents import Documents
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.places import slots_of
from passes.ragged_grids.row import Row
from passes.ragged_grids.rules_slots import are_ends, check_part, is_cut_by_numbers
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Input, Moved, Term
from passes.ragged_grids.written import is_new_in_graph, is_only_written, spread_over, value_of
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Part:
    """A tensor of which a document has the slots from ``start`` on, along ``dim``."""

    out: fx.Node
    dim: int
    start: Any


def write_part(machine: Machine, node: fx.Node) -> bool:
    """A write to all of a document's own slots; False for another write."""
    found = overwritten(node)
    if found is None or node.users:
        return False
    view, index, value = found
    place = _of_view(machine, view, index) if view in machine.inside else _of_row(machine, view, index, node)
    if place is None:
        return False
    part, length = place
    if not is_new_in_graph(part.out) or part in machine.rows:
        return False
    row = machine.term(part.out, node)
    dims = (*row.dims[: part.dim], length, *row.dims[part.dim + 1 :])
    made = value_of(machine, value, row, node)
    places = spread_over(machine, made, list(zip(coordinates(dims), dims, strict=True)), node)
    machine.rows[part] = machine.moved((dims, made.dtype, made.device, made.grad), machine.read(made, places))
    return True


def _of_row(machine: Machine, out: fx.Node, index: Sequence[Any], node: fx.Node) -> tuple[Part, Any] | None:
    """``out[:, s:e] = value``: which part, and how many slots it has."""
    fake = example(out)
    entries = entries_of(tuple(index), fake.dim())
    own = [e for e in entries or () if isinstance(e.item, slice) and is_cut_by_numbers(e.item)]
    if entries is None or len(entries) != fake.dim() or len(own) != 1 or own[0].item.step not in (None, 1):
        return None
    (cut,) = own
    if any(e is not cut and e.item != slice(None) for e in entries):
        return None
    start, stop = (machine.expression(bound, node) for bound in (cut.item.start, cut.item.stop))
    if not _are_neighbours(machine, start, stop):
        return None
    assert cut.axis is not None
    check_part(machine, start, stop, machine.term(out, node).dims[cut.axis], node)
    return Part(out, cut.axis, start), sympy.expand(stop - start)


def _of_view(machine: Machine, view: fx.Node, index: Sequence[Any]) -> tuple[Part, Any] | None:
    """``out[s:e].copy_(value)``, of a view that is taken in the loop (and checked there)."""
    term = machine.values.get(view)
    if not isinstance(term, Moved) or not isinstance(term.read.of, Input) or not is_only_written(view):
        return None
    row, at, own = term.read.of, term.read.at, coordinates(term.dims)
    if storage(view) != storage(row.node) or len(at) != len(own) or any(e not in (slice(None), ...) for e in index):
        return None
    begins = [
        sympy.expand(where - here) if isinstance(where, sympy.Basic) else None
        for where, here in zip(at, own, strict=True)
    ]
    moved = [d for d, begin in enumerate(begins) if begin != 0]
    others = [d for d, size in enumerate(term.dims) if d not in moved and size != row.dims[d]]
    if len(moved) != 1 or others:
        return None
    (dim,) = moved
    start = begins[dim]
    if start is None or not _are_neighbours(machine, start, sympy.expand(start + term.dims[dim])):
        return None
    return Part(row.node, dim, start), term.dims[dim]


def _are_neighbours(machine: Machine, start: Any, stop: Any) -> bool:
    """Are these boundary i and boundary i + 1 of the same, or what the lengths before document i add up to and as many
    slots more as it has, so that no other document has the slots between them?"""
    columns = machine.names.columns
    first, second, length = (columns.get(bound) for bound in (start, stop, sympy.expand(stop - start)))
    if second is not None:
        return are_ends(first, second)
    if first is None or length is None or (first.column, length.column) != (None, None):
        return False
    return first.ahead == length.ahead and begins_of(first.node, length.node)


def put_parts(documents: Documents, part: Part, term: Term) -> None:
    """What all documents write goes to where they have their slots."""
    call = documents.call
    if term.device != documents.device:
        raise Refused("no-rule", "a document's tensors are on another device than its sizes", part.out)
    slots = slots_of(documents, term.dims[part.dim])
    row = Row(documents, slots, term, part.dim).made()
    start = call(torch.index_select, documents.full(part.start), 0, slots.ids)
    places = call(operator.add, start, slots.numbers)
    call(operator.setitem, part.out, (*[slice(None)] * part.dim, places), row, fake=NO_VALUE)
