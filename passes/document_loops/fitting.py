"""Slices by numbers that do not fit: ``x[s:e]`` beyond the row, ``rows[i, :n]`` of a short row, ``rows[i, -n:]`` of 0.

Python takes such bounds for what there is: negative ones count from the end, the rest is cut. If a loop uses numbers
of its documents for slices alone, and asks everything else of what the slices are, then the documents are what Python
takes them for. The whole-row form goes by these instead of the numbers, which costs index arithmetic on the boundaries.
Where a number is used for something else (``arange(n)`` beside ``rows[i, :n]``), it has to fit, and is checked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from passes.document_loops.boundaries import summed
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.emit_documents import place_of
from passes.document_loops.integers import EVERY, Affine, Bound, Derived, Invariant
from passes.document_loops.machine import Document, Machine
from passes.document_loops.op_names import name_of
from passes.document_loops.terms import Outside

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True)
class InRow:
    """Documents are cut out of one row by their boundaries: what lies beyond the row is in none."""

    def documents(self, emitter: Emitter, given: fx.Node) -> fx.Node:
        """The boundaries, none of them beyond the row."""
        return _once(emitter, _ops.fit_boundaries.default, given, emitter.total)


@dataclasses.dataclass(frozen=True)
class InEach:
    """Documents are ``[start:stop]`` of ``extent`` slots, in a row of each or in one that they all share."""

    start: Affine | None
    stop: Affine | None
    node: fx.Node
    dim: int

    def documents(self, emitter: Emitter, given: fx.Node) -> fx.Node:
        """The boundaries of what the slices are; where these begin is noted down in the emitter."""
        extent: Any = example(self.node).shape[self.dim]
        if not isinstance(extent, int):
            extent = emitter.call(torch.ops.aten.sym_size.int, self.node, self.dim)
        if emitter.boundaries.lengths:
            like = emitter.call("long", given, method=True)
            begins, lengths = self._cut(emitter, like, extent, emitter.each)
            emitter.begins = emitter.call(torch.nn.functional.pad, begins, (0, 1))
            return summed(emitter.call, lengths)
        emitter.cu = emitter.given = given  # what the numbers are made of
        like = emitter.call("long", given, method=True)
        begins, lengths = self._cut(emitter, like, extent, lambda value: emitter.vector(value, emitter.boundaries))
        lengths = emitter.call(torch.where, emitter.reaches(EVERY), lengths, 0)  # the last entry is no document
        emitter.begins = begins
        emitter.forget()
        return emitter.call(torch.sub, emitter.call(torch.cumsum, lengths, 0), lengths)

    def _cut(self, emitter: Emitter, like: fx.Node, extent: Any, number: Any) -> tuple[fx.Node, fx.Node]:
        """Where each slice begins, and how long it is."""

        def place(value: Affine | None, otherwise: Any) -> Any:
            made = otherwise if value is None else number(value)
            if not isinstance(made, fx.Node) or not isinstance(example(made), torch.Tensor):
                made = emitter.call(torch.full_like, like, made)
            if value is None:
                return made
            return place_of(emitter, made, extent)

        begin, end = place(self.start, 0), place(self.stop, extent)
        return begin, emitter.call(torch.clamp, emitter.call(torch.sub, end, begin), min=0)


Fit = InRow | InEach


def fit_of(machine: Machine, body: tuple[fx.Node, ...], row: bool) -> Fit | None:
    """What the documents of a loop are, where its numbers do not fit; None if they must. ``row``: do its boundaries cut
    rows, or does it look at parts of other tensors alone?"""
    if machine.parts_of_documents or any(node.target in (markers.SPLIT_GET, markers.SEGMENT) for node in body):
        return None
    numbers, sizes = _numbers(machine, body)
    cuts = _cuts(machine, body, numbers)
    if not cuts:
        return None
    if row:
        return _in_row(machine, cuts)
    if any(isinstance(e, slice) and e.start in sizes for node in body for e in index_entries(node) or ()):
        return None  # counted from the end, a size of 0 is all there is
    return _in_each(machine, cuts, [store.outer for store in machine.outer.values() if store.outer is not None])


@dataclasses.dataclass(frozen=True)
class _Cut:
    """A slice by numbers of the document."""

    base: fx.Node
    dim: int
    start: Affine | None
    stop: Affine | None

    @property
    def extent(self) -> Any:
        return example(self.base).shape[self.dim]


def _numbers(machine: Machine, body: tuple[fx.Node, ...]) -> tuple[set[fx.Node], set[fx.Node]]:
    """Numbers of the document as the program has them, and those that are made of what slices are."""
    numbers, sizes = set[fx.Node](), set[fx.Node]()
    inside = set(body)
    for node in body:
        value = machine.values.get(node)
        if node.target is torch.ops.aten.sym_size.int:
            sizes.add(node)
        elif isinstance(value, Affine) and value.bounds():
            made_of = [source for source in node.all_input_nodes if source in inside]
            (sizes if made_of and sizes.issuperset(made_of) else numbers).add(node)
    return numbers, sizes


def _cuts(machine: Machine, body: tuple[fx.Node, ...], numbers: set[fx.Node]) -> list[_Cut] | None:
    """The slices by such numbers; None if these are used for anything else."""
    found: list[_Cut] = []
    for node in body:
        used = numbers.intersection(node.all_input_nodes)
        entries = index_entries(node)
        if entries is None:
            if used and node not in numbers and not _only_asserts(node):
                return None
            continue
        base: Any = node.args[0]
        for d, entry in enumerate(entries):
            bounds = [entry.start, entry.stop] if isinstance(entry, slice) else []
            if numbers.isdisjoint(b for b in bounds if isinstance(b, fx.Node)):
                continue
            assert isinstance(entry, slice)
            if entry.step not in (None, 1) or not isinstance(machine.value(base), (Outside, Document)):
                return None
            start, stop = (None if b is None else machine.affine(b) for b in bounds)
            if (start is None) != (entry.start is None) or (stop is None) != (entry.stop is None):
                return None
            found.append(_Cut(base, d, start, stop))
        if used and not _only_in_slices(node, entries, used):
            return None
    return found


def index_entries(node: fx.Node) -> list[Any] | None:
    """The index of a call that takes or writes a part of a tensor, an entry for each dimension; None for others."""
    if name_of(node) not in ("getitem", "setitem") or not isinstance(node.args[0], fx.Node):
        return None
    fake = example(node.args[0])
    if not isinstance(fake, torch.Tensor):
        return None
    index = node.args[1]
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is None or isinstance(entry, (list, bool)) for entry in entries):
        return None
    if Ellipsis in [e for e in entries if not isinstance(e, fx.Node)]:
        at = next(i for i, e in enumerate(entries) if e is Ellipsis)
        entries[at : at + 1] = [slice(None)] * (fake.dim() - len(entries) + 1)
    return entries


def _only_in_slices(node: fx.Node, entries: list[Any], used: set[fx.Node]) -> bool:
    """Does a call look at numbers as bounds of slices alone?"""
    beside = [entry for entry in entries if not isinstance(entry, slice)]
    return used.isdisjoint(x for x in (*beside, *node.args[2:]) if isinstance(x, fx.Node))


def _only_asserts(node: fx.Node) -> bool:
    """Is a node Dynamo's own assertion, or looked at by nothing else?"""
    if node.target is torch.ops.aten._assert_scalar.default:
        return True
    fake = example(node)
    made = isinstance(fake, (int, torch.SymInt, torch.SymBool)) and node.op == "call_function"
    return made and bool(node.users) and all(map(_only_asserts, node.users))


def _in_row(machine: Machine, cuts: list[_Cut]) -> InRow | None:
    """Every slice is ``[s:e]``, by the boundaries of the loop, of rows that are as long as each other."""
    of, k = machine.boundaries
    whole = (Affine.of(Bound(of, k)), Affine.of(Bound(of, k + 1)))
    if of.lengths or of.made is not None or any((cut.start, cut.stop) != whole for cut in cuts):
        return None
    alike = all(statically_known_true(cut.extent == cuts[0].extent) for cut in cuts)
    return InRow() if alike else None


def _in_each(machine: Machine, cuts: list[_Cut], others: list[Any]) -> InEach | None:
    """All slices are one, of tensors that are as long as each other."""
    k = machine.boundaries[1]
    first, *more = cuts
    if k or not others or not all(isinstance(row, Elsewhere) for row in others):
        return None
    if any((cut.start, cut.stop) != (first.start, first.stop) for cut in more):
        return None
    begin = first.start or Affine()
    if any(row.begin != begin for row in others):
        return None
    extents = [cut.extent for cut in cuts] + [_extent(row) for row in others]
    if not all(statically_known_true(extent == extents[0]) for extent in extents):
        return None
    if not all(_plain(machine, value) for value in (first.start, first.stop) if value is not None):
        return None
    node, dim = others[0].node, _position(others[0])
    return InEach(first.start, first.stop, node, dim)


def _plain(machine: Machine, value: Affine) -> bool:
    """Is a number made of the lengths of the loop's documents, and of what they all share?"""
    of, _ = machine.boundaries
    known = (Bound(of, 0),) if of.lengths else (Bound(of, 0), Bound(of, 1))
    of_lengths = Bound(type(of)(of.node), 0) if of.lengths else None
    return all(
        all(_plain(machine, arg) for arg in atom.args)
        if isinstance(atom, Derived)
        else isinstance(atom, Invariant) or atom in known or atom == of_lengths
        for atom, _ in value.atoms
    )


def _position(row: Elsewhere) -> int:
    """The dimension of the slots in the outer tensor itself."""
    kept = [d for d, e in enumerate(row.index or (slice(None),) * example(row.node).dim()) if not isinstance(e, int)]
    return kept[row.dim]


def _extent(row: Elsewhere) -> Any:
    return example(row.node).shape[_position(row)]


def _once(emitter: Emitter, target: Any, *args: Any) -> fx.Node:
    """A call on boundaries, one for all loops that make it."""
    cu = args[0]
    for node in cu.users:
        if node.target is target and node.args == args and node < emitter.before:
            if not mutated_after(emitter.graph, cu, node, emitter.before):
                return node
    return emitter.call(target, *args)
