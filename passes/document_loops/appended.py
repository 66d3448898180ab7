"""What documents append to a list: parts of a row, a value of their own, or one that all of them share."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import fx

from packpass.semantics import example, is_tensor, storage
from packpass.semantics.effects import mutated_after, written_inputs
from passes.document_loops import uneven
from passes.document_loops.blocks import diagonal
from passes.document_loops.documents import as_term, document, document_view, is_per_document
from passes.document_loops.integers import FULL, Affine
from passes.document_loops.machine import Document, Machine, Segment, Slot
from passes.document_loops.op_names import name_of
from passes.document_loops.terms import Outside, Term
from passes.refused import Refused

_LARGEST = 1 << 16
"""So many elements may be filled for every document: those of all documents are in memory together."""


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


def own_memory(machine: Machine, node: fx.Node, value: Outside) -> Any:
    """A tensor that every document makes, as one of the document's own if it is written later on."""
    fake = example(node)
    if not isinstance(fake, torch.Tensor) or node not in machine.inside or not _is_new(node):
        return value
    sizes = [size for size in fake.shape if isinstance(size, int)]
    if len(sizes) < fake.dim() or math.prod(sizes) > _LARGEST or not _is_written(node):
        return value
    if any(_by_numbers(user, node) for user in node.users):  # slots of the document may be put there (`padded`)
        return value
    return document(machine, Common(value, 0))


def _is_new(node: fx.Node) -> bool:
    """Does a call give memory that none of its operands has?"""
    memory = storage(node)
    return memory is not None and all(storage(n) != memory for n in node.all_input_nodes if is_tensor(n))


def _is_written(node: fx.Node) -> bool:
    """Does anything write to this memory, through the tensor itself or a view of it?"""
    memory, stack, seen = storage(node), [node], {node}
    while stack:
        for user in stack.pop().users:
            if any(storage(target) == memory for target in written_inputs(user)):
                return True
            if user not in seen and is_tensor(user) and storage(user) == memory:
                seen.add(user)
                stack.append(user)
    return False


def _by_numbers(user: fx.Node, of: fx.Node) -> bool:
    """Does a call cut a part of a tensor by numbers that are no constants?"""
    index = user.args[1:2] if name_of(user) in ("getitem", "setitem") else user.args[1:]
    found: list[fx.Node] = []
    fx.map_arg(index, found.append)
    return user.args[:1] == (of,) and any(isinstance(example(n), torch.SymInt) for n in found)


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
