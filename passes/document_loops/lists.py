"""What is made of a list with an entry per document: cat, stack, pad_sequence."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example, storage
from packpass.semantics.build import fills, in_order
from packpass.semantics.effects import mutated_after
from packpass.semantics.memory import share_memory
from passes.document_loops import emit_documents
from passes.document_loops.emit import Emitter
from passes.document_loops.find import Decided
from passes.document_loops.parts import Pieces
from passes.document_loops.spaced import ROWS, Spaced, boundaries_of
from passes.document_loops.uneven import StridedRow, slots_of
from passes.document_loops.uneven_row import Uneven

_ops = torch.ops.packpass


def _joined(emitter: Emitter, decided: Decided, row: fx.Node, cat: fx.Node) -> fx.Node:
    """``torch.cat`` of the per-document tensors: the row between the first and the last boundary."""
    fake = example(row)
    dim = int(cat.args[1]) % fake.dim()  # type: ignore[arg-type]
    if decided.row_node is None:
        return row  # made for the documents alone
    for collect, value in decided.appended:
        if collect is cat.args[0] and isinstance(value, Pieces) and isinstance(value.term, (StridedRow, *ROWS)):
            return row
        if collect is cat.args[0] and isinstance(value, Pieces):
            times = emitter.call(operator.mul, emitter.cu, len(value.term.parts))
            return row if decided.covers_row else emitter.call(_ops.documents_only.default, row, times, dim)
    if decided.covers_row or statically_known_true(example(cat).shape[dim] == fake.shape[dim]):
        # Eager needs the documents to fill the row here, or fails.
        return row if _made_here(emitter, row) else emitter.call(torch.clone, row)
    return emitter.call(_ops.documents_only.default, row, emitter.cu, dim)


def _made_here(emitter: Emitter, row: fx.Node) -> bool:
    """Is a row in memory that nothing has but what this loop becomes?"""
    made, memory = set(emitter.made), storage(row)
    return row in made and not any(storage(node) == memory for node in emitter.graph.nodes if node not in made)


def _stacked(emitter: Emitter, decided: Decided, whole: fx.Node, stack: fx.Node) -> fx.Node:
    """``torch.stack`` of the documents' values."""
    out = emit_documents.only_documents(emitter, whole)
    dim = int(str(stack.args[1])) % example(whole).dim()
    return emitter.call(torch.movedim, out, 0, dim) if dim else out


def _side_by_side(emitter: Emitter, decided: Decided, whole: fx.Node, cat: fx.Node) -> fx.Node:
    """``torch.cat`` of the documents' values, which have an extent of their own along ``dim``."""
    out = emit_documents.only_documents(emitter, whole)
    dim = int(str(cat.args[1])) % (example(whole).dim() - 1)
    if dim:
        out = emitter.call(torch.movedim, out, 0, dim)
    # Else flatten asks whether N is 1, and what it makes of one document is a view.
    out = _in_order(emitter, out, tuple(range(example(out).dim())))
    return emitter.call(torch.flatten, out, dim, dim + 1)


def _padded(emitter: Emitter, decided: Decided, whole: fx.Node, pad: fx.Node) -> fx.Node:
    """``pad_sequence`` of the documents."""
    _, _, batch_first, number, side = pad.args
    parts = (value.term for collect, value in decided.appended if collect is pad.args[0] and isinstance(value, Pieces))
    cu = next((term.boundaries(emitter) for term in parts if isinstance(term, ROWS)), emitter.cu)
    out = emitter.call(_ops.segment_pad.default, whole, cu, 0, number, side == "left")
    return out if batch_first else emitter.call(torch.transpose, out, 0, 1)


def as_eager_lays_out(emitter: Emitter, made: fx.Node, use: fx.Node) -> fx.Node:
    """What is made of a list, with its dimensions in memory as eager has them: code behind it may ask for a view, and
    write to that. They are in their order, but where a list of images with the channels last is concatenated."""
    if use.target is markers.LIST_GET or use.target is markers.LIST_BOUNDARIES:
        return made
    order = tuple(range(example(made).dim()))
    part = markers.collected_in(use.args[0], 0)
    if use.target in (markers.RAGGED_CAT, markers.LIST_JOIN) and isinstance(part, fx.Node):
        order = _channels_last(example(part)) or order
    return _in_order(emitter, made, order)


def _channels_last(part: Any) -> tuple[int, ...] | None:
    """The order of the dimensions of such a tensor in memory; None for others. Sets no guard."""
    if not isinstance(part, torch.Tensor) or part.dim() not in (4, 5):
        return None
    order = (0, *range(2, part.dim()), 1)
    inner = [(order[k], order[k + 1]) for k in range(part.dim() - 1)]
    wider = all(statically_known_true(part.stride(a) >= part.stride(b) * part.shape[b]) for a, b in inner)
    return order if wider and not statically_known_true(part.stride(1) >= part.stride(part.dim() - 1)) else None


def _in_order(emitter: Emitter, node: fx.Node, order: tuple[int, ...]) -> fx.Node:
    if fills(example(node), order):
        return node
    if order == tuple(range(len(order))):
        return emitter.call(torch.clone, node, memory_format=torch.contiguous_format)
    return in_order(functools.partial(emitter.call, method=True), node, order)


def uneven_in(decided: Decided, collect: Any) -> Uneven | Spaced | None:
    """What a list holds, if that is documents that have become longer or shorter."""
    found = (value.term for other, value in decided.appended if collect is other and isinstance(value, Pieces))
    return next((term for term in found if isinstance(term, ROWS)), None)


def _looped_over(emitter: Emitter, decided: Decided, whole: fx.Node, get: fx.Node) -> fx.Node:
    """A later loop takes the documents from the list: it cuts them out of the row, by the same boundaries, or takes the
    document's entry. Of an entry that is taken by its number, only that is looked at which the row has as well."""
    if isinstance(get.args[1], int):
        return whole
    found = (slots_of(value) for collect, value in decided.appended if collect is get.args[0])
    dims = [slots[1] for slots in found if slots is not None]
    if not dims:
        entry = emitter.graph.call_function(torch.select, (whole, 0, get.args[1]))
        entry.meta["example_value"] = example(get)
        share_memory(example(get), example(whole))
        return entry
    (dim,) = dims
    given, uneven = decided.boundaries, uneven_in(decided, get.args[0])
    keep = not given.lengths and decided.fit is None
    keep = keep and not mutated_after(emitter.graph, given.node, emitter.before)
    cu = given.node if keep else emitter.cu
    cu = cu if uneven is None else boundaries_of(emitter, uneven)
    segment = emitter.graph.call_function(markers.SEGMENT, (whole, cu, get.args[1], dim % example(whole).dim()))
    segment.meta["example_value"] = example(get)
    share_memory(example(get), example(whole))
    return segment


def _diagonal(emitter: Emitter, decided: Decided, whole: fx.Node, diagonal: fx.Node) -> fx.Node:
    """``block_diag`` of the documents' squares."""
    if decided.row_node is None:
        return whole  # made for the documents alone
    inside = emitter.call(_ops.documents_only.default, whole, emitter.cu, 0)
    return emitter.call(_ops.documents_only.default, inside, emitter.cu, 1)


def _boundaries(emitter: Emitter, decided: Decided, whole: fx.Node, boundaries: fx.Node) -> fx.Node:
    """Where each document begins and ends in the row that they are together."""
    uneven = uneven_in(decided, boundaries.args[0])
    if uneven is not None:
        return boundaries_of(emitter, uneven)
    cu = emitter.call("to", emitter.cu, torch.int64, method=True)
    return emitter.call(torch.sub, cu, emitter.call(operator.getitem, cu, slice(0, 1)))


MADE_OF_LISTS: dict[Any, Callable[[Emitter, Decided, fx.Node, fx.Node], fx.Node]] = {
    markers.RAGGED_CAT: _joined,
    markers.LIST_STACK: _stacked,
    markers.LIST_JOIN: _side_by_side,
    markers.LIST_PAD: _padded,
    markers.LIST_DIAGONAL: _diagonal,
    markers.LIST_BOUNDARIES: _boundaries,
    markers.LIST_GET: _looped_over,
}


def as_they_were_made(graph: fx.Graph) -> None:
    """For loops that stay: what an earlier loop had computed for each document was a tensor of its own.

    A part of the row that all are now is none where the slots are not the first dimension, and the code may ask for a
    view of it.
    """
    for node in list(graph.find_nodes(op="call_function", target=markers.SEGMENT)):
        x, dim = node.args[0], node.args[3]
        if not dim or not x.meta.get("packpass") or mutated_after(graph, node, node.next):
            continue
        with graph.inserting_after(node):
            own = graph.call_method("contiguous", (node,))
        own.meta.update(node.meta)
        node.replace_all_uses_with(own, lambda user, own=own: user is not own)
