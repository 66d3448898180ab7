"""Rows whose documents are longer or shorter than those they are made of: what is appended is as long as it is.

::

    out.append(x[s:e][:-1])                                    # parts of documents
    out.append(torch.cat((bos, ids[s:e], eos)))                # with slots of their own in front or behind
    out.append(torch.cat((h[s:e], h[s:e].mean(0, keepdim=True))))
    pieces = x[s:e].chunk(4); parts.extend([pieces[0], pieces[-1]])

The row that such a list is joined to is gathered at once. Nothing is computed on what a document has become, which is
another row with other boundaries: it is moved. Slots are counted as eager does, in short documents as well.

Of ``chunk`` torch makes every piece as long as the quotient, rounded up, and the last one shorter; of a short document
there are fewer pieces. A program that takes piece ``j`` by its number fails where there is none, so that there being
one is a check which raises where eager does.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from passes.document_loops.documents import read_cell
from passes.document_loops.integers import FULL, Affine, Boundaries, Derived
from passes.document_loops.machine import Document, Machine, Padded, Segment
from passes.document_loops.moved import ends_of
from passes.document_loops.padded import Filler
from passes.document_loops.parts import Joined, Pieces, own_length
from passes.document_loops.reached import keep_gradients, may_be_none
from passes.document_loops.terms import Outside, Term
from passes.document_loops.uneven_row import Constant, Each, Open, Part, Uneven
from passes.loops import LoopFound, is_unused, list_sizes
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Slots of a row that are a document's by other boundaries than those of the loop; to be joined to others of it."""

    of: Outside
    part: Part
    rank: int
    dim: int
    documents: Boundaries
    """The boundaries that it is cut by."""
    refused: Refused
    """Why it is nothing else."""


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """One piece of a document."""

    of: Segment
    part: Part


@dataclasses.dataclass(frozen=True)
class Strided:
    """``arange(start, stop, step)`` over the slots of a document."""

    start: Affine
    step: int
    dtype: torch.dtype
    device: torch.device


@dataclasses.dataclass(frozen=True, eq=False)
class StridedRow(Term):
    """Such numbers of every document, one document behind the other: a row of their own."""

    of: Strided
    dim: int = -1

    def emit(self, emitter: Emitter) -> fx.Node:
        """The row, as long as the quotients of the lengths, rounded up, are together."""
        step, given = self.of.step, emitter.vector(self.of.start, emitter.boundaries)
        counts = emitter.call(operator.floordiv, emitter.call(torch.add, emitter.lengths(), step - 1), step)
        cu = emitter.call(torch.nn.functional.pad, emitter.call(torch.cumsum, counts, 0), (1, 0))
        total = emitter.call(_ops.covered_length.default, cu)
        if not isinstance(given, fx.Node) or not isinstance(example(given), torch.Tensor):
            given = emitter.call(torch.full_like, emitter.cu, given)
        starts = emitter.call(torch.nn.functional.pad, emitter.call("long", given, method=True), (0, 1))
        places = emitter.call(_ops.segment_places.default, cu, emitter.call(torch.zeros_like, starts), total)
        first = emitter.call(_ops.segment_spread.default, starts, cu, total)
        out = emitter.call(torch.add, first, emitter.call(torch.mul, places, step))
        made: fx.Node = emitter.call("to", out, device=self.of.device, dtype=self.of.dtype, method=True)
        return made


def pieces_of(machine: Machine, node: fx.Node, value: Any, count: int, dim: int) -> tuple[Piece, ...] | None:
    """What ``chunk`` makes of a document of any length, where the program takes pieces by their numbers."""
    taken = node.target is markers.PIECES or all(map(is_unused, node.users))
    if not taken or not isinstance(value, Segment) or machine.parts_of_documents:
        return None
    if value.window != FULL or not value.store.exact or dim % value.rank != value.rank + value.dim:
        return None
    if machine.boundaries is None:
        return None
    length = own_length(machine)
    size = Affine.of(Derived(operator.floordiv, (length.plus(Affine.of(count - 1)), Affine.of(count))))

    def end(j: int) -> Affine:
        return Affine() if j == 0 else Affine.of(Derived(min, (size.times(j), length)))

    return tuple(Piece(value, Part(end(j), end(j + 1), size.times(j))) for j in range(count))


def joined(machine: Machine, node: fx.Node, values: list[Any]) -> Pieces | None:
    """``cat`` of such pieces, or one alone, that goes into a list; numbers of which a document has fewer than slots."""
    if len(values) == 1 and isinstance(values[0], Strided):
        return Pieces(machine.intern(StridedRow(values[0])), 1)
    if not values or not all(isinstance(value, Piece) for value in values):
        return None
    first = values[0].of
    return sequence(machine, node, values, first.rank, first.dim)


def sequence(machine: Machine, node: fx.Node, values: list[Any], rank: int, dim: int) -> Pieces | None:
    """What documents give to a list, one value behind the other along the slots (``dim``, negative), if the length of
    each is known; None if there is one of which it is not."""
    found: list[tuple[Any, Part]] = []
    for value in values:
        more = _parts(machine, node, value, rank, dim)
        if more is None:
            return None
        found += more
    if machine.boundaries is None or not found:
        return None
    of, parts = zip(*found, strict=True)
    term = Uneven(of, parts, machine.reach, dim, example(node).dtype)
    return Pieces(machine.intern(term), rank)


def slots_of(value: Any) -> tuple[int, int] | None:
    """``(rank, dimension of the slots)`` of a value that has slots of each document."""
    if isinstance(value, Pieces):
        return value.rank, value.term.dim
    if isinstance(value, Foreign):
        return value.rank, value.dim
    inner = value.of if isinstance(value, Piece) else value.segment if isinstance(value, Padded) else value
    return (inner.rank, inner.dim) if isinstance(inner, Segment) else None


def _parts(machine: Machine, node: fx.Node, value: Any, rank: int, dim: int) -> list[tuple[Any, Part]] | None:
    if isinstance(value, Foreign):
        return [(value.of, value.part)] if (value.rank, value.dim) == (rank, dim) else None
    if isinstance(value, Filler):
        return [(Open(value.fill), Part(Affine(), value.count, each=Each.ALL))] if value.along == dim else None
    if isinstance(value, Piece):
        fits = (value.of.rank, value.of.dim) == (rank, dim)
        return [(machine.read(value.of, node), value.part)] if fits else None
    if isinstance(value, Pieces):
        term = value.term
        if isinstance(term, Joined) and (value.rank, term.dim) == (rank, dim):
            return [(part, Part(Affine(), own_length(machine))) for part in term.parts]
        fits = isinstance(term, Uneven) and (value.rank, term.dim, term.reach) == (rank, dim, machine.reach)
        return list(zip(term.of, term.parts, strict=True)) if fits and term.dtype == example(node).dtype else None
    if isinstance(value, Padded):
        inner = _parts(machine, node, value.segment, rank, dim)
        ends = [[(Constant(value.fill, n), _whole(n))] if n else [] for n in (value.left, value.right)]
        return [*ends[0], *inner, *ends[1]] if inner is not None else None
    if isinstance(value, Segment):
        return _window(machine, node, value) if (value.rank, value.dim) == (rank, dim) else None
    if isinstance(value, Outside):
        fake = machine.fake(value)
        fits = fake.dim() == rank and isinstance(fake.shape[dim], int)
        return [(value, _whole(fake.shape[dim], Each.ALL))] if fits else None
    if isinstance(value, Document):
        fake = _fake(machine, node, value)
        fits = fake is not None and fake.dim() == rank and isinstance(fake.shape[dim], int)
        return [(read_cell(value.cell, node), _whole(fake.shape[dim], Each.VALUE))] if fits else None
    return None


def _whole(count: int, each: Each = Each.ALL) -> Part:
    return Part(Affine(), Affine.of(count), each=each)


def _fake(machine: Machine, node: fx.Node, value: Any) -> Any:
    """The traced value of an operand of a call."""
    return next((example(n) for n in node.all_input_nodes if machine.value(n) is value), None)


def _window(machine: Machine, node: fx.Node, segment: Segment) -> list[tuple[Any, Part]] | None:
    """Some slots of every document; as many as there are, where it has fewer."""
    store, window = segment.store, segment.window
    if machine.boundaries is None:
        return None
    if not store.exact:
        made = store.made_of
        if made is None or store.version or window != FULL:
            return None
        return list(zip(made.term.of, made.term.parts, strict=True))
    return [(machine.read(segment, node), Part(*ends_of(machine.boundaries, window)))]


def of_long(machine: Machine, loop: LoopFound, collect: fx.Node, value: Any) -> Pieces:
    """What a list has of documents that are long enough, where shorter ones append nothing; raises `Refused`."""
    refused = Refused("skip-condition", "a list in a loop that skips short documents", collect)
    slots, sizes = slots_of(value), list_sizes(loop)
    users = [user for user in collect.users if user not in sizes]
    if slots is None or any(user.target is not markers.RAGGED_CAT for user in users):
        raise refused
    made = sequence(machine, collect, [value], *slots)
    if made is None or not isinstance(made.term, Uneven):
        raise refused
    _check_gradient(collect, users)
    some = any(user.args[2:] != (False,) for user in users)
    if may_be_none(machine.reach, machine.boundaries) and not some:
        keep_gradients(machine.inside, made.term, None)
    return Pieces(machine.intern(dataclasses.replace(made.term, some=some)), made.rank)


def _check_gradient(collect: fx.Node, users: list[fx.Node]) -> None:
    """Where no document is long enough, eager has what the program itself has put into the list, with its gradient."""
    source: Any = collect.args[0]
    for joined in [other for user in users if user.args[2:] == (False,) for other in user.users]:
        others = [node for node in joined.all_input_nodes if node not in users]
        tensors = [example(node) for node in others if isinstance(example(node), torch.Tensor)]
        if tensors and example(source).requires_grad and not any(tensor.requires_grad for tensor in tensors):
            reason = "a list has no gradient where all documents are too short, as what it has beside them has none"
            raise Refused("skip-condition", reason, collect)
