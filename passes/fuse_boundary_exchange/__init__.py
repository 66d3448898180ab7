"""Replace the messages of a roll over a context-parallel group by one exchange.

Before (user code), on every rank::

    out = x.clone()                                              # [..., T / cp], this rank's zigzag shard
    for i in range(len(cu_seqlens) - 1):
        s, e = cu_seqlens[i] // cp, cu_seqlens[i + 1] // cp
        front, back = out[..., s:e].clone().chunk(2, dim=-1)
        ...                                                      # roll both, isend their first tokens to neighbours,
        ...                                                      # irecv what goes to their ends, wait, fill
        out[..., s:e] = torch.cat([front, back], dim=-1)

Before (FX, from `packpass.capture`): two traced iterations between marker ops, messages as `packpass.capture.p2p`.
After::

    (out,) = packpass.cp_packed_roll([x], cu_seqlens, [0], [-1], [-1], [0], [False], group, cp, rank)

The same for shards of one piece, where only the first or the last slots of a document's shard go to a neighbour.

Why it is safe: an iteration is run on a machine that knows which slots of the document every tensor holds (`machine`);
what it leaves, sends and receives must be this rank's part of a roll by as many slots as a message has, or fewer
(`canonical`), for every length of a chunk that has so many; both traced iterations must do the same; and what any loop
over documents must satisfy is checked as for any other. Every rank proves its own program; if each does its part,
together they roll the row. Lengths that do not divide by 2 * cp, which eager cuts in unequal chunks, are an error that
names the document, and so are documents that have slots, but fewer than go to a neighbour. Where eager raises because
it selects a slot of a document without slots, that document is left alone.

Messages of all documents in a list come as if each document had sent its own (`packpass.capture.message_lists`); loops
that fill such lists, or go over what has been received, are one with the loop that sends (`passes.joined_loops`). Slots
that are cut out of the row by their numbers are a document's own wherever it has slots, which is checked (`lengths`).

Does not handle (each refused by a stable code): messages that are not those of a roll (``not-a-roll``), several groups,
tags, an order that differs between peers (``message-order``), requests that nobody waits for (``message-wait``),
gradients of what stays on the rank, while what is received has none (``message-gradient``). What a body computes on
documents before it sends them, on rolled ones, or on what it has received beside them, becomes a loop of its own
(`fission`, `apart`, `beside`) or is refused (``no-rule``).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.layout.sources import SAME_BOUNDARIES
from packpass.semantics import example, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.pointwise import whole_divisor
from passes import cp_rolls
from passes.building import Builder
from passes.context import PassContext
from passes.document_loops.aliasing import used_beside_written
from passes.document_loops.fission import divide_before, divided_by, prefixes, split
from passes.document_loops.integers import Boundaries
from passes.document_loops.op_names import name_of
from passes.document_loops.rewrite import Made, rewrite
from passes.document_loops.run import NAME as VECTORIZE
from passes.document_loops.run import numbered, run_loop, run_loops
from passes.fuse_boundary_exchange.apart import rolled
from passes.fuse_boundary_exchange.beside import Halos, halos, put_rolls
from passes.fuse_boundary_exchange.decide import SHARED, Decided, decide, groups_seen, has_messages
from passes.fuse_boundary_exchange.functions import exchanges_in, is_sent
from passes.fuse_boundary_exchange.lengths import check_needs
from passes.fuse_boundary_exchange.machine import RULES
from passes.joined_loops import fillers, follower, join
from passes.loops import find
from passes.nodes import copy_of, or_as_it_was
from passes.prune import prune
from passes.refused import Refused
from passes.split_parts import in_their_place

NAME = "fuse_boundary_exchange"
CHECK = torch.ops.packpass.check_cu_seqlens.default
log = logging.getLogger(f"packpass.passes.{NAME}")


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite every captured loop of one graph that sends messages."""
    results: list[Rewrite | Refusal] = []
    rewritten: list[_Made] = []
    before = _rolls(gm.graph)
    groups = groups_seen(gm.graph)
    for number in [loop.id for loop in find(gm.graph) if has_messages(loop)]:
        if not any(loop.id == number for loop in find(gm.graph)):
            continue  # it is one with another
        made = _run_one(gm, number, groups, context)
        for other in (_run_joined, _run_joined_in_parts, _run_parts, _run_split):
            if isinstance(made[-1], Refusal):
                made = other(gm, number, groups, context) or made
        results += [item for item in made if not isinstance(item, _Made)]
        rewritten += [item for item in made if isinstance(item, _Made)]
    if not rewritten:
        return results
    ours = {node for name, node in _rolls(gm.graph).items() if name not in before}
    found = cp_rolls.exchanges(gm.graph, cp_rolls.find(gm.graph, ours))
    for i, exchange in enumerate(found):
        cp_rolls.put_together(gm.graph, exchange, found[i + 1 :])
    gm.delete_all_unused_submodules()
    gm.graph.lint()
    gm.recompile()
    after = f"cp_packed_roll, {len(found)} exchange{'s' if len(found) > 1 else ''} in the graph"
    what = "messages per document"
    return results + [Rewrite(NAME, m.location, what, after, m.facts, m.claims) for m in rewritten]


@dataclasses.dataclass(frozen=True)
class _Made:
    """A loop that became a roll, and what the report and the other ranks are told of it."""

    location: str
    facts: dict[str, Any]
    claims: Claims


_Found = list[Rewrite | Refusal | _Made]


def _run_one(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    location = context.locations.get(number, "<unknown>")
    try:
        decided = decide(gm.graph, numbered(gm.graph, number), groups)
        made = _rewrite(gm.graph, decided)
    except Refused as refused:
        reason, line = str(refused), location_of_node(refused.node)
        if line and line != location:
            reason += f" (at {line})"
        return [Refusal(NAME, refused.code, reason, location)]
    return [_made(decided, location, made.facts, made.claims)]


def _made(found: Decided | Halos, location: str, facts: dict[str, Any], claims: Claims) -> _Made:
    rolls, said = _facts(found)
    about = {"source": "loop", "boundaries": found.cu.name, **facts, "group_size": found.group.size}
    claims = dataclasses.replace(claims, agreement=(said,), boundary_source="loop")
    return _Made(location, {**about, "fields": rolls, "agreement": said}, claims)


def _run_whole_or_parts(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    made = _run_one(gm, number, groups, context)
    return (_run_parts(gm, number, groups, context) or made) if isinstance(made[-1], Refusal) else made


def _run_parts(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    """The loop as several, of which one after the other only computes on documents, or only rolls them; nothing, and
    the graph as it was, where that does not help."""
    shared = used_beside_written(gm.graph, numbered(gm.graph, number))
    for apart in (_computed_before, _rolled_before, _received_before) if context.options.runs(VECTORIZE) else ():
        graph = copy_of(gm.graph)
        found = apart(gm, number, groups, context)
        if found and not shared:
            return found
        gm.graph = graph
        if found:  # each part sees only its own; and a loop with messages cannot be run as it was instead
            return [Refusal(NAME, "aliasing", SHARED, context.locations.get(number, "<unknown>"))]
    return []


def _run_split(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    """The loop over parts of a row that is split by lengths, with documents instead; nothing if that does not help."""

    def attempt() -> _Found:
        found = _run_whole_or_parts(gm, number, groups, context)
        return [] if isinstance(found[-1], Refusal) else found

    return in_their_place(gm, number, attempt)


def _run_joined(
    gm: fx.GraphModule,
    number: int,
    groups: Sequence[str],
    context: PassContext,
    run_: Callable[[fx.GraphModule, int, Sequence[str], PassContext], _Found] = _run_one,
    most: bool = False,
) -> _Found:
    """The loop as one with those that fill the lists that it goes over, with those that have messages as well, or with
    all, and with as few of those that go over its lists as it takes, or as ``most``; nothing if that does not help."""
    loop, known = numbered(gm.graph, number), set[tuple[int, ...]]()
    others = [other for other in find(gm.graph) if other.id != number]
    for more in ([], [other for other in others if has_messages(other)], others):
        numbers = tuple(part.id for part in fillers(gm.graph, [loop, *more]))
        if numbers in known or (len(numbers) < 2 and follower(gm.graph, loop) is None):
            continue
        known.add(numbers)
        where = _at(context, numbers[0], number)
        found = or_as_it_was(gm, functools.partial(_joined, gm, numbers, groups, where, run_, most))
        if found:
            return found
    return []


def _joined(
    gm: fx.GraphModule,
    numbers: Sequence[int],
    groups: Sequence[str],
    context: PassContext,
    run_: Callable[..., _Found],
    most: bool,
) -> _Found:
    first = numbered(gm.graph, numbers[0])
    for number in numbers[1:]:
        if not join(gm, first, numbered(gm.graph, number)):
            return []
        first = numbered(gm.graph, first.id)
    joined = len(numbers) > 1
    while True:
        second = follower(gm.graph, first)
        if not joined or (most and second is not None):
            if second is not None and join(gm, first, second):
                first, joined = numbered(gm.graph, first.id), True
                continue
        found = run_(gm, first.id, groups, context) if joined else []
        if found and not isinstance(found[-1], Refusal):
            return found
        if most or second is None or not join(gm, first, second):
            return []
        first = numbered(gm.graph, first.id)


def _run_joined_in_parts(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    """The same, and what they are as one is several others again."""
    for most in (True, False):
        found = _run_joined(gm, number, groups, context, _run_whole_or_parts, most)
        if found:
            return found
    return []


def _computed_before(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    """What is sent is computed from the document: for the whole row, in front."""
    # A new dimension is that of a slot, which a message may need, or of a document, which is computed then.
    given = {"unsqueeze", "squeeze"} & {name_of(node) for node in numbered(gm.graph, number).nodes}
    for moves in (operations(), operations() - given) if given else (operations(),):
        found = or_as_it_was(gm, functools.partial(_computed, gm, number, groups, context, moves))
        if found:
            return found
    return []


def _computed(
    gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext, moves: frozenset[str]
) -> _Found:
    """The same; ``moves`` are the operations that are not moved in front."""
    loop = numbered(gm.graph, number)
    # Some ranks only receive, where shards are of one piece.
    ways = (is_sent, exchanges_in(loop))
    found = next((found for way in ways if (found := prefixes(loop, way, moves))), [])
    if not found:
        return []
    before = split(gm.graph, loop, found)
    inner = _at(context, before, number)
    computed = run_loop(gm.graph, before, inner)
    if isinstance(computed, Refusal):
        return []
    return _messages_of(gm, number, groups, inner, [computed])


def _rolled_before(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    """Rolled documents are used in the loop: they are rolled in front."""
    loop = numbered(gm.graph, number)
    found = rolled(loop, groups)
    if not found:
        return []
    before = split(gm.graph, loop, found)
    inner = _at(context, before, number)
    made = _run_one(gm, before, groups, inner)
    if isinstance(made[-1], Refusal):
        return []
    _cut_alike(gm.graph, number)
    return _messages_of(gm, number, groups, inner, made)


def _received_before(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext) -> _Found:
    """What is received is used beside the document: documents are rolled in front, and give these slots."""
    loop = numbered(gm.graph, number)
    found = halos(loop, groups)
    if found is None:
        return []
    try:
        put_rolls(gm.graph, loop, found)
    except Refused:
        return []
    _cut_alike(gm.graph, number)
    location = context.locations.get(number, "<unknown>")
    made = _made(found, location, {}, Claims(captured_loop=True))
    return _messages_of(gm, number, groups, context, [made])


def _cut_alike(graph: fx.Graph, number: int) -> None:
    """Documents of rows that rewrites have made, by the boundaries of the program: the exchange checks that they fit,
    so that they are those, and that one loop is not cut by two sets of them."""
    divide_before(graph, {}, numbered(graph, number).nodes)
    known: dict[Any, fx.Node] = {}
    for node in [node for node in numbered(graph, number).nodes if node.target is markers.SEGMENT]:
        cu = _of_program(node.args[1])
        by = whole_divisor(cu, cu.args[1] if len(cu.args) > 1 else None)
        if by is not None:  # those of a shard
            cu = known.setdefault((_of_program(cu.args[0]), by), cu)
        node.args = (node.args[0], cu, *node.args[2:])


def _of_program(cu: Any) -> Any:
    """The vector that boundaries are those of."""
    while op_name(cu) in SAME_BOUNDARIES and not mutated_after(cu.graph, cu.args[0], cu):
        cu = cu.args[0]
    return cu


def _messages_of(gm: fx.GraphModule, number: int, groups: Sequence[str], context: PassContext, done: _Found) -> _Found:
    """``done``, and what becomes of the rest of the loop; nothing if it cannot be rewritten whole: what sends messages
    runs as it is written, or not at all."""
    if not has_messages(numbered(gm.graph, number)):
        rest = run_loops(gm, number, context)
        return [] if isinstance(rest[-1], Refusal) else [*done, *rest]
    found = _run_one(gm, number, groups, context)
    for apart in (_rolled_before, _received_before):
        if not found or isinstance(found[-1], Refusal):
            found = or_as_it_was(gm, functools.partial(apart, gm, number, groups, context))
    return [*done, *found] if found else []


def _at(context: PassContext, before: int, number: int) -> PassContext:
    """Two loops of one place in the user's code."""
    where = context.locations.get(number, "<unknown>")
    return dataclasses.replace(context, locations={**context.locations, before: where})


def _rolls(graph: fx.Graph) -> dict[str, fx.Node]:
    """Rolls over ranks by name, which is the same in a copy of the graph."""
    return {node.name: node for node in graph.nodes if node.target is cp_rolls.CP_ROLL}


def operations() -> frozenset[str]:
    """The operations that a body may do with its document between messages."""
    return frozenset(name for name in RULES if isinstance(name, str))


def _facts(found: Decided | Halos) -> tuple[list[str], str]:
    """The rolls of the fields, and what every rank must have found, for the fill is known where documents end."""
    group, fields = found.group, found.fields
    rolls = [f"shift={f.shift} dim={f.dim} {str(example(f.node).dtype).removeprefix('torch.')}" for f in fields]
    rolls = [f"{text} with gradient" if f.differentiable else text for f, text in zip(fields, rolls, strict=True)]
    rolls = [f"{text} of no empty document" if f.one_too_many else text for f, text in zip(fields, rolls, strict=True)]
    pieces = "" if found.form.chunks == 2 else ", shards of one piece"
    text = f"cp_packed_roll over {group.size} ranks{pieces}, boundaries of {'a shard' if found.sharded else 'the row'}"
    return rolls, f"{text}: {'; '.join(rolls)}"


# === Transform ===============================================================================================


def _rewrite(graph: fx.Graph, decided: Decided) -> Made:
    """The loop by the rewrite of all loops over documents, which knows boundaries of the row itself only."""
    cu, begin = decided.cu, decided.loop.loop.iterations[0][0]
    local = cu
    if not decided.sharded:
        local = divided_by(graph, cu, decided.group.size, begin)
    field, checked = decided.fields[0], set(graph.nodes)
    check_needs(Builder(graph, begin, field.node), local, decided.needs, field.node, field.dim)
    known = set(graph.nodes)
    try:
        made = rewrite(graph, dataclasses.replace(decided.loop, boundaries=Boundaries(local)), NAME)
    except Refused:
        for node in sorted(known - checked, reverse=True):
            graph.erase_node(node)
        prune(graph, [local])
        raise
    for node in [n for n in graph.nodes if n not in known and n.target is CHECK]:
        graph.erase_node(node)  # the op checks the boundaries, and more
    prune(graph, [local])
    return made
