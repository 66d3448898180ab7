"""What a document writes into its own slots of a new tensor: ``out[s:e] = f(x[s:e])``, ``out[:, s:e].copy_(x)``.

The slots between two neighbouring boundaries are nobody else's, so that the order in which documents write does not
matter: what they write is put in at once, slot by slot, as if it had been added to a list and concatenated.

So is what a document first reads of them: nobody else has written there. What is changed in place (``out[s:e] += x``)
is read, and written.

Does not handle: tensors that are there before the graph, several parts of one tensor, parts that some documents do not
write, parts that the loop reads behind the write, or those of other documents (each is refused).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from packpass.markers import is_of_capture
from packpass.semantics import Call, example, is_tensor, storage
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import written_inputs
from packpass.semantics.indexing import entries_of
from packpass.semantics.memory import overwritten
from passes.document_loops.boundaries import begins_of
from passes.ragged_grids.changed import dtype_made, plain_call
from passes.ragged_grids.documents import Documents
from passes.ragged_grids.machine import Machine
from passes.ragged_grids.places import slots_of
from passes.ragged_grids.row import Row
from passes.ragged_grids.rules_slots import are_ends, check_part, is_cut_by_numbers
from passes.ragged_grids.sizes import coordinates
from passes.ragged_grids.terms import Applied, Input, Moved, Term
from passes.ragged_grids.written import asks_sizes, is_new_in_graph, is_only_written, may_be_view, spread_over, value_of
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
    if part in machine.rows:
        return _is_changed_in_place(machine, part, value)
    if not is_new_in_graph(part.out):
        return False
    row = machine.term(part.out, node)
    dims = (*row.dims[: part.dim], length, *row.dims[part.dim + 1 :])
    made = value_of(machine, value, row, node)
    places = spread_over(machine, made, list(zip(coordinates(dims), dims, strict=True)), node)
    _note(machine, part, machine.moved((dims, made.dtype, made.device, made.grad), machine.read(made, places)), node)
    return True


def change_part(machine: Machine, node: fx.Node, call: Call, apply: Callable[[Machine, fx.Node, Call], None]) -> bool:
    """A change of all of a document's own slots, ``out[s:e] += value``; False if it is another call."""
    view: Any = node.args[0] if node.args else None
    place = _own_slots(machine, view) if isinstance(view, fx.Node) and _users(view) == [node] else None
    target = plain_call(node)
    if place is None or target is None or list(written_inputs(node)) != [view] or len(_users(node)) > 1:
        return False
    (part, _), before = place, machine.values[view]
    if part in machine.rows or not is_new_in_graph(part.out) or dtype_made(node, target) is not before.dtype:
        return False
    apply(machine, node, call)
    made = machine.values.pop(node)
    if not isinstance(made, Applied) or made.target != node.target or made.dims != before.dims:
        return False
    _note(machine, part, machine.keep(node, dataclasses.replace(made, target=target)), node)
    return True


def _is_changed_in_place(machine: Machine, part: Part, value: Any) -> bool:
    """Is what is written what the slots hold, as they were changed in place?"""
    changed = isinstance(value, fx.Node) and bool(written_inputs(value))
    return changed and machine.values.get(value) is machine.rows[part]


def _note(machine: Machine, part: Part, term: Term, node: fx.Node) -> None:
    """From this node on a document's slots hold a term. What it has read of them before is what was there in front of
    the loop."""
    machine.rows[part], length = term, term.dims[part.dim]
    for view in part.out.users:
        if view in machine.inside and is_tensor(view):
            if _is_inside(machine, view, part, length) and _is_seen_before(view, node):
                machine.own_views.add(view)


def _is_inside(machine: Machine, view: fx.Node, part: Part, length: Any) -> bool:
    """Has a view of a tensor no slots but the document's own?"""
    term = machine.values.get(view)
    if not isinstance(term, Moved) or not isinstance(term.read.of, Input) or term.read.of.node is not part.out:
        return False
    where = term.read.at[part.dim]
    at = sympy.expand(where - part.start) if isinstance(where, sympy.Basic) else None
    return any(at == own and size == length for own, size in zip(coordinates(term.dims), term.dims, strict=True))


def _is_seen_before(view: fx.Node, write: fx.Node) -> bool:
    """Does nobody look at a view, or at a view of it, behind a write?"""
    for user in _users(view):
        if user is write:
            continue
        if write < user or is_of_capture(user) or (may_be_view(user, view) and not _is_seen_before(user, write)):
            return False
    return True


def _users(view: fx.Node) -> list[fx.Node]:
    """Who looks at what a tensor holds, or changes it."""
    return [user for user in view.users if not asks_sizes(user)]


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
    if not is_only_written(view) or any(e not in (slice(None), ...) for e in index):
        return None
    return _own_slots(machine, view)


def _own_slots(machine: Machine, view: fx.Node) -> tuple[Part, Any] | None:
    """Of which tensor a view has all of the document's own slots, and how many; None of another view."""
    term = machine.values.get(view)
    if not isinstance(term, Moved) or not isinstance(term.read.of, Input):
        return None
    row, at, own = term.read.of, term.read.at, coordinates(term.dims)
    if storage(view) != storage(row.node) or len(at) != len(own):
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
