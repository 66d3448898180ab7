"""The rewrite of a loop over rows of sizes that was decided on."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from passes.nodes import put_instead
from passes.prune import prune
from passes.ragged_grids.decide import Decided, as_one, is_among, may_be_nothing, row_of
from passes.ragged_grids.documents import Documents
from passes.ragged_grids.places import ALL, Slots, slots_of
from passes.ragged_grids.row import KeptSlots, Row
from passes.ragged_grids.terms import Input, Piece, Selected, walk
from passes.ragged_grids.written import put_in
from passes.ragged_grids.written_parts import Part, put_parts
from passes.refused import Refused

_ops = torch.ops.packpass
_LENGTH, _OWNERS = _ops.covered_length.default, _ops.segment_ids.default
_CHECKS = (_ops.check_documents.default, torch._assert_async)


def rewrite(graph: fx.Graph, decided: Decided, rule: str) -> dict[str, Any]:
    """Emit the new nodes in front of the loop, then remove it; raises `Refused` with nothing changed."""
    begin, like = decided.loop.iterations[0][0], _like(decided)
    moved = [(node, node.prev) for node in decided.hoisted]
    for node in decided.hoisted:
        begin.prepend(node)
    documents = Documents(graph, decided.names, decided.documents, like, rule)
    try:
        with graph.inserting_before(begin):
            made = _emitted(documents, decided)
    except Refused:
        documents.abandon()
        for node, before in reversed(moved):
            before.append(node)
        raise
    _totals_first(documents.made)
    for node in decided.dead:
        graph.erase_node(node)
    for cat, row in made.items():
        put_instead(cat, row)
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            if key in cat.meta:
                row.meta.setdefault(key, cat.meta[key])
        graph.erase_node(cat)
    _remove(graph, decided)
    columns = dict.fromkeys(column.node.name for column in decided.names.columns.values())
    return {"source": "loop", "sizes": list(columns), "lists": len(decided.appended), "written": len(decided.written)}


def _like(decided: Decided) -> fx.Node:
    """A tensor on the device on which the documents are worked on."""
    columns = [column.node for column in decided.names.columns.values()]
    parts = walk(*decided.terms)
    found = next(iter(columns), None) or next((part.node for part in parts if isinstance(part, (Input, Piece))), None)
    if found is None:
        raise Refused("no-segments", "the loop reads no tensor")
    return found


def _emitted(documents: Documents, decided: Decided) -> dict[fx.Node, fx.Node]:
    """The concatenated rows, by what concatenates them in the graph."""
    slots, kept = documents.slots, decided.names.kept
    for name, holds in decided.names.ways.items():
        documents.note(name, documents.call("to", documents.truth(holds), torch.int64, method=True))
    later = [check for check in decided.checks if check.about & kept.keys()]
    for check in decided.checks:
        if check not in later:
            documents.check(check)
    _check_splits(documents, decided)
    parts = list(walk(*decided.terms))
    used = {name for part in parts for size in part.dims for name in size.free_symbols}
    used.update(*(check.about for check in later))
    for name in (name for name in kept if name in used):
        slots[name, ALL] = KeptSlots(documents, name, kept[name])
    for check in later:
        documents.check(check)
    made = {}
    for collect, term in decided.appended:
        for user in collect.users:
            joined = row_of(user, term)
            if joined is not None:
                if term.device != documents.device:
                    raise Refused("no-rule", "a document's tensors are on another device than its sizes", user)
                each, dim = joined
                if isinstance(term, Selected) and may_be_nothing(term) and not is_among(user):
                    some = documents.call(torch.sum, documents.full(sympy.expand(sympy.Add(*term.names))))
                    holds = documents.call(operator.gt, some, 0)
                    documents.call(torch._assert_async, holds, "packpass: expected a non-empty list of tensors")
                own = slots_of(documents, each.dims[dim])
                if user.target is markers.LIST_BOUNDARIES:
                    made[user] = own.cu
                    continue
                made[user] = Row(documents, own, each, dim).made()
                if user.target is markers.LIST_PAD:
                    made[user] = _below_each_other(documents, own, made[user], user)
                if collect.target is markers.LIST_CONTINUE:
                    made[user] = _counted_on(documents, own, made[user], int(str(collect.args[5])))
    for rows, term in decided.written:
        if isinstance(rows, Part):
            put_parts(documents, rows, term)
            continue
        each = as_one(term, 0)
        row = Row(documents, slots_of(documents, each.dims[0]), each, 0).made()
        put_in(documents, decided.documents, rows, row)
    return made


def _totals_first(made: list[fx.Node]) -> None:
    """Numbers of slots that do not depend on others, and whose each slot is, are worked out in front of all that is
    done with slots: the host reads the former, and torch has kernels of its own for both, so that what lies between
    two of them is compiled by itself. What is checked of sizes stays in front of them."""
    late: set[fx.Node] = set()
    needed: set[fx.Node] = set()
    for node in made:
        if any(n in late or n.target is _LENGTH for n in node.all_input_nodes):
            late.add(node)
    for node in reversed(made):
        first_of_all = node.target is _LENGTH or node.target in _CHECKS
        if node not in late and (first_of_all or not needed.isdisjoint(node.users)):
            needed.add(node)
    owners = [node for node in made if node.target is _OWNERS and needed.issuperset(node.all_input_nodes)]
    front = [*(node for node in made if node in needed), *owners]
    first = next((node for node in made if node not in needed and node not in owners), None)
    for node in front if first is not None else ():
        first.prepend(node)  # type: ignore[union-attr]


def _counted_on(documents: Documents, slots: Slots, row: fx.Node, start: int) -> fx.Node:
    """Every document's numbers plus the last one of the documents before, which is ``start`` for the first. A document
    without numbers leaves the last as it is."""
    call = documents.call
    ends = call(operator.getitem, slots.cu, slice(1, None))
    some = call(operator.gt, call(torch.diff, slots.cu), 0)
    with_zero = call(torch.cat, (call("new_zeros", row, (1,), method=True), row))
    lasts = call(torch.index_select, with_zero, 0, call(torch.where, some, ends, 0))
    before = call(torch.add, call(torch.sub, call(torch.cumsum, lasts, 0), lasts), start)
    of_slots = call(torch.index_select, before, 0, slots.ids)
    return call(torch.add, row, call("to", of_slots, example(row).dtype, method=True))


def _below_each_other(documents: Documents, slots: Slots, row: fx.Node, pad: fx.Node) -> fx.Node:
    """``pad_sequence`` of the documents."""
    _, _, batch_first, number, side = pad.args
    made = documents.call(_ops.segment_pad.default, row, slots.cu, 0, number, side == "left")
    return made if batch_first else documents.call(torch.transpose, made, 0, 1)


def _check_splits(documents: Documents, decided: Decided) -> None:
    """A split by lengths takes all there is."""
    for piece in dict.fromkeys(p for p in walk(*decided.terms) if isinstance(p, Piece)):
        size = documents.call(torch.ops.aten.sym_size.int, piece.node, piece.dim)
        total = documents.call(torch.sum, documents.full(piece.length))
        fits = documents.call(torch.eq, total, size)
        message = f"packpass: the lengths of a split do not add up to dimension {piece.dim} of '{piece.node.name}'"
        documents.call(torch._assert_async, fits, message)
        if example(piece.node).device != documents.device:
            raise Refused("no-rule", "a document's tensors are on another device than its sizes", piece.node)


def _remove(graph: fx.Graph, decided: Decided) -> None:
    nodes = (decided.loop.nodes - set(decided.hoisted)) | set(decided.loop.collects)
    inputs = [n for node in nodes for n in node.all_input_nodes if n not in nodes]
    for node in reversed(list(graph.nodes)):
        if node in nodes:
            graph.erase_node(node)
    prune(graph, inputs)
