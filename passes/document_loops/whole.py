"""Tensors from outside the loop of which a document changes more than its own slots: what that has in common.

Nothing is taken for granted about where documents lie, or in which order they come: slices count as Python counts them,
from the end where they are negative and no further than the row goes.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import fx

from packpass.semantics import call_of, example
from passes.document_loops.emit_documents import place_of, vector_of
from passes.document_loops.indices import constant_entry, expand_index, through_constants
from passes.document_loops.integers import Affine, Reach
from passes.document_loops.machine import Machine, Store, selection
from passes.document_loops.terms import Outside, Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter


@dataclasses.dataclass(frozen=True, eq=False)
class Whole(Term):
    """An outer tensor of which documents change slots of each other along ``dim``, as it is before the loop, as
    ``index`` selects along its other dimensions. ``columns``: the second dimension that is cut, if it is a mask.
    ``by_documents``: along ``dim``, each changes its own slots."""

    own_reach: ClassVar[bool] = True

    node: fx.Node
    index: tuple[Any, ...]
    dim: int
    columns: int | None = None
    by_documents: bool = False

    def emit(self, emitter: Emitter) -> fx.Node:
        return emitter.selected(self)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of an outer tensor, cut by numbers of the document along the dimensions ``cuts``."""

    outer: fx.Node
    entries: list[Any]
    cuts: list[int]

    def slices(self) -> list[slice]:
        return [self.entries[d] for d in self.cuts]

    def is_written(self, machine: Machine) -> bool:
        """Has the document written to parts of this tensor?"""
        return any(key[0] is self.outer and key[-1] == "whole" for key in machine.outer)

    def store(self, machine: Machine, *, by_documents: bool = False) -> Store:
        """The memory of the whole tensor; the first one of ``cuts`` is its ``dim``."""
        index, (dim, *columns), _ = selection(self.entries, *self.cuts)
        column = columns[0] if columns else None
        key = (self.outer, index, dim, column, by_documents, "whole")
        if key not in machine.outer:
            whole = machine.intern(Whole(self.outer, index, dim, column, by_documents))
            machine.outer[key] = Store(whole, outer=whole)
        return machine.outer[key]


def part_of_outer(machine: Machine, base: Any, index: Any, node: fx.Node, dims: int) -> Part | None:
    """What an index means, if slices without a step cut ``dims`` dimensions by numbers of the document, and all other
    entries are constants."""
    if not isinstance(machine.value(base), Outside) or machine.parts_of_documents:
        return None
    if isinstance(index, fx.Node) or index is None or (isinstance(index, tuple) and None in index):
        return None
    selected = through_constants(machine, base, expand_index(index, example(base).dim(), node))
    if selected is None:
        return None
    outer, entries = _of_memory(*selected)
    cuts = [d for d, entry in enumerate(entries) if not constant_entry(machine, entry)]
    plain = all(isinstance(entries[d], slice) and entries[d].step in (None, 1) for d in cuts)
    return Part(outer, entries, cuts) if plain and len(cuts) == dims else None


def _of_memory(outer: fx.Node, entries: list[Any]) -> tuple[fx.Node, list[Any]]:
    """The same part, as one of the tensor of which an outer one is a row: a program cuts both, and means one."""
    call = call_of(outer)
    while call is not None and call.op == "select" and type(call.get("index")) is int:
        source, dim = call.operands[0].node, call.get("dim")
        entries = [*entries]
        entries.insert(dim % example(source).dim(), call.get("index"))
        outer, call = source, call_of(source)
    return outer, entries


def number_of(machine: Machine, bound: Any) -> Affine | None:
    """A bound that is a number of the document, and not the same for all."""
    number = machine.affine(bound) if isinstance(bound, fx.Node) else None
    return None if number is None or number.is_shared else number


def write(machine: Machine, store: Store, term: Term) -> None:
    """Note down what a whole tensor is from now on."""
    store.term = term
    store.version += 1
    machine.turns += 1
    store.turn = machine.turns


# === Nodes ===================================================================================================


def places(emitter: Emitter, begin: Affine, extent: Any, reach: Reach, device: torch.device) -> fx.Node:
    """The first slot of every document's, ``extent`` where there is none: [N + 1]."""
    at = place_of(emitter, vector_of(emitter, begin, torch.int64), extent)
    reached = emitter.on(emitter.reaches(reach), example(at).device)
    return emitter.on(emitter.call(torch.where, reached, at, extent), device)


def at_places(emitter: Emitter, extent: Any, dtype: torch.dtype, device: torch.device) -> fx.Node:
    """Zeros to add to, or to raise, at `places`."""
    entries = extent + 1 if isinstance(extent, int) else emitter.call(operator.add, extent, 1)
    return emitter.call(torch.zeros, entries, dtype=dtype, device=device)


def for_slots(emitter: Emitter, vector: fx.Node, extent: Any) -> fx.Node:
    """Such a vector without its last entry, which is that of no slot."""
    return emitter.call(torch.narrow, vector, 0, 0, extent)


def largest_so_far(emitter: Emitter, at: fx.Node, numbers: fx.Node, extent: Any) -> fx.Node:
    """For every slot the largest number of those whose `places` are in front of it, or its own; 0 if there is none."""
    largest = at_places(emitter, extent, torch.int64, example(at).device)
    largest = emitter.call(torch.scatter_reduce, largest, 0, at, numbers, "amax")
    return for_slots(emitter, emitter.call(operator.getitem, emitter.call(torch.cummax, largest, 0), 0), extent)
