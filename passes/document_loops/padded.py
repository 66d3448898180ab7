"""Documents padded to one width: ``F.pad(x[s:e], (0, width - (e - s)))``, a value that documents have one of each."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.markers.entries import read_from
from packpass.semantics import example, is_tensor, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.names import base_name
from passes.document_loops.aliasing import memory_of
from passes.document_loops.boundaries import boundary_vector, documents_of_lengths
from passes.document_loops.documents import document
from passes.document_loops.emit_shifts import stored
from passes.document_loops.integers import FULL, Affine, Bound, Check, Derived, Invariant
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.moved import own_length
from passes.document_loops.terms import Term
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


TOO_LONG = "packpass: a document is longer than the width that it is padded to"


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
        if not self.fill:  # these slots are zeros already, or none
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
    check = Check(width, "ge", length, TOO_LONG, machine.reach)
    if check not in machine.checks:
        machine.checks.append(check)


_AT_MOST = {("gt", False), ("le", True), ("ne", False), ("eq", True)}
"""Of ``difference <op> 0``, and which way it goes: then the difference is 0 or less."""


def none_left(body: Iterable[fx.Node], machine: Machine) -> list[Affine]:
    """Numbers of the document that are 0 or less in an iteration, as the branches in its ``body`` say."""
    found = []
    for node in body:
        condition = node.args[0] if node.target in markers.LOOP_BRANCH else None
        if not isinstance(condition, fx.Node) or len(condition.args) != 2:
            continue
        sides = [machine.affine(arg) for arg in condition.args]
        name, outcome = base_name(op_name(condition) or ""), node.args[1]
        if None in sides:
            continue
        difference = sides[0].plus(sides[1], -1)  # type: ignore[union-attr, arg-type]
        if (name, outcome) in _AT_MOST:
            found.append(difference)
        if (name, outcome) in {("lt", False), ("ge", True), ("ne", False), ("eq", True)}:
            found.append(difference.times(-1))
    return found


def _begin_of(node: fx.Node) -> fx.Node:
    """Where the traced iteration begins that a node is in."""
    while node.target is not markers.LOOP_BEGIN:
        node = node.prev
    return node


def _branches_before(node: fx.Node) -> list[fx.Node]:
    """The branches that the traced iteration has met before a node, but for those that others answer."""
    begin, found = _begin_of(node), []
    while node is not begin:
        node = node.prev
        found += [node] if node.target in markers.LOOP_BRANCH and not node.args[2] else []
    return found


def found_as_wide(machine: Machine, node: fx.Node) -> Document:
    """`markers.AS_WIDE` of a whole document, of which it is certain that it is as wide; or of one that is padded."""
    value, (dim, width) = machine.value(node.args[0]), node.args[1:]
    number, term = machine.affine(width), value.cell.term if isinstance(value, Document) else None
    if isinstance(term, PaddedTo) and term.width == number:
        return value
    whole = isinstance(value, Segment) and value.window == FULL and value.store.exact
    if not whole or number is None or not number.is_shared or dim != value.rank + value.dim:
        raise Refused("list-use", "documents of different lengths cannot be stacked", node)
    left, known = number.plus(own_length(machine.boundaries), -1), none_left(_branches_before(node), machine)
    if left not in known or (left.times(-1) not in known and not _reaches_longest(machine, width, 0, node)):
        reason = "documents that are not padded may be longer than the others are padded to"
        raise Refused("list-use", reason, node)
    memory, since = memory_of(value), _begin_of(node)
    if memory.outer is not None and (memory.version or mutated_after(node.graph, memory.outer.node, since)):
        reason = "a list holds views of a tensor, which may be changed before or by what is made of the list"
        raise Refused("aliasing", reason, node)
    return document(machine, PaddedTo(machine.read(value, node), value.dim, number, False, None))


def _reaches_longest(machine: Machine, number: Any, more: int, node: fx.Node) -> bool:
    """Is the length of the longest document at most ``number + more``?"""
    if not isinstance(number, fx.Node):
        return False
    name, args = op_name(number), tuple[Any, ...](number.args)
    if name in ("max", "amax") and args and is_tensor(args[0]) and args[1:] in ((), (0,), (-1,)) and not number.kwargs:
        lengths: Any = args[0]
        parts = lengths.args[0] if op_name(lengths) == "cat" and lengths.args else [lengths]
        return more >= 0 and any(_are_lengths(machine, part, node) for part in parts)
    if (read := read_from(number)) is not None:
        return _reaches_longest(machine, read, more, node)
    if name == "sym_max" or (name == "max" and len(args) == 2):
        return any(_reaches_longest(machine, arg, more, node) for arg in args)
    if name == "sym_sum" or (name in ("add", "sub") and not is_tensor(number)):
        terms: Any = args[0] if name == "sym_sum" else args
        (first, *rest), sign = sorted(terms, key=lambda term: isinstance(term, int)), -1 if name == "sub" else 1
        numbers = [sign * term for term in rest if isinstance(term, int)]
        known = len(numbers) == len(rest) and (name != "sub" or first is args[0])
        return known and _reaches_longest(machine, first, more + sum(numbers), node)
    if name == "mul" and len(args) == 2:  # what is rounded up to a multiple: (n + k - 1) // k * k
        by, whole = args if isinstance(args[0], int) else args[::-1]
        rounded = isinstance(whole, fx.Node) and op_name(whole) == "floor_divide" and whole.args[1] == by
        inner = whole.args[0] if rounded and isinstance(by, int) and by > 0 else None
        return inner is not None and _reaches_longest(machine, inner, more - (by - 1), node)
    return False


def _are_lengths(machine: Machine, vector: fx.Node, node: fx.Node) -> bool:
    """Is a vector that of the lengths of all documents?"""
    root, offset, _ = boundary_vector(vector)
    if (
        offset
        or machine.boundaries is None
        or not statically_known_true(example(vector).shape[0] == example(root).shape[0])
    ):
        return False
    return documents_of_lengths(machine, vector, node) == machine.boundaries


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
    check_width(machine, lacking.width, own_length(machine.boundaries))
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
