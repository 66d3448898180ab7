"""Slots of an outer row within a document, from one number on up to another: halves, a prompt and its reply, pairs.

::

    mid = (s + e) // 2; x[s:mid], x[mid:e]
    for i in range(0, n, 2): x[cu[i] : cu[i + 1]], x[cu[i + 1] : cu[i + 2]]      # one document of two parts

That they are within the document is shown by arithmetic, or known of boundaries that lie between its own.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from packpass.semantics.effects import mutated_after
from passes.document_loops import moved
from passes.document_loops.inequalities import at_most
from passes.document_loops.integers import FULL, Affine, Bound, Boundaries, Window
from passes.document_loops.machine import Machine, Segment, selection
from passes.document_loops.parts import OtherDocuments
from passes.refused import Refused


def inner(machine: Machine, outer: fx.Node, entries: list[Any], between: bool) -> tuple[Segment, Window] | None:
    """What ``outer[entries]`` is, if one slice goes from a number of the document to another, both within it.

    ``between``: by boundaries that lie between those of the documents, which this may be the first to name; else the
    documents are known, and arithmetic says it."""
    found = _cut(machine, entries)
    if found is None:
        return None
    at, low, high = found
    documents = _of_every(machine, low, high) if between else machine.boundaries
    if documents is None or (machine.boundaries is not None and machine.boundaries != documents):
        return None
    ends = _within(documents, low, high, sure=not between)
    if ends is None:
        return None
    machine.use(documents, outer)
    if between:
        length, message = moved.own_length(documents), "packpass: cu_seqlens falls between two parts of a document"
        for one, other in ((Affine(), ends[0]), ends, (ends[1], length)):
            if one != other:
                machine.require(one, "le", other, message)
    index, (dim,), rank = selection(entries, at)
    segment = machine.outer_segment(outer, index, dim, FULL, rank)
    return segment, Window(between=ends) if ends != (Affine(), moved.own_length(documents)) else FULL


def other_documents(machine: Machine, entries: list[Any], refused: Refused) -> Refused:
    """What is to be done about a part of an outer row that has no rule: it may lie within documents of boundaries."""
    found = _cut(machine, entries)
    bounds = [] if found is None else [bound for end in found[1:] for bound in end.bounds()]
    if found is None or len({bound.of for bound in bounds}) != 1 or machine.parts_of_documents:
        return refused
    documents = Boundaries(bounds[0].of.node), min(bound.k for bound in bounds)
    plain = not bounds[0].of.lengths and bounds[0].of.made is None and documents != machine.boundaries
    if not plain or documents[1] or _within(documents, *found[1:], sure=True) is None:
        return refused
    return OtherDocuments(refused, documents[0], parts=False)


def _cut(machine: Machine, entries: list[Any]) -> tuple[int, Affine, Affine] | None:
    """The dimension that is cut, and the two numbers of the document that cut it."""
    cuts = [d for d, e in enumerate(entries) if isinstance(e, slice) and isinstance(e.start, fx.Node)]
    rest = [e for d, e in enumerate(entries) if d not in cuts]
    if len(cuts) != 1 or any(isinstance(e, fx.Node) for e in rest):
        return None
    cut = entries[cuts[0]]
    low, high = (machine.affine(end) if isinstance(end, fx.Node) else None for end in (cut.start, cut.stop))
    others = [
        e for e in rest if isinstance(e, slice) and any(isinstance(p, fx.Node) for p in (e.start, e.stop, e.step))
    ]
    if low is None or high is None or low.is_shared or high.is_shared or others or cut.step not in (None, 1):
        return None
    return cuts[0], low, high


def _within(documents: tuple[Boundaries, int], low: Affine, high: Affine, sure: bool) -> tuple[Affine, Affine] | None:
    """Both counted from where the document begins; None if it is to be ``sure`` that they are in it, and is not."""
    start, length = Affine.of(Bound(*documents)), moved.own_length(documents)
    ends = low.plus(start, -1), high.plus(start, -1)
    order = ((Affine(), ends[0]), ends, (ends[1], length))
    return ends if not sure or all(at_most(*pair, length) for pair in order) else None


def _of_every(machine: Machine, low: Affine, high: Affine) -> tuple[Boundaries, int] | None:
    """The documents of several parts each, of which neighbouring boundaries cut one part; None for other numbers."""
    places = [_place(end.bound()) for end in (low, high)]
    if None in places:
        return None
    (root, step, first), (other, by, last) = places  # type: ignore[misc]
    if root is not other or step != by or not first < last:
        return None
    of = next((node for node in root.users if _every(node) == (root, step, 0)), None)
    k = first // step
    return (Boundaries(of), k) if of is not None and last <= step * (k + 1) else None


def _place(found: tuple[Bound, int] | None) -> tuple[fx.Node, int, int] | None:
    """``(vector, step, place)`` of an entry of ``vector[r::step]``: what it is ahead of ``step`` times the index."""
    every = None if found is None or found[1] or found[0].of.lengths else _every(found[0].of.node)
    return None if every is None or found is None else (every[0], every[1], every[2] + every[1] * found[0].k)


def _every(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """``(vector, step, r)`` of ``vector[r::step]``, if the vector still holds what it held there."""
    cut: Any = node.args[1] if node.target is operator.getitem and len(node.args) == 2 else None
    source: Any = node.args[0] if node.args else None
    if (
        not isinstance(cut, slice)
        or not isinstance(source, fx.Node)
        or type(cut.step) is not int
        or cut.stop is not None
    ):
        return None
    if cut.step < 2 or type(cut.start) is not int or not 0 <= cut.start < cut.step:
        return None
    changed = any(mutated_after(node.graph, n, node) for n in (source, node))
    return None if changed else (source, cut.step, cut.start)
