"""What documents append to a list: parts of a row, a value of their own, or one that all of them share."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from passes.document_loops import uneven
from passes.document_loops.blocks import diagonal
from passes.document_loops.documents import as_term, document, document_view, is_per_document
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import Document, Machine, Segment, Slot
from passes.document_loops.terms import Outside, Term
from passes.refused import Refused


@dataclasses.dataclass(frozen=True, eq=False)
class Common(Term):
    """A tensor from outside, once per document: a copy each, as what eager stacks may be written to."""

    of: Outside
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        value = emitter.node(self.of)
        entries = emitter.call(torch.ops.aten.sym_size.int, emitter.cu, 0)
        wide = emitter.call(torch.unsqueeze, value, 0)
        made: fx.Node = emitter.call("repeat", wide, entries, *[1] * example(value).dim(), method=True)
        return made


def appended_value(machine: Machine, source: fx.Node, collect: fx.Node) -> Any:
    """The value that is appended; slots, integers and what all documents share as the documents' values they are."""
    value = machine.value(source)
    piece = uneven.joined(machine, source, [value])
    if piece is not None:
        return piece
    slots = uneven.slots_of(value)
    if slots is not None and not (isinstance(value, Segment) and value.window == FULL and value.store.exact):
        longer = uneven.sequence(machine, source, [value], *slots)
        return value if longer is None else longer
    square = diagonal(value, source)
    if square is not None:
        return document(machine, square)
    common = isinstance(value, Outside) and isinstance(example(source), torch.Tensor)
    if not common and not is_per_document(value):
        return value
    if machine.skips_empty:
        raise Refused("skip-condition", "a list has no entry for the documents that are skipped", collect)
    if common:
        return document(machine, Common(value, 0))
    term = as_term(machine, source, collect)
    tensor = isinstance(value, Affine) and isinstance(example(source), torch.Tensor)
    if tensor and mutated_after(source.graph, source, source.next):  # an entry is a view of the vector
        raise Refused("aliasing", "a list holds a number of a tensor that is changed before they are stacked", collect)
    if isinstance(value, Document):
        return value
    return document_view(machine, term, value) if isinstance(value, Slot) else document(machine, term)
