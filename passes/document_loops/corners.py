"""A part of a document's own row of a padded tensor, along several dimensions: ``mask[i, :n, :n] = True``.

Before, for every document::

    mask[i, 0, :n, :n] = 0

After, for all documents at once::

    inside = arange(W) < lengths[:, None]                                 # [N, W]
    mask = mask.masked_fill(inside[:, None, :, None] & inside[:, None, None, :], 0)

Bounds count as Python counts them, from the end where they are negative and up to the row's.

Does not handle: other values than one number, bounds that are tensors of data.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.elsewhere import own_documents
from passes.document_loops.emit_documents import place_of, vector_of
from passes.document_loops.indices import expand_index
from passes.document_loops.integers import Affine, Bound
from passes.document_loops.machine import Document, Machine
from passes.document_loops.terms import Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class Corner(Term):
    """``base``, with ``number`` where the places along all dimensions are within their span, in documents of at least
    ``least`` slots."""

    base: Term
    spans: tuple[tuple[int, Affine | None, Affine | None], ...]
    """Dimension, and the bounds of a slice along it; None: where it begins, or ends."""
    number: Any
    least: int
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ...]."""
        x = emitter.node(self.base)
        rank = example(x).dim()
        held = [self._inside(emitter, x, rank, *span) for span in self.spans]
        if self.least:
            reaches = emitter.on(emitter.reaches(self.least), example(x).device)
            held.append(emitter.call(torch.reshape, reaches, [-1] + [1] * (rank - 1)))
        inside = functools.reduce(lambda one, other: emitter.call(torch.logical_and, one, other), held)
        made: fx.Node = emitter.call("masked_fill", x, inside, self.number, method=True)
        return made

    def _inside(
        self, emitter: Emitter, x: fx.Node, rank: int, at: int, start: Affine | None, stop: Affine | None
    ) -> fx.Node:
        """Which places along one dimension of the rows are within the document's span: [N + 1, 1.., W, 1..]."""
        extent: Any = example(x).shape[at + 1]
        if not isinstance(extent, int):
            extent = emitter.call(torch.ops.aten.sym_size.int, x, at + 1)
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
    row = machine.value(base)
    if not isinstance(row, Document) or row.cell.outer is None or row.cell.parent is not None:
        return False
    fake = example(base)
    number = machine.value(value)
    known = type(number) in (bool, int, float) and not (type(number) is float and not fake.dtype.is_floating_point)
    if not known or index is None or (isinstance(index, tuple) and None in index):
        return False
    entries = expand_index(index, fake.dim(), node)
    spans = [_span(machine, d, fake.shape[d], entry) for d, entry in enumerate(entries)]
    bounds = [bound for span in spans if span is not None for bound in span[1:] if bound is not None]
    own = [bound for bound in bounds if any(isinstance(atom, Bound) for atom, _ in bound.atoms)]
    if None in spans or not own:
        return False
    if machine.boundaries is None:
        documents = next((found for found in map(own_documents, own) if found is not None), None)
        if documents is None:
            raise Refused("no-segments", "whose number of slots bounds a part of a row is not known", node)
        machine.use((documents, 0), node)
    wanted = tuple(span for span in spans if span is not None and span[1:] != (None, None))
    row.cell.term = machine.intern(Corner(row.cell.term, wanted, number, machine.least))
    row.cell.version += 1
    return True


def _span(machine: Machine, at: int, size: Any, entry: Any) -> tuple[int, Affine | None, Affine | None] | None:
    """Where along a dimension an entry of an index lies; None if that is not known."""
    if type(entry) is int and isinstance(size, int) and -size <= entry < size:
        return (at, Affine.of(entry), Affine.of(entry + 1) if entry != -1 else None)
    if not isinstance(entry, slice) or entry.step not in (None, 1):
        return None
    bounds = [None if bound is None else machine.affine(bound) for bound in (entry.start, entry.stop)]
    missing = any(b is None and given is not None for b, given in zip(bounds, (entry.start, entry.stop), strict=True))
    return None if missing else (at, bounds[0], bounds[1])
