"""Parts of a mask that documents set beside their squares: rows behind a number of theirs, columns in front of one.

::

    for end in ends:
        mask[..., end:, :end] = 0                            # `Crossed`: what comes behind sees nothing in front
    for start, end in spans:
        mask[start:end, :end] = True                         # `Strip`: a document sees itself, and all in front

A slot is set if any document reaches it. Of the first kind that is so, in each row, up to the furthest column of those
that begin above: a running maximum. Of the second, each row has the columns of its own document.

Does not handle: other values than one number, the same for all documents; parts of the first kind that are set to
different numbers, of which the last document's would count.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.blocks import taken_square
from passes.document_loops.emit_documents import extent_of, place_of, reached_slots, vector_of
from passes.document_loops.integers import FULL, Affine, Reach
from passes.document_loops.machine import Machine, Store
from passes.document_loops.terms import DocVector, Spread, Term
from passes.document_loops.whole import (
    Part,
    Whole,
    largest_so_far,
    number_of,
    part_of_outer,
    places,
    write,
)
from passes.document_loops.windows import window_of
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class Crossed(Term):
    """``base``, with ``number`` in the rows (``dim``) from ``begin`` on and the ``columns`` in front of ``end``, for
    every document of ``reach``."""

    base: Term
    begin: Affine
    end: Affine
    number: Any
    reach: Reach
    dim: int
    columns: int

    def emit(self, emitter: Emitter) -> fx.Node:
        x = emitter.node(self.base)
        device = example(x).device
        rows, width = (extent_of(emitter, x, dim) for dim in (self.dim, self.columns))
        at = places(emitter, self.begin, rows, self.reach, device)
        ends = emitter.on(place_of(emitter, vector_of(emitter, self.end, torch.int64), width), device)
        furthest = emitter.along(largest_so_far(emitter, at, ends, rows), self.dim)
        columns = emitter.along(emitter.call(torch.arange, width, device=device), self.columns)
        inside = emitter.call(operator.lt, columns, furthest)
        return emitter.call(torch.where, inside, emitter.fitted(self.number, x), x)


@dataclasses.dataclass(frozen=True, eq=False)
class Strip(Term):
    """``base``, with ``number`` in the rows (``dim``) of every document of ``reach``, and the ``columns`` from
    ``begin`` to ``end`` (None: all to that side)."""

    base: Term
    begin: Affine | None
    end: Affine | None
    number: Any
    reach: Reach
    dim: int
    columns: int

    def emit(self, emitter: Emitter) -> fx.Node:
        x = emitter.node(self.base)
        device = example(x).device
        width = extent_of(emitter, x, self.columns)
        columns = emitter.along(emitter.call(torch.arange, width, device=device), self.columns)
        held = [emitter.along(emitter.on(emitter.mask(FULL), device), self.dim)]
        for bound, compared in ((self.begin, operator.ge), (self.end, operator.lt)):
            if bound is not None:
                edge = emitter.node(Spread(DocVector(bound, torch.int64), 0, -1))
                edge = emitter.along(emitter.on(place_of(emitter, edge, width), device), self.dim)
                held.append(emitter.call(compared, columns, edge))
        if self.reach:
            held.append(emitter.along(emitter.on(reached_slots(emitter, self.reach), device), self.dim))
        inside = functools.reduce(lambda one, other: emitter.call(torch.logical_and, one, other), held)
        return emitter.call(torch.where, inside, emitter.fitted(self.number, x), x)


def write_part_of_mask(machine: Machine, node: fx.Node, base: fx.Node, index: Any, value: Any) -> bool:
    """Note ``base[index] = value`` if it is such a part of a mask; False if it is something else."""
    number = value.const if isinstance(value, Affine) and value.is_const else value
    part = part_of_outer(machine, base, index, node, dims=2)
    if part is None or type(number) not in (bool, int, float):
        return False
    return _crossed(machine, part, number, node) or _strip(machine, part, number, node)


def _crossed(machine: Machine, part: Part, number: Any, node: fx.Node) -> bool:
    cuts = part.slices()
    rows = [i for i, cut in enumerate(cuts) if cut.stop is None]
    columns = [i for i, cut in enumerate(cuts) if cut.start in (None, 0)]
    if len(rows) != 1 or columns != [1 - rows[0]]:
        return False
    begin, end = number_of(machine, cuts[rows[0]].start), number_of(machine, cuts[columns[0]].stop)
    if begin is None or end is None:
        return False
    store = part.store(machine)
    whole = _whole_of(store.term)
    if isinstance(store.term, Crossed) and not _same(store.term.number, number):
        raise Refused("two-packed-dims", "parts of a mask that overlap are set to different numbers", node)
    assert whole.columns is not None
    dim, across = (whole.dim, whole.columns) if rows == [0] else (whole.columns, whole.dim)
    write(machine, store, machine.intern(Crossed(store.term, begin, end, number, machine.reach, dim, across)))
    return True


def _strip(machine: Machine, part: Part, number: Any, node: fx.Node) -> bool:
    """The rows are those of the document, the columns others."""
    before = machine.state()
    for rows in (0, 1):
        own, other = part.slices()[rows], part.slices()[1 - rows]
        begin, end = number_of(machine, other.start), number_of(machine, other.stop)
        if (begin is None) != (other.start in (None, 0)) or (end is None) != (other.stop is None):
            continue
        square = (begin, end) == (number_of(machine, own.start), number_of(machine, own.stop))
        if square and not machine.reach.misses_slots and not part.is_written(machine):
            return False  # `blocks` has squares, as long as nothing is written beside them
        try:
            window = window_of(machine, own.start, own.stop, node)
        except Refused:
            machine.restore(before)
            continue
        if window != FULL or (machine.boundaries is not None and machine.boundaries[0].made is not None):
            machine.restore(before)
            continue
        ordered = Part(part.outer, part.entries, [part.cuts[rows], part.cuts[1 - rows]])
        squares = taken_square(machine, ordered.outer, ordered.entries, ordered.cuts)
        store = ordered.store(machine, by_documents=True)
        if squares is not None:  # what is beside them lies in the same rows
            bounds = number_of(machine, own.start), number_of(machine, own.stop)
            _add_strip(machine, store, *bounds, squares, Reach())
        _add_strip(machine, store, begin, end, number, machine.reach)
        return True
    return False


def _add_strip(
    machine: Machine, store: Store, begin: Affine | None, end: Affine | None, number: Any, reach: Reach
) -> None:
    whole = _whole_of(store.term)
    assert whole.columns is not None
    strip = Strip(store.term, begin, end, number, reach, whole.dim, whole.columns)
    write(machine, store, machine.intern(strip))


def _whole_of(term: Any) -> Whole:
    """The tensor itself, before anything was written to it."""
    while not isinstance(term, Whole):
        term = term.base
    return term


def _same(number: Any, other: Any) -> bool:
    return type(number) is type(other) and bool(number == other)
