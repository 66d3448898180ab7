"""One exchange for all rolls of a graph: every field, and every depth of a field read from its source.

Before: ``y = roll(x, -1); z = roll(y, -1); m = roll(mask, -1)``, three exchanges, the second after the first. After:
``y, z, m = cp_packed_roll([x, mask], fields=[0, 0, 1], shifts=[-1, -2, -1])``, one exchange where the first one stood.

Which rolls are put together must not depend on what only one rank knows, such as a fill: it would be another program
there. A source that is made later than the first exchange begins another one.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from torch import fx

from packpass.layout.mutation import mutated_after
from packpass.layout.names import example, op_name
from passes.building import Builder
from passes.fuse_boundary_exchange.terms import CP_ROLL
from passes.prune import prune
from passes.vectorize_segments.rewrite import grad_mode_changes


@dataclasses.dataclass(eq=False)
class Member:
    """One roll as the loop's rewrite left it: the op, the node of its result, and how it is read from ``source``."""

    op: fx.Node
    result: fx.Node
    source: fx.Node
    shift: int
    dim: int
    fill: Any
    wrap: bool
    parent: Member | None = None
    """The roll of the depth before, if this one reads that one's source."""

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


def find(graph: fx.Graph, rule: str) -> list[Member]:
    """The rolls that were made by this pass, in graph order, each read from as far back as possible."""
    found: dict[fx.Node, Member] = {}
    for node in graph.nodes:
        if node.target is not CP_ROLL or node.meta.get("packpass") != rule or len(node.args[0]) != 1:
            continue
        (result,) = node.users
        (given,), _, _, (shift,), (dim,) = node.args[:5]
        (fill,), (wrap,) = node.args[10:12]
        member = Member(node, result, given, shift, dim, fill, wrap)
        source = _before_clones(graph, given, node)
        member.source = source
        inner = found.get(source)
        if inner is not None and _adds_up(inner, member) and not mutated_after(graph, source, source.next, node):
            member.source, member.shift, member.parent = inner.source, inner.shift + shift, inner
        found[result] = member
    return list(found.values())


def _before_clones(graph: fx.Graph, node: fx.Node, reader: fx.Node) -> fx.Node:
    """The tensor of which ``node`` is a copy when ``reader`` reads it, and which then still has these values."""
    while op_name(node) == "clone" and len(node.args) == 1 and not node.kwargs:
        source: Any = node.args[0]
        if mutated_after(graph, node, node.next, reader) or mutated_after(graph, source, node, reader):
            break
        node = source
    return node


def _adds_up(inner: Member, outer: Member) -> bool:
    """Two rolls one way over the same boundaries and ranks, which the source of the first still has at the second.

    Not around documents: rank 0 would have to send, for a slot outside, what another rank holds. The other ranks do not
    know of it, so the ranks disagree about their exchanges, and say so.
    """
    graph, place = inner.op.graph, inner.op.args[7:10]
    cu: Any = inner.op.args[1]
    if inner.wrap or outer.wrap or inner.shift * outer.shift <= 0 or inner.dim != outer.dim:
        return False
    if not _same_boundaries(outer.op.args[1], cu) or outer.op.args[7:10] != place:
        return False
    sources = (*_made_from(cu), inner.source)
    return not any(mutated_after(graph, node, inner.op, outer.op) for node in sources)


def _same_boundaries(a: Any, b: Any) -> bool:
    """One node, or two that the rolls' own rewrites made alike (for another device, from the boundaries of shards)."""
    if a is b:
        return True
    made = "packpass" in a.meta and "packpass" in b.meta and a.target == b.target and len(a.args) == len(b.args)
    if not made or a.args[1:] != b.args[1:] or a.kwargs != b.kwargs:
        return False
    return _same_boundaries(a.args[0], b.args[0])


def _made_from(cu: Any) -> tuple[fx.Node, ...]:
    """The boundaries and what the rewrites made them from."""
    return (cu, *_made_from(cu.args[0])) if "packpass" in cu.meta else (cu,)


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
    first, op, place = exchange.first, member.op, exchange.first.args[7:10]
    cu: Any = first.args[1]
    if not _same_boundaries(op.args[1], cu) or op.args[7:10] != place or not member.source < first:
        return False
    if example(member.source).device != example(exchange.members[0].source).device:
        return False
    if _slots(member) != _slots(exchange.members[0]) or grad_mode_changes(first, op):
        return False
    sources = (*_made_from(cu), member.source)
    return not any(mutated_after(graph, node, first, op) for node in sources)


def _slots(member: Member) -> Any:
    return example(member.source).shape[member.dim]


# === Transform ===============================================================================================


def put_together(graph: fx.Graph, exchange: Exchange, later: list[Exchange]) -> None:
    """One op in the place of the first; ``later`` ones may read its results."""
    sources: list[Member] = []
    rolls: list[tuple[int, Member]] = []
    places: dict[Member, int] = {}
    entries: dict[Member, int] = {}
    for member in exchange.members:
        entry = entries.get(member.parent) if member.parent is not None else None
        if entry is None or any(e == entry and m.shift == member.shift for e, m in rolls):
            # Depths of its own: two rolls of one tensor may have different fills, as rank 0 alone knows.
            entry = len(sources)
            sources.append(member)
            rolls += [(entry, m) for m in member.path[:-1]]
        entries[member] = entry
        places[member] = len(rolls)
        rolls.append((entry, member))
    first = exchange.first
    place = first.args[7:10]
    build = Builder(graph, first, sources[0].source)
    outs = build.call(
        CP_ROLL, [m.source for m in sources], first.args[1], [entry for entry, _ in rolls],
        [m.shift for _, m in rolls], [m.dim for m in sources], [0] * len(rolls), [False] * len(rolls), *place,
        [m.fill for _, m in rolls], [m.wrap for _, m in rolls],
    )  # fmt: skip
    outs.meta["stack_trace"] = exchange.members[0].result.meta.get("stack_trace", "")
    for member in exchange.members:
        new = build.call(operator.getitem, outs, places[member])
        new.meta.update(member.result.meta)
        member.result.replace_all_uses_with(new)
        for reader in (m for other in later for m in other.members if m.source is member.result):
            reader.source = new
    for member in reversed(exchange.members):
        inputs = member.op.all_input_nodes
        graph.erase_node(member.result)
        graph.erase_node(member.op)
        prune(graph, inputs)
