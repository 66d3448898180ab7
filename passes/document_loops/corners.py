"""A part of a document's own row of a padded tensor, along several dimensions: ``mask[i, :n, :n] = True``.

Before, for every document::

    mask[i, 0, :n, :n] = 0

After, for all documents at once::

    inside = arange(W) < lengths[:, None]                                 # [N, W]
    mask = mask.masked_fill(inside[:, None, :, None] & inside[:, None, None, :], 0)

Bounds count as Python counts them, from the end where they are negative and up to the row's. A square of the document
may hold other numbers for other distances of its slots, ``mask[i, :n, :n] = torch.ones(n, n).tril()``: then the row
must have room for all of it, as in eager.

Does not handle: other values than one number or such a square, bounds that are tensors of data.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.memory import is_new
from passes.document_loops.appended import Common
from passes.document_loops.blocks import Banded, banded_square, by_distance
from passes.document_loops.documents import document
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.emit_documents import extent_of, place_of, vector_of
from passes.document_loops.indices import expand_index
from passes.document_loops.integers import Affine, Bound, Reach
from passes.document_loops.machine import Document, Machine
from passes.document_loops.pairs import Pairs
from passes.document_loops.parts import own_length
from passes.document_loops.terms import Outside, Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class Corner(Term):
    """``base``, with ``number`` where the places along all dimensions are within their span, in documents of
    ``reach``."""

    base: Term
    spans: tuple[tuple[int, Affine | None, Affine | None], ...]
    """Dimension, and the bounds of a slice along it; None: where it begins, or ends."""
    number: Any
    """What is written; `Banded`: the square of a document, along the last two of ``spans``."""
    reach: Reach
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ...]."""
        x = emitter.node(self.base)
        rank = example(x).dim()
        if isinstance(self.number, Banded):
            self._check_room(emitter, x)
        held = [self._inside(emitter, x, rank, *span) for span in self.spans]
        if self.reach:
            reaches = emitter.on(emitter.reaches(self.reach), example(x).device)
            held.append(emitter.call(torch.reshape, reaches, [-1] + [1] * (rank - 1)))
        inside = functools.reduce(lambda one, other: emitter.call(torch.logical_and, one, other), held)
        if isinstance(self.number, Banded):
            return emitter.call(torch.where, inside, self._square(emitter, x, self.number), x)
        return emitter.call("masked_fill", x, inside, self.number, method=True)

    def _check_room(self, emitter: Emitter, x: fx.Node) -> None:
        """The row must be as wide and as high as the square of every document."""
        for at, _, stop in self.spans[-2:]:
            assert stop is not None
            fits = emitter.call(operator.le, vector_of(emitter, stop, torch.int64), extent_of(emitter, x, at + 1))
            message = "packpass: a square of a document does not fit into the row that it is written to"
            emitter.call(torch._assert_async, emitter.for_every_document(fits, self.reach), message)

    def _square(self, emitter: Emitter, x: fx.Node, square: Banded) -> fx.Node:
        """The numbers by distance, for all places of the last two dimensions: [W, W, 1..]."""
        places = []
        for at, start, _ in self.spans[-2:]:
            slots = emitter.call(torch.arange, extent_of(emitter, x, at + 1), device=example(x).device)
            slots = emitter.call(torch.sub, slots, start.const) if start is not None else slots
            places.append(emitter.along(slots, at + 1 - example(x).dim()))
        return by_distance(emitter, emitter.call(torch.sub, *places), square, example(x).dtype)

    def _inside(
        self, emitter: Emitter, x: fx.Node, rank: int, at: int, start: Affine | None, stop: Affine | None
    ) -> fx.Node:
        """Which places along one dimension of the rows are within the document's span: [N + 1, 1.., W, 1..]."""
        extent = extent_of(emitter, x, at + 1)
        places = emitter.call(torch.arange, extent, device=example(x).device)
        held = []
        for bound, compared in ((start, operator.ge), (stop, operator.lt)):
            if bound is not None:
                edge = place_of(emitter, vector_of(emitter, bound, torch.int64), extent)
                edge = emitter.call(torch.unsqueeze, emitter.on(edge, example(x).device), 1)
                held.append(emitter.call(compared, places, edge))
        inside = held[0] if len(held) == 1 else emitter.call(torch.logical_and, *held)
        shape = [1] * (rank - 1)
        shape[at] = extent
        return emitter.call(torch.reshape, inside, [-1, *shape])


def write_corner(machine: Machine, node: fx.Node) -> bool:
    """Note such an assignment; False if it is another one. Raises `Refused`."""
    base, index, value = node.args
    row = _row_of(machine, base, node)
    if row is None or not isinstance(base, fx.Node):
        return False
    fake = example(base)
    number = machine.value(value)
    known = type(number) in (bool, int, float) and not (type(number) is float and not fake.dtype.is_floating_point)
    square = isinstance(number, Pairs)
    if not (known or square) or index is None or (isinstance(index, tuple) and None in index):
        return False
    entries = expand_index(index, fake.dim(), node)
    if square:
        number = _as_square(machine, number, [entry for entry in entries if isinstance(entry, slice)], node)
    spans = [_span(machine, d, fake.shape[d], entry) for d, entry in enumerate(entries)]
    bounds = [bound for span in spans if span is not None for bound in span[1:] if bound is not None]
    own = [bound for bound in bounds if any(isinstance(atom, Bound) for atom, _ in bound.atoms)]
    if None in spans or not own or number is None:
        return False
    if machine.boundaries is None:
        documents = next((found for found in map(own_documents, own) if found is not None), None)
        if documents is None:
            raise Refused("no-segments", "whose number of slots bounds a part of a row is not known", node)
        machine.use((documents, 0), node)
    cuts_last = sorted(range(len(entries)), key=lambda d: isinstance(entries[d], slice))
    wanted = tuple(span for span in (spans[d] for d in cuts_last) if span is not None and span[1:] != (None, None))
    machine.values[base] = row
    row.cell.term = machine.intern(Corner(row.cell.term, wanted, number, machine.reach))
    row.cell.version += 1
    return True


def _row_of(machine: Machine, base: Any, node: fx.Node) -> Document | None:
    """The document's own row of a tensor, or a tensor that each iteration makes and that nobody has looked at: the same
    for all documents, until then."""
    row = machine.value(base)
    if isinstance(row, Document):
        return row if row.cell.parent is None else None
    made = isinstance(row, Outside) and base in machine.inside and is_new(base)
    return document(machine, Common(row, 0)) if made and not any(user < node for user in base.users) else None


def _as_square(machine: Machine, square: Pairs, cuts: list[slice], node: fx.Node) -> Banded | None:
    """What the last two slices of an index are set to, if that is a square of the document and they have room for
    just that: a square may be repeated along the dimensions in front of it."""
    found = banded_square(square, node)
    if not isinstance(found, Banded) or square.rank > len(cuts) or machine.boundaries is None:
        return None
    whole = all(cut.start is None and cut.stop is None for cut in cuts[:-2])
    for cut in cuts[-2:]:
        start, stop = (machine.affine(0 if bound is None else bound) for bound in (cut.start, cut.stop))
        if start is None or stop is None or cut.stop is None or not start.is_const or start.const < 0:
            return None
        whole = whole and stop.plus(start, -1) == own_length(machine)
    return found if whole else None


def _span(machine: Machine, at: int, size: Any, entry: Any) -> tuple[int, Affine | None, Affine | None] | None:
    """Where along a dimension an entry of an index lies; None if that is not known."""
    if type(entry) is int and isinstance(size, int) and -size <= entry < size:
        return (at, Affine.of(entry), Affine.of(entry + 1) if entry != -1 else None)
    if not isinstance(entry, slice) or entry.step not in (None, 1):
        return None
    bounds = [None if bound is None else machine.affine(bound) for bound in (entry.start, entry.stop)]
    missing = any(b is None and given is not None for b, given in zip(bounds, (entry.start, entry.stop), strict=True))
    return None if missing else (at, bounds[0], bounds[1])
