"""Documents padded to one width: ``F.pad(x[s:e], (0, width - (e - s)))``, a value that documents have one of each."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.documents import document
from passes.document_loops.emit_shifts import stored
from passes.document_loops.integers import FULL, Affine, Bound, Check, Derived, Invariant
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.terms import Term

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedTo(Term):
    """The slots of ``of`` (packed along ``along``), and as many of ``fill`` as there are up to ``width``: behind them,
    or in front of them (``left``). Of longer documents the first (the last) ``width`` slots, as a negative pad cuts.
    """

    of: Term
    along: int
    width: Affine
    left: bool
    fill: Any
    dim: int = 0

    def emit(self, emitter: Emitter) -> fx.Node:
        """[N + 1, ..., width, ...], one entry per document."""
        x, width = emitter.node(self.of), emitter.vector(self.width, emitter.boundaries)
        rank, entries = example(x).dim(), emitter.call(torch.ops.aten.sym_size.int, emitter.cu, 0)
        lengths = emitter.call(torch.unsqueeze, emitter.lengths(), 1)
        own = emitter.call(torch.arange, width, device=emitter.device)
        if self.left:
            own = emitter.call(torch.add, own, emitter.call(torch.sub, lengths, width))
        else:
            own = emitter.call("expand", own, [entries, width], method=True)
        inside = emitter.call(
            torch.logical_and, emitter.call(operator.ge, own, 0), emitter.call(operator.lt, own, lengths)
        )
        slots = emitter.call(torch.add, own, emitter.call(torch.unsqueeze, emitter.cu, 1))
        places = emitter.call(torch.flatten, emitter.call(torch.where, inside, slots, -1))
        out = emitter.call(_ops.gather_places.default, x, places, self.along)
        out = emitter.call(torch.unflatten, out, rank + self.along, [entries, width])
        if rank + self.along:
            out = emitter.call(torch.movedim, out, rank + self.along, 0)
        if not self.fill:
            return out
        inside = emitter.along(inside, self.along)
        for _ in range(rank + self.along):
            inside = emitter.call(torch.unsqueeze, inside, 1)
        return emitter.call(torch.where, inside, out, self.fill)


@dataclasses.dataclass(frozen=True, eq=False)
class Filler:
    """``count`` slots of one number, a count of the document's own, to be joined to it: what it lacks of a ``width``
    that all have, or of a multiple of so many slots (no width)."""

    count: Affine
    fill: Any
    along: int
    width: Affine | None = None


def filler(machine: Machine, node: fx.Node, sizes: Any, fill: Any) -> Filler | None:
    """``zeros(width - n, ...)``, ``zeros(-n % 8, ...)``; None if no size is a number that documents have each of its
    own, or one that is as long as the document."""
    from passes.document_loops.rules_views import takes_length

    found: Filler | None = None
    for d, size in enumerate(sizes):
        value = machine.affine(size) if isinstance(size, fx.Node) else None
        if value is None or value.is_shared:
            continue
        if takes_length(machine, size):
            return None
        if found is not None or not isinstance(fill, (int, float, bool)):
            return None
        if value.length_of() is not None or not all(isinstance(a, (Bound, Derived, Invariant)) for a, _ in value.atoms):
            return None
        found = Filler(value, stored(fill, example(node).dtype), d - len(sizes), _width(machine, value))
    return found


def _width(machine: Machine, count: Affine) -> Affine | None:
    """The width that a document lacks so many slots of."""
    width = count.shared()
    length = width.plus(count, -1).length_of()
    own = machine.boundaries is not None and length is not None and not length[1]
    return width if own and (length[0], 0) == machine.boundaries else None  # type: ignore[index]


def check_width(machine: Machine, width: Affine, length: Affine) -> None:
    """Eager's error for a document that is longer than the width that it is padded to."""
    message = "packpass: a document is longer than the width that it is padded to"
    check = Check(width, "ge", length, message, machine.reach)
    if check not in machine.checks:
        machine.checks.append(check)


def joined_to_width(machine: Machine, node: fx.Node, tensors: Any, values: list[Any]) -> Document | None:
    """``cat((x[s:e], zeros(width - (e - s))))``; None for anything else."""
    if len(values) != 2 or sum(isinstance(value, Filler) for value in values) != 1:
        return None
    left = isinstance(values[0], Filler)
    lacking, value = values if left else values[::-1]
    if not isinstance(value, Segment) or value.window != FULL or not value.store.exact or value.dim != lacking.along:
        return None
    if lacking.width is None:
        return None
    if any(example(tensor).dtype != example(node).dtype for tensor in tensors):
        return None
    length = Affine.of(Bound(machine.boundaries[0], machine.boundaries[1] + 1))
    length = length.plus(Affine.of(Bound(*machine.boundaries)), -1)
    check_width(machine, lacking.width, length)
    return document(machine, PaddedTo(machine.read(value, node), value.dim, lacking.width, left, lacking.fill))


def padded_to_width(machine: Machine, node: fx.Node, value: Any, pad: Any, mode: Any, fill: Any) -> Document | None:
    """The rule of ``pad`` for one width of all documents; None if it pads otherwise."""
    if not isinstance(value, Segment) or mode != "constant" or value.window != FULL or not value.store.exact:
        return None
    pairs = {-1 - i: (pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)}
    found = [machine.affine(amount) for amount in pairs.pop(value.dim, (0, 0))]
    zero = [isinstance(amount, Affine) and amount == Affine() for amount in found]
    if any(amount != (0, 0) for amount in pairs.values()) or zero.count(True) != 1:
        return None
    amount, number = found[zero.index(False)], 0 if fill is None else fill
    if amount is None or machine.boundaries is None or not isinstance(number, (int, float, bool)):
        return None
    width = amount.shared()
    length = width.plus(amount, -1).length_of()
    if length is None or length[1] or (length[0], 0) != machine.boundaries:
        return None
    term = PaddedTo(machine.read(value, node), value.dim, width, zero[1], stored(number, example(node).dtype))
    return document(machine, term)
