"""Rules for lookups by a segment's numbers, and for losses with one value per slot.

Numbers that index are 0 in slots that nobody asked for (tails, other windows): what is stored there may be out of range
for the table, and whole rows must not raise for it. Numbers inside a document are left as they are, so that what raises
in eager still raises.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import argument, call_of, example, meaning_of
from packpass.semantics.losses import PAIRED, reduction_of
from passes.document_loops.documents import as_term, spread
from passes.document_loops.elsewhere import size_of
from passes.document_loops.integers import FULL, Affine, Bound, Check, Index
from passes.document_loops.machine import Document, Machine, Segment, Slot, frozen_args
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import outside_call, tokenwise
from passes.document_loops.rules_tokenwise import (
    exactly,
    known_keywords,
    only_outside,
    operand,
    segments,
    slot_by_slot,
    whole_row,
)
from passes.document_loops.terms import Apply, DocVector, Outside, Positions
from passes.refused import Refused

_INDEX_DTYPES = (torch.int32, torch.int64)


def _segment_of(machine: Machine, arg: Any) -> Segment | None:
    value = machine.value(arg) if isinstance(arg, fx.Node) else None
    return value if isinstance(value, Segment) else None


def _outside_of(machine: Machine, arg: Any) -> Outside | None:
    value = machine.value(arg) if isinstance(arg, fx.Node) else None
    return value if isinstance(value, Outside) else None


@tokenwise("embedding")
def _embedding(machine: Machine, node: fx.Node) -> Any:
    ids, weight = argument(node, 0, "input"), argument(node, 1, "weight")
    segment = _segment_of(machine, ids)
    known_keywords(node, "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    if argument(node, 3, "max_norm") is not None:
        raise Refused("no-rule", "embedding with max_norm changes its weight, once per document", node)
    if segment is None:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    if argument(node, 5, "scale_grad_by_freq", False) or argument(node, 6, "sparse", False):
        raise Refused("no-rule", "embedding with scale_grad_by_freq or sparse gradients has no rule", node)
    if _outside_of(machine, weight) is None:
        return NotImplemented
    return whole_row(machine, node, segment, segment.dim - 1, indices=(ids,))


@tokenwise("one_hot")
def _one_hot(machine: Machine, node: fx.Node) -> Any:
    segment, classes = _segment_of(machine, node.args[0]), argument(node, 1, "num_classes", -1)
    if segment is None:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    if type(classes) is not int or classes < 1:
        raise Refused("no-rule", "one_hot without a constant num_classes depends on the values", node)
    known_keywords(node, "num_classes")
    return whole_row(machine, node, segment, segment.dim - 1, indices=(node.args[0],))


@tokenwise("gather", "take_along_dim")
def _gather(machine: Machine, node: fx.Node) -> Any:
    """Every slot picks among its own entries along another dimension."""
    call = call_of(node)
    if call is None:
        return NotImplemented
    dim, index = call.get("dim"), call.get("index", "indices")
    segment, picked = _segment_of(machine, call.get("input")), _segment_of(machine, index)
    if segment is None and picked is None:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    if segment is None or type(dim) is not int or call.get("sparse_grad"):
        return NotImplemented
    if dim % segment.rank == segment.rank + segment.dim:
        return NotImplemented
    if picked is None:  # one choice for all slots
        if call.op == "gather" or _outside_of(machine, index) is None:
            return NotImplemented
        machine.broadcasts(machine.value(index), segment.dim, node)
        return whole_row(machine, node, segment, segment.dim, linear=True)
    if picked.dim != segment.dim or picked.rank != segment.rank:
        raise Refused("dim-mismatch", f"{label(node)} by a segment along another dimension", node)
    result = whole_row(machine, node, segment, segment.dim, linear=True, indices=(index,))
    return exactly(result, [segment, picked])


@tokenwise("index_select")
def _index_select(machine: Machine, node: fx.Node) -> Any:
    source, dim, index = argument(node, 0, "input"), argument(node, 1, "dim"), argument(node, 2, "index")
    segment, picked = _segment_of(machine, source), _segment_of(machine, index)
    known_keywords(node, "dim", "index")
    if segment is not None and _outside_of(machine, index) is not None and type(dim) is int:
        if dim % segment.rank == segment.rank + segment.dim:
            return NotImplemented
        return whole_row(machine, node, segment, segment.dim, linear=True)
    if picked is not None and _outside_of(machine, source) is not None and type(dim) is int and picked.rank == 1:
        rank = example(source).dim()
        return whole_row(machine, node, picked, dim % rank - rank, indices=(index,))
    return outside_call(machine, node) if only_outside(machine, node) else NotImplemented


@tokenwise("bucketize", "searchsorted")
def _bucketize(machine: Machine, node: fx.Node) -> Any:
    """Where each number of a segment falls in one list of bounds from outside."""
    if len(node.args) != 2:
        return NotImplemented
    values, bounds = node.args if name_of(node) == "bucketize" else node.args[::-1]
    segment = _segment_of(machine, values)
    if segment is None or _outside_of(machine, bounds) is None or example(bounds).dim() != 1:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    known_keywords(node, "right", "out_int32")
    return whole_row(machine, node, segment, segment.dim)


# === Tables ==================================================================================================


def table_lookup(machine: Machine, node: fx.Node) -> Any:
    """``table[segment]``, ``table[:, segment]``, ``segment[:, table]``, ``segment[arange(L), segment]`` and
    ``table[:L]``; NotImplemented for any other index."""
    base, index = node.args
    source = machine.value(base)
    if not isinstance(source, (Segment, Outside)) or node.kwargs:
        return NotImplemented
    entries = list(index) if isinstance(index, tuple) else [index]
    tensors = [e for e in entries if isinstance(e, fx.Node) and isinstance(example(e), torch.Tensor)]
    tensors = [e for e in tensors if isinstance(machine.value(e), (Segment, Outside))]
    if any(example(e).dtype not in _INDEX_DTYPES for e in tensors):
        return NotImplemented
    if isinstance(source, Outside):
        if len(tensors) == 1 and isinstance(machine.value(tensors[0]), Segment):
            return _rows_of_table(machine, node, entries, tensors[0])
        return _first_rows(machine, node, source, entries) if not tensors else NotImplemented
    if len(tensors) == 1 and isinstance(machine.value(tensors[0]), Outside):
        return _columns(machine, node, source, entries, tensors[0])
    if len(tensors) == 2 and len(entries) == 2:
        return _pick(machine, node, source, entries)
    return NotImplemented


def _plain(entry: Any) -> bool:
    """A slice that is the same for every document, or an ellipsis."""
    if entry is Ellipsis:
        return True
    return isinstance(entry, slice) and all(p is None or type(p) is int for p in (entry.start, entry.stop, entry.step))


def _located(entries: list[Any], tensor: Any, rank: int) -> tuple[int, int] | None:
    """``(dimension that the entry "tensor" indexes, number of result dimensions behind it)``, the former negative;
    None if the other entries are more than slices, None and an ellipsis."""
    at = next(i for i, e in enumerate(entries) if e is tensor)
    others = [e for i, e in enumerate(entries) if i != at]
    dots = [i for i, e in enumerate(entries) if e is Ellipsis]
    if not all(e is None or _plain(e) for e in others) or len(dots) > 1:
        return None
    behind = [e for e in entries[at + 1 :] if e is not Ellipsis]
    hidden = rank - sum(e is not None and e is not Ellipsis for e in entries)
    unsaid = 0 if dots and dots[0] < at else hidden
    return -1 - unsaid - sum(e is not None for e in behind), len(behind) + unsaid


def _rows_of_table(machine: Machine, node: fx.Node, entries: list[Any], tensor: fx.Node) -> Any:
    segment, found = machine.value(tensor), _located(entries, tensor, example(node.args[0]).dim())
    if found is None:
        return NotImplemented
    return whole_row(machine, node, segment, segment.dim - found[1], indices=(tensor,))


def _columns(machine: Machine, node: fx.Node, source: Segment, entries: list[Any], tensor: fx.Node) -> Any:
    """``segment[:, table]``: every slot takes the same entries of its own."""
    found = _located(entries, tensor, source.rank)
    if (
        found is None
        or found[0] == source.dim
        or any(e is None or (isinstance(e, slice) and e != slice(None)) for e in entries)
    ):
        return NotImplemented
    added = example(tensor).dim() - 1
    return whole_row(machine, node, source, source.dim - (added if found[0] > source.dim else 0), linear=True)


def _pick(machine: Machine, node: fx.Node, source: Segment, entries: list[Any]) -> Any:
    """``segment[arange(L), ids]``: every slot picks one of its own entries, as ``row[arange(T), ids]``."""
    rows, ids = (_segment_of(machine, e) for e in entries)
    if rows is None or ids is None or (source.rank, source.dim, rows.rank, ids.rank) != (2, -2, 1, 1):
        return NotImplemented
    counted = rows.store.term
    if not isinstance(counted, Positions) or not counted.per_document or counted.start:
        return NotImplemented
    if not (source.window == rows.window == ids.window == FULL):
        return NotImplemented
    slots = machine.intern(Positions(False, 0, torch.int64, counted.device, gathered=True))
    index = (slots, operand(machine, entries[1], FULL, node, 0))
    term = Apply(operator.getitem, False, (machine.read(source, node), index), (), -1)
    return exactly(machine.fresh(term, 1), [source, rows, ids])


def picked_by_slots(machine: Machine, node: fx.Node) -> Any:
    """``table[i][places[s:e]]``: every slot takes an entry of its document's row; None if it is something else."""
    entries: tuple[Any, ...] = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    row, picks = node.args[0], entries[0] if entries else None
    if not isinstance(row, fx.Node) or not isinstance(picks, fx.Node) or any(e != slice(None) for e in entries[1:]):
        return None
    value, places, fake = machine.value(row), machine.value(picks), example(picks)
    if not isinstance(value, (Document, Slot)) or not isinstance(places, Segment) or places.rank != 1:
        return None
    if fake.dtype not in (torch.int64, torch.int32):
        return None
    number = machine.intern(DocVector(Affine.of(Index()), torch.int64))
    index = (spread(machine, number, (), -1, node), operand(machine, picks, places.window, node, 0))
    rank = example(node).dim()
    term = Apply(operator.getitem, False, (as_term(machine, row, node), index), (), -rank)
    return machine.fresh(machine.intern(term), rank, places.window, least=places.store.least)


def _first_rows(machine: Machine, node: fx.Node, source: Outside, entries: list[Any]) -> Any:
    """``table[:L]``: row ``j`` for slot ``j`` of every document. The table must be long enough."""
    cut = next((e for e in entries if isinstance(e, slice) and isinstance(e.stop, fx.Node)), None)
    if cut is None or cut.start not in (None, 0) or cut.step not in (None, 1):
        return NotImplemented
    length, found = machine.affine(cut.stop), _located(entries, cut, example(node.args[0]).dim())
    if length is None or found is None:
        return NotImplemented
    at = next(i for i, e in enumerate(entries) if e is cut)
    before, after = (tuple(frozen_args(e) for e in part) for part in (entries[:at], entries[at + 1 :]))
    return first_rows(machine, node, source, length, found, before, after)


def first_rows(
    machine: Machine,
    node: fx.Node,
    source: Outside,
    length: Affine,
    where: tuple[int, int],
    before: tuple[Any, ...],
    after: tuple[Any, ...] = (),
) -> Any:
    """The first ``length`` rows of ``source``, for every document; ``before`` and ``after`` index other dimensions."""
    found, fake = length.length_of(), machine.fake(source)
    rows = fake.shape[where[0]]
    if found is None or found[1] or statically_known_true(rows == 1):
        return NotImplemented  # one row is broadcast to any document, however long
    limit = size_of(rows, node)
    if limit is None:
        raise Refused("check", "the length of a table that documents look up has no name in the graph", node)
    machine.use((found[0], min((a.k for a, _ in length.atoms if isinstance(a, Bound)), default=0)), node)
    message = "packpass: a table is shorter than a document that takes its first rows"
    check = Check(length, "le", limit, message, machine.reach)
    if check not in machine.checks:
        machine.checks.append(check)
    positions = machine.intern(Positions(True, 0, torch.int64, fake.device))
    numbers = machine.guard(positions, FULL, -1, 0)
    term = machine.intern(Apply(operator.getitem, False, (source, (*before, numbers, *after)), (), -1 - where[1]))
    # A view of the table, which all documents would see change.
    return machine.view(term, example(node).dim(), machine.fresh(term, example(node).dim()))


# === Losses ==================================================================================================


def _per_slot(machine: Machine, node: fx.Node) -> bool:
    """Is it a loss of segments with one value per slot?"""
    return bool(segments(machine, node)) and reduction_of(call_of(node)) == "none"


@tokenwise(*PAIRED)
def _paired_loss(machine: Machine, node: fx.Node) -> Any:
    """Some raise for an input or a target that is no probability, hence a fill even without gradients."""
    if not _per_slot(machine, node):
        return NotImplemented
    means = meaning_of(call_of(node))
    return slot_by_slot(machine, node, fill=1 if means is None or means.traits.raises else None)


@tokenwise("cross_entropy", "nll_loss")
def _cross_entropy(machine: Machine, node: fx.Node) -> Any:
    if not _per_slot(machine, node):
        return NotImplemented
    found = segments(machine, node)
    scores, target = argument(node, 0, "input"), argument(node, 1, "target")
    segment, wanted = _segment_of(machine, scores), _segment_of(machine, target)
    if segment is None or wanted is None or len(found) != 2:
        raise Refused("no-rule", f"{label(node)} of a segment against a whole tensor has no rule", node)
    packed = segment.rank + segment.dim
    if segment.rank < 2 or packed == 1:  # dimension 1 is that of the classes
        return NotImplemented
    indices = not example(target).is_floating_point()
    expected = segment.dim + (1 if indices and packed == 0 else 0)
    if wanted.dim != expected or wanted.rank != segment.rank - (1 if indices else 0):
        raise Refused("dim-mismatch", f"{label(node)} of segments along different dimensions", node)
    dim = segment.dim + (1 if packed == 0 else 0)
    result = whole_row(machine, node, segment, dim, indices=(target,) if indices else ())
    return exactly(result, found)
