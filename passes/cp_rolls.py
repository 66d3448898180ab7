"""One exchange for all context-parallel rolls of a graph: every field, every depth of a field read from its source.

Before: ``y = roll(x, -1); z = roll(y, -1); m = roll(mask, -1)``, three exchanges, the second after the first. After:
``y, z, m = cp_packed_roll([x, mask], fields=[0, 0, 1], shifts=[-1, -2, -1])``, one exchange where the first one stood.

What comes in at the ends of documents is known in one of two ways, and rolls are only put together with their like:
to every rank, by the arguments ``fills`` and ``wraps``, or to the ranks that hold them, by ``end_fills`` and
``end_wraps``. Which rolls are put together must not depend on what only one rank knows: it would be another program
there. A source that is made later than the first exchange begins another one.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from packpass.ops._cp_packed_roll import LONGEST
from packpass.semantics import example, op_name
from packpass.semantics.build import NO_VALUE
from packpass.semantics.effects import effects_of, grad_mode_changes, mutated_after
from packpass.semantics.pointwise import whole_divisor
from passes.building import Builder
from passes.nodes import SNAPSHOT, snapshot_of
from passes.prune import prune

CP_ROLL = torch.ops.packpass.cp_packed_roll.default


@dataclasses.dataclass(eq=False)
class Member:
    """One roll: the op, the node of its result, and how it is read from ``source``.

    ``common``: ``fill`` and ``wrap`` are known to every rank, not only to one that holds the ends of documents.
    """

    op: fx.Node
    result: fx.Node
    source: fx.Node
    shift: int
    dim: int
    fill: Any
    wrap: bool
    common: bool
    parent: Member | None = None
    """The roll of the depth before, if this one reads that one's source."""
    forms: tuple[fx.Node, ...] = ()
    """What is made of the roll of the depth before to be rolled again: its documents alone, or others' slots beside."""

    @property
    def path(self) -> tuple[Member, ...]:
        """All depths up to this one."""
        return (*(self.parent.path if self.parent is not None else ()), self)


@dataclasses.dataclass(eq=False)
class Exchange:
    """Members that one op can do where the first of them stands."""

    members: list[Member]

    @property
    def first(self) -> fx.Node:
        return self.members[0].op


def find(graph: fx.Graph, among: Collection[fx.Node] | None = None) -> list[Member]:
    """The rolls of one field by one distance, in graph order, each read from as far back as possible.

    Args:
        among: the rolls of a pass that just made them, whose ends only who holds them knows; None: those with common
            fills.
    """
    found: dict[fx.Node, Member] = {}
    for node in graph.nodes:
        if node.target is not CP_ROLL or len(node.args[3]) != 1 or len(node.users) != 1:
            continue
        common = all(end is None for end in node.args[10:12])
        if node not in among if among is not None else not common:
            continue
        (result,) = node.users
        (given,), _, _, (shift,), (dim,) = node.args[:5]
        (fill,), (wrap,) = node.args[5:7] if common else node.args[10:12]
        if op_name(result) != "getitem" or not _settled(shift, dim):
            continue
        member = Member(node, result, given, shift, dim % example(given).dim(), fill, wrap, common)
        source, forms = _before_clones(graph, given, node), []
        member.source = source
        while source not in found and (form := _of_documents(source, node)) is not None:
            forms.append(source)
            source = _before_clones(graph, form, node)
        inner = found.get(source)
        if inner is not None and _adds_up(inner, member) and not mutated_after(graph, source, source.next, node):
            steps = (*inner.forms, *reversed(forms))
            if not any(mutated_after(graph, held, step, node) for step in steps for held in step.all_input_nodes):
                member.source, member.shift, member.parent = inner.source, inner.shift + shift, inner
                member.forms = _last_of_each(steps)
        found[result] = member
    return list(found.values())


def place_of(roll: fx.Node) -> tuple[Any, ...]:
    """Group, its size, this process's rank in it, and whether shards are zigzags (not of one piece)."""
    return (*roll.args[7:10], roll.args[12])


def _settled(*numbers: Any) -> bool:
    return all(type(n) is int for n in numbers)


def _before_clones(graph: fx.Graph, node: fx.Node, reader: fx.Node) -> fx.Node:
    """The tensor of which ``node`` is a copy when ``reader`` reads it, and which then still has these values."""
    while op_name(node) == "clone" and len(node.args) == 1 and not node.kwargs:
        source: Any = node.args[0]
        if mutated_after(graph, node, node.next, reader) or mutated_after(graph, source, node, reader):
            break
        if not same_gradient(node, source, reader):
            break
        node = source
    return node


def _of_documents(node: fx.Node, roll: fx.Node) -> fx.Node | None:
    """The row of which ``node`` has all documents' slots, of rolls that nothing differentiates: ``where`` a slot is one
    of a document, or these alone. None if it is something else."""
    if example(node).requires_grad or mutated_after(node.graph, node, node, roll):
        return None
    given: Any = (*node.args, None, None, None)[:3]
    dims: Any = roll.args[4]
    rank = example(node).dim()
    if op_name(node) == "where":
        mask, row, _ = given
        at = rank - example(mask).dim()
        while op_name(mask) == "unsqueeze" and mask.args[1:] == (-1,):
            mask = mask.args[0]
        bounds = mask.args[0] if op_name(mask) == "packpass::window_mask" and mask.args[2:] == (0, 0) else None
    elif op_name(node) == "packpass::documents_only":
        row, bounds, at = given
    else:
        return None
    if at != dims[0] % rank or not isinstance(row, fx.Node) or not isinstance(bounds, fx.Node):
        return None
    return row if not example(row).requires_grad and _are_of_shards(bounds, roll) else None


def _are_of_shards(bounds: fx.Node, roll: fx.Node) -> bool:
    """Are these the boundaries of this rank's shards of the documents that are rolled?"""
    given: tuple[Any, Any] = (roll.args[1], bounds)
    whole, shards = (n.args[0] if n.target is SNAPSHOT else n for n in given)
    size = place_of(roll)[1]
    if op_name(whole) == "mul":
        return bool(whole.args == (shards, size))
    by = shards.args[1] if len(shards.args) > 1 else None
    return bool(whole_divisor(shards, by) == size and shards.args[0] is whole)


def _last_of_each(steps: tuple[fx.Node, ...]) -> tuple[fx.Node, ...]:
    """Of several rows with the same slots of documents, one made of the other, only the last is seen."""
    names = [*map(op_name, steps), None]
    return tuple(step for step, pair in zip(steps, pairwise(names), strict=True) if set(pair) != {"where"})


_BEGINS = "packpass: a row of documents is cut by boundaries that do not begin with 0, and so are not its own"


def _in_form(build: Builder, rolled: fx.Node, member: Member) -> fx.Node:
    """The roll of the first row as that of the row that it was: with the slots of that which are no document's."""
    for form in member.forms:
        if op_name(form) == "where":
            rolled = build.call(torch.where, form.args[0], rolled, form.args[2])
        else:  # where the first document begins with the row, they lie in both at the same places
            first = build.call(operator.eq, build.call(operator.getitem, form.args[1], 0), 0)
            build.call(torch._assert_async, first, _BEGINS, fake=NO_VALUE)
            size = build.call(torch.ops.aten.sym_size.int, form, form.args[2])
            rolled = build.call(torch.narrow, rolled, form.args[2], 0, size)
            rolled = build.call("contiguous", rolled, method=True)
    return rolled


def _adds_up(inner: Member, outer: Member) -> bool:
    """Two rolls one way over the same boundaries and ranks, which the source of the first still has at the second.

    Not around documents: rank 0 would have to send, for a slot outside, what another rank holds. The other ranks do not
    know of it, so the ranks disagree about their exchanges, and say so. Rolls with common fills need the same one: a
    slot that either fills is one that their sum fills.
    """
    graph, place = inner.op.graph, place_of(inner.op)
    cu: Any = inner.op.args[1]
    if inner.wrap or outer.wrap or inner.shift * outer.shift <= 0 or inner.dim != outer.dim:
        return False
    if inner.common != outer.common or (inner.common and not same_fill(inner.fill, outer.fill)):
        return False
    if abs(inner.shift + outer.shift) > LONGEST:
        return False
    if not _same_boundaries(outer.op.args[1], cu) or place_of(outer.op) != place:
        return False
    if not same_gradient(inner.result, inner.source, outer.op):
        return False
    sources = (*_made_from(cu), inner.source)
    return not any(mutated_after(graph, node, inner.op, outer.op) for node in sources)


def same_fill(a: Any, b: Any) -> bool:
    """Bit for bit: NaN is itself, and -0.0 is not 0.0."""
    return type(a) is type(b) and repr(a) == repr(b)


def same_gradient(result: Any, source: Any, reader: fx.Node) -> bool:
    """Does a gradient get from ``reader`` to ``source`` if, and only if, it does so by way of ``result``?"""
    if not example(source).requires_grad:
        return not example(result).requires_grad
    return example(result).requires_grad and not grad_mode_changes(result, reader)


def _same_boundaries(a: Any, b: Any) -> bool:
    """One node, or two that were made alike of one (for another device, from the boundaries of shards); a copy for the
    backward is as good as what it was made of, while that is not written."""
    a, b = (n.args[0] if n.target is SNAPSHOT else n for n in (a, b))
    if a is b:
        return True
    if not (_is_made(a) and _is_made(b)) or (a.op, a.target) != (b.op, b.target):
        return False
    if len(a.args) != len(b.args) or a.args[1:] != b.args[1:] or a.kwargs != b.kwargs:
        return False
    return _same_boundaries(a.args[0], b.args[0])


def _is_made(node: fx.Node) -> bool:
    """Computed from another tensor, and from nothing else?"""
    if node.op not in ("call_function", "call_method") or len(node.all_input_nodes) != 1:
        return False
    return node.all_input_nodes[0] is node.args[0] and effects_of(node).pure


def _made_from(cu: Any) -> tuple[fx.Node, ...]:
    """The boundaries and what they were made from."""
    return (cu, *_made_from(cu.args[0])) if cu.target is SNAPSHOT or _is_made(cu) else (cu,)


def exchanges(graph: fx.Graph, members: list[Member]) -> list[Exchange]:
    """Put every roll into the first exchange that it can be part of."""
    found: list[Exchange] = []
    for member in members:
        for exchange in found:
            if _may_join(graph, member, exchange):
                exchange.members.append(member)
                break
        else:
            found.append(Exchange([member]))
    return found


def _may_join(graph: fx.Graph, member: Member, exchange: Exchange) -> bool:
    first, op, place = exchange.first, member.op, place_of(exchange.first)
    cu: Any = first.args[1]
    if not _same_boundaries(op.args[1], cu) or place_of(op) != place or not _undetached(member.source) < first:
        return False
    if member.common != exchange.members[0].common:
        return False
    if example(member.source).device != example(exchange.members[0].source).device:
        return False
    if _slots(member) != _slots(exchange.members[0]) or grad_mode_changes(first, op):
        return False
    if mutated_after(graph, member.source, first, op):
        return False
    ours, theirs = _made_from(cu), _made_from(op.args[1])
    since = min([first, *set(ours).symmetric_difference(theirs)])  # what was made twice was made of the same values
    return not any(mutated_after(graph, node, since, op) for node in {*ours, *theirs})


def _undetached(source: fx.Node) -> fx.Node:
    """What a detached row is the same memory as: the row may be detached again where an earlier exchange stands."""
    given = source.args[0] if op_name(source) == "detach" else source
    return given if isinstance(given, fx.Node) else source


def _slots(member: Member) -> Any:
    return example(member.source).shape[member.dim]


@dataclasses.dataclass(eq=False)
class _Layout:
    """The one op: a member for each field (its source and dim), ``(field, member)`` for each roll, results' places."""

    sources: list[Member]
    rolls: list[tuple[int, Member]]
    places: dict[Member, int]


def _with_ends(members: list[Member]) -> _Layout:
    """A field has rolls of all depths up to its largest, for rank 0 sends one fill for each."""
    sources: list[Member] = []
    rolls: list[tuple[int, Member]] = []
    places: dict[Member, int] = {}
    entries: dict[Member, int] = {}
    for member in members:
        entry = entries.get(member.parent) if member.parent is not None else None
        if entry is None or any(e == entry and m.shift == member.shift for e, m in rolls):
            # Depths of its own: two rolls of one tensor may have different fills, as rank 0 alone knows.
            entry = len(sources)
            sources.append(member)
            rolls += [(entry, m) for m in member.path[:-1]]
        entries[member] = entry
        places[member] = len(rolls)
        rolls.append((entry, member))
    return _Layout(sources, rolls, places)


def _common(members: list[Member]) -> _Layout:
    """One field for each tensor and dimension that is rolled."""
    fields: dict[tuple[fx.Node, int], int] = {}
    sources: list[Member] = []
    for member in members:
        if (member.source, member.dim) not in fields:
            fields[member.source, member.dim] = len(sources)
            sources.append(member)
    rolls = [(fields[m.source, m.dim], m) for m in members]
    return _Layout(sources, rolls, {m: i for i, m in enumerate(members)})


# === Transform ===============================================================================================


def put_together(graph: fx.Graph, exchange: Exchange, later: list[Exchange]) -> None:
    """One op in the place of the first; ``later`` ones may read its results."""
    layout = _common(exchange.members) if exchange.members[0].common else _with_ends(exchange.members)
    first = exchange.first
    *place, zigzag = place_of(first)
    build = Builder(graph, first, exchange.members[0].source)
    fills, wraps = [m.fill for _, m in layout.rolls], [m.wrap for _, m in layout.rolls]
    unknown = [0] * len(fills), [False] * len(fills)
    ends = ((fills, wraps), (None, None)) if exchange.members[0].common else (unknown, (fills, wraps))
    cu: Any = first.args[1]
    if cu.target is not SNAPSHOT and any(m.op.args[1].target is SNAPSHOT for m in exchange.members):  # type: ignore[union-attr]
        cu = snapshot_of(cu, first, build.call)
    sources = [
        m.source if m.source < first else build.call("detach", _undetached(m.source), method=True)
        for m in layout.sources
    ]
    outs = build.call(
        CP_ROLL, sources, cu, [entry for entry, _ in layout.rolls],
        [m.shift for _, m in layout.rolls], [m.dim for m in layout.sources], *ends[0], *place, *ends[1],
        zigzag,
    )  # fmt: skip
    outs.meta["stack_trace"] = exchange.members[0].result.meta.get("stack_trace", "")
    for member in exchange.members:
        new = build.call(operator.getitem, outs, layout.places[member])
        if example(new).requires_grad and not example(member.result).requires_grad:
            new = build.call("detach", new, method=True)  # of all results of an op, some may have a gradient
        new = _in_form(Builder(graph, member.result, member.result), new, member)
        new.meta.update(member.result.meta)
        member.result.replace_all_uses_with(new)
        for reader in (m for other in later for m in other.members if m.source is member.result):
            reader.source = new
    for member in reversed(exchange.members):
        inputs = member.op.all_input_nodes
        graph.erase_node(member.result)
        graph.erase_node(member.op)
        prune(graph, inputs)
