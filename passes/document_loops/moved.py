"""Slots of a document that meet others of it: the scores of a reply, one slot before its tokens.

::

    scores[-n - 1 : -1].gather(1, ids[-n:, None])
    d[a:b] - d[c:]

Both are parts of one document, by numbers of its own. They meet on a window of as many slots as torch makes of the two
lengths, and what lies elsewhere is gathered to it; one slot alone meets all of the other's.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import TYPE_CHECKING

import torch
from torch import fx

from passes.document_loops.emit_documents import vector_of
from passes.document_loops.inequalities import at_most
from passes.document_loops.integers import FULL, Affine, Bound, Boundaries, Derived, Window, broadcast
from passes.document_loops.terms import Term

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passes.document_loops.emit import Emitter
    from passes.document_loops.machine import Machine, Segment

_ops = torch.ops.packpass

Ends = tuple[Affine, Affine]
"""Where slots of a document begin and end, counted from its start."""


@dataclasses.dataclass(frozen=True, eq=False)
class Moved(Term):
    """The slots ``source`` of every document on those of ``target``; one alone on each of them."""

    of: Term
    source: Ends
    target: Ends
    dim: int

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, gathered at once."""
        start, slots = self.source[0], count(self.source)

        def numbers(value: Affine) -> fx.Node:
            return vector_of(emitter, value, torch.int64)

        first = emitter.call(torch.add, emitter.cu, numbers(start))
        begins = emitter.call(torch.add, emitter.cu, numbers(start.plus(self.target[0], -1)))
        places = emitter.call(_ops.segment_places.default, emitter.cu, begins, emitter.total)

        def spread(numbers: fx.Node) -> fx.Node:
            return emitter.call(_ops.segment_spread.default, numbers, emitter.cu, emitter.total)

        alone = emitter.call(operator.eq, spread(numbers(slots)), 1)
        places = emitter.call(torch.where, alone, spread(first), places)
        places = emitter.call(torch.where, emitter.mask(Window(between=self.target)), places, -1)
        made: fx.Node = emitter.call(_ops.gather_places.default, emitter.node(self.of), places, self.dim)
        return made


def own_length(documents: tuple[Boundaries, int]) -> Affine:
    """Slots of the iteration's document."""
    of, k = documents
    if of.lengths and of.made is None:
        return Affine.of(Bound(Boundaries(of.node), k))
    return Affine.of(Bound(of, k + 1)).plus(Affine.of(Bound(of, k)), -1)


def ends_of(documents: tuple[Boundaries, int], window: Window) -> Ends:
    """Where a window begins and ends, in documents of any length."""
    length = own_length(documents)
    if window.between is not None:
        return window.between
    if window == FULL:
        return Affine(), length
    if window.plain:
        start = Affine.of(window.front)
        rest = length.plus(Affine.of(window.front + window.back), -1)
        return start, start.plus(Affine.of(Derived(max, (Affine(), rest))))
    count = window.first if window.first is not None else window.last
    shorter = Affine.of(Derived(min, (Affine.of(count or 0), length)))
    start = Affine() if window.first is not None else length.plus(shorter, -1)
    return start, start.plus(shorter)


def count(ends: Ends) -> Affine:
    """How many slots there are between two ends."""
    return ends[1].plus(ends[0], -1)


def first_slots(machine: Machine, value: Affine | None) -> Window | None:
    """A number of the document, of which it is certain that it has so many slots, as the first of these."""
    if value is None or value.is_shared or machine.boundaries is None:
        return None
    length = own_length(machine.boundaries)
    fits = value != length and at_most(Affine(), value, length) and at_most(value, length, length)
    return Window(between=(Affine(), value)) if fits else None


def meets(machine: Machine, segments: Sequence[Segment]) -> bool:
    """Do slots between numbers of a document meet others of it?"""
    windows = [segment.window for segment in segments]
    known = machine.boundaries is not None and all(segment.store.exact for segment in segments)
    return known and any(window.between is not None for window in windows) and len(set(windows)) > 1


def together(segments: Sequence[Segment]) -> int:
    """The slots that a call slot by slot has at least, where its operands have those: one slot goes with none, too."""
    least = {segment.store.least for segment in segments}
    return max(least) if least != {0, 1} else 0


def common_window(machine: Machine, segments: Sequence[Segment]) -> Window:
    """The slots on which the result of a call slot by slot stands: those of an operand that is no single slot; of
    operands that may be of several lengths, as many as torch makes of them."""
    if not meets(machine, segments):
        return next((s.window for s in segments if s.window.plain), segments[0].window)
    counts = [count(ends_of(machine.boundaries, segment.window)) for segment in segments]

    def broadcasted(one: Affine, other: Affine) -> Affine:
        return one if one == other else Affine.of(Derived(broadcast, (one, other)))

    return Window(between=(Affine(), functools.reduce(broadcasted, counts)))


def onto(machine: Machine, segment: Segment, term: Term, window: Window, op: str | None = None) -> Term:
    """``term``, the content of the segment, on the slots of ``window``: of which there must be as many (``op``: "eq"),
    or no more ("le"); else as many, where it is no slot alone."""
    source, target = (ends_of(machine.boundaries, w) for w in (segment.window, window))
    have, want = count(source), count(target)
    if have != want:
        message = "packpass: parts of a document that are combined have different lengths"
        reached = have if op is not None else Affine.of(Derived(broadcast, (have, want)))
        machine.require(want, op or "eq", reached, message)
    moved: Term = machine.intern(Moved(term, source, target, term.dim))
    return moved
