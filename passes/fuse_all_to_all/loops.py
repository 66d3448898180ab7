"""Loops over documents with collectives in them: one exchange before the loop, and none in it.

Both traced iterations are run on blocks (`body`): what a document's tensor holds on every rank of the group. A tensor
that is, for every document, its part of ``cp_to_hp`` or ``hp_to_cp`` of an outer tensor is computed once for the whole
row; the loop then only cuts the documents out of it, which is for `vectorize_segments` to see through.

A loop that computes on documents before it sends them is split in two first (`fission`), and so is one that exchanges
what it got (`apart`).

Does not handle: shards other than a zigzag or one piece of every document, boundaries counted in other
units than tokens of the row or of a shard, hooks and in-place writes to what is sent or received, an autograd.Function
whose backward is not proven to be its gradient, two groups. Where ranks run different code before the exchange (other
columns, say), they do not agree and all raise; what a rank does with the result is its own affair.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.semantics import AUTOGRAD_FUNCTION, example, op_name, storage
from packpass.semantics.collectives import collective_name
from passes.context import PassContext
from passes.document_loops.aliasing import used_beside_written
from passes.document_loops.fission import Prefix, only_moves, prefixes, split
from passes.document_loops.integers import Boundaries
from passes.document_loops.machine import Machine
from passes.document_loops.run import NAME as VECTORIZE
from passes.document_loops.run import at_line_of, numbered, run_loop, with_separate_inputs
from passes.fuse_all_to_all.aliasing import no_aliasing
from passes.fuse_all_to_all.apart import First, exchanged, recount
from passes.fuse_all_to_all.body import Body
from passes.fuse_all_to_all.counted import boundaries_of, integers, only_checked
from passes.fuse_all_to_all.digest import program, steps
from passes.fuse_all_to_all.exchange import Exchange
from passes.fuse_all_to_all.gather import way_back_of
from passes.fuse_all_to_all.moves import MOVES
from passes.fuse_all_to_all.needed import collectives, live, needed
from passes.fuse_all_to_all.placed import exchanges_of
from passes.fuse_all_to_all.scalars import Counted, Lin, Scale
from passes.fuse_all_to_all.straight_find import GATHER
from passes.fuse_all_to_all.write import write
from passes.joined_loops import follower, join
from passes.loops import LoopFound, find
from passes.nodes import copy_of
from passes.refused import Refused
from passes.split_parts import in_their_place
from passes.turned_in_place import check_turned

NAME = "fuse_all_to_all"


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a loop's integers mean: vectors of boundaries in terms of one that counts the whole row, or shards."""

    base: fx.Node
    lengths: bool
    """Is it a vector of lengths, for ``x.split(lengths.tolist())``?"""
    counted: dict[Boundaries, Counted]
    scale: Scale


@dataclasses.dataclass(frozen=True)
class Decided:
    """Which tensors of each iteration become parts of which exchange."""

    loop: LoopFound
    cp: int
    group: str
    counts: Counts
    found: tuple[tuple[int, Exchange], ...]
    """Position among the body's steps, and what the tensor there is."""
    bodies: tuple[Body, ...]
    live: tuple[frozenset[fx.Node], ...]
    """Per iteration: what is still needed afterwards."""
    lengths: tuple[dict[fx.Node, bool], ...]
    """Per iteration: integers that are the length of the document, of its shard (True) or whole, counted on a tensor
    that will be gone."""
    collectives: str
    """Of one iteration, in words."""
    program: str


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite every captured loop that exchanges data between ranks."""
    results: list[Rewrite | Refusal] = []
    helped = context.options.runs(VECTORIZE)
    for number in [loop.id for loop in find(gm.graph)]:
        loop = next((loop for loop in find(gm.graph) if loop.id == number), None)
        if loop is None:  # it has become a part of the one in front of it
            continue
        size = _group_size(gm, loop)
        if size is not None:
            done = _rewritten(gm, number, size, context)
            if not _all_done(done):
                done = [*_of_split(gm, number, size, context)] or done
        else:  # what only cuts and moves documents that a later loop exchanges
            before = _feeds_exchange(gm, loop) and only_moves(loop, MOVES)
            done = _with_follower(gm, number, None, context) if before else []
        results += done
        if helped and len(_all_done(done)) == len(done) and _feeds_exchange(gm, numbered(gm.graph, number)):
            results.append(run_loop(gm.graph, number, context))
    if any(isinstance(r, Rewrite) for r in results):
        gm.delete_all_unused_submodules()
        gm.graph.lint()
        gm.recompile()
    return results


def _rewritten(gm: fx.GraphModule, number: int, size: int, context: PassContext) -> list[Rewrite | Refusal]:
    """The rewrites of one loop, as it is or as several; or why not, and the graph as it was."""
    behind = follower(gm.graph, numbered(gm.graph, number))
    early = behind is not None and only_moves(behind, MOVES)
    joined = _with_follower(gm, number, size, context) if early else []
    if joined:
        return joined
    whole = _run_one(gm, numbered(gm.graph, number), size, context)
    if isinstance(whole, Rewrite):
        return [whole]
    ways = ((_computed_before, _run_computed), (_exchanged_before, _run_exchanged))
    for find_first, run_first in ways if context.options.runs(VECTORIZE) else ():
        first: Any = find_first(gm, numbered(gm.graph, number), size)
        if not first:
            continue
        graph, separate = copy_of(gm.graph), used_beside_written(gm.graph, numbered(gm.graph, number))
        done = run_first(gm, number, first, size, context)
        rest = _all_done(_rewritten(gm, number, size, context)) if done else []
        if rest:
            return [*done, with_separate_inputs(rest[0], separate), *rest[1:]]
        gm.graph = graph
        break  # the other way would try the same again, and again for every exchange
    joined = [] if early else _with_follower(gm, number, size, context)
    return joined or [whole]


def _of_split(gm: fx.GraphModule, number: int, size: int, context: PassContext) -> list[Rewrite]:
    """The rewrites of a loop over parts of a row that is split by lengths, with documents instead."""
    return in_their_place(gm, number, lambda: _all_done(_rewritten(gm, number, size, context)))


def _with_follower(gm: fx.GraphModule, number: int, size: int | None, context: PassContext) -> list[Rewrite | Refusal]:
    """The same of the loop as one with the loop behind it that goes over its lists; none if that does not help."""
    first = numbered(gm.graph, number)
    second = follower(gm.graph, first)
    if second is None:
        return []
    graph = copy_of(gm.graph)
    if join(gm, first, second):
        size = size if size is not None else _group_size(gm, numbered(gm.graph, number))
        done = _rewritten(gm, number, size, context) if size else _with_follower(gm, number, None, context)
        if _all_done(done):
            return done
        gm.graph = graph
    return []


def _computed_before(gm: fx.GraphModule, loop: LoopFound, cp: int) -> list[Prefix]:
    """What is exchanged is computed from the document: for the whole row, in front."""
    return prefixes(loop, lambda node: bool(collectives(gm, [node])), MOVES)


def _run_computed(gm: fx.GraphModule, number: int, found: list[Prefix], cp: int, context: PassContext) -> list[Rewrite]:
    before = split(gm.graph, numbered(gm.graph, number), found)
    return _all_done([run_loop(gm.graph, before, at_line_of(context, before, number))])


def _exchanged_before(gm: fx.GraphModule, loop: LoopFound, cp: int) -> list[First]:
    """What is exchanged depends on what was: the first exchange is one of the whole row, in front."""
    machines = [integers(loop, which) for which in range(len(loop.iterations))]
    try:
        readings = _readings(loop, cp, machines)
    except Refused:
        return []
    for counts in readings:
        try:
            bodies = [_body(gm, loop, i, cp, counts, machine) for i, machine in enumerate(machines)]
        except Refused:  # as it was for the loop as a whole, which has said so
            continue
        found = exchanged(loop, bodies)
        if found and len(collectives(gm, found[0].prefix.nodes)) < len(collectives(gm, loop.iterations[0][1])):
            return found
    return []


def _run_exchanged(gm: fx.GraphModule, number: int, found: list[First], cp: int, context: PassContext) -> list[Rewrite]:
    recount(gm.graph, found)
    before = split(gm.graph, numbered(gm.graph, number), [first.prefix for first in found])
    inner = at_line_of(context, before, number)
    exchange = _run_one(gm, numbered(gm.graph, before), cp, inner)
    return [] if isinstance(exchange, Refusal) else _all_done([exchange, run_loop(gm.graph, before, inner)])


def _all_done(results: list[Rewrite | Refusal]) -> list[Rewrite]:
    done = [result for result in results if isinstance(result, Rewrite)]
    return done if len(done) == len(results) else []


def _run_one(gm: fx.GraphModule, loop: LoopFound, size: int, context: PassContext) -> Rewrite | Refusal:
    where = context.locations.get(loop.id, "<unknown>")
    try:
        decided = decide(gm, loop, size)
        separate = _separate_inputs(gm, decided)
        made = write(gm, decided)
    except Refused as refused:
        line = location_of_node(refused.node)
        at = f" (at {line})" if line and line != where else ""
        return Refusal(NAME, refused.code, f"{refused}{at}", where)
    said = tuple(f"{op} sections={s} program={decided.program}" for op, s in made)
    details: dict[str, Any] = {
        "source": "loop",
        "boundaries": decided.counts.base.name,
        "group": decided.group,
        "group_size": decided.cp,
        "sections": [[s.width for s in e.sections] for _, e in decided.found],
        "agreement": list(said),
    }
    if separate:
        details["separate_inputs"] = separate
    before = f"{decided.collectives} per document"
    claims = Claims(True, tuple(separate), agreement=said, group=decided.group, boundary_source="loop")
    return Rewrite(NAME, where, before, ", ".join(dict.fromkeys(op for op, _ in made)), details, claims)


def _separate_inputs(gm: fx.GraphModule, decided: Decided) -> list[str]:
    """Inputs of the graph that the loop writes and those that are exchanged: eager reads what earlier iterations wrote
    where they share memory in a later call, the exchange does not (see `find.separate_inputs`)."""
    written = decided.loop.written
    read = {storage(source.node) for _, exchange in decided.found for source in exchange.sources}
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder" and isinstance(example(n), torch.Tensor)]
    targets = {example(n).dtype for n in inputs if storage(n) in written}
    found = [n for n in inputs if storage(n) in written | read and example(n).dtype in targets]
    return [n.name for n in found] if any(storage(n) in read for n in found) and len(found) > 1 else []


def _feeds_exchange(gm: fx.GraphModule, loop: LoopFound) -> bool:
    """Does a later loop exchange the documents that this one puts in a list, or put them in a list that another one
    exchanges?"""
    taken = {user for collect in loop.collects for user in collect.users if user.target is markers.LIST_GET}
    users = [other for other in find(gm.graph) if other.id != loop.id and taken & other.nodes]
    return any(_group_size(gm, other) is not None or _feeds_exchange(gm, other) for other in users)


def _group_size(gm: fx.GraphModule, loop: LoopFound) -> int | None:
    """Ranks in the group of the loop's first exchange; None for a loop without one."""
    calls = collectives(gm, loop.iterations[0][1])
    told = calls[0].args[1] if calls and len(calls[0].args) > 1 else None
    if calls and collective_name(calls[0].target) == GATHER:
        return told if type(told) is int else None
    return len(told) if isinstance(told, (tuple, list)) and told else None


# === Deciding ================================================================================================


def decide(gm: fx.GraphModule, loop: LoopFound, cp: int) -> Decided:
    """Check every condition; raises `Refused`. Nothing here changes the graph."""
    if len(loop.iterations) != 2:
        raise Refused("not-captured", "the loop was not traced twice")
    check_turned(loop)
    texts = [program(gm, begin, body) for begin, body, _ in loop.iterations]
    if texts[0] != texts[1]:
        raise Refused("not-generic", "two iterations of the loop do different things")
    for node in loop.iterations[0][1]:
        if "_set_grad_enabled" in str(node.target):
            raise Refused("no-rule", "the loop body switches gradients on or off", node)
    machines = [integers(loop, i) for i in (0, 1)]
    if machines[0].skip is not None:
        raise Refused(
            "skip-condition", "documents that the loop skips would have to divide, too", loop.iterations[0][0]
        )
    refused: Refused | None = None
    for counts in _readings(loop, cp, machines):
        try:
            return _decide(gm, loop, cp, counts, machines)
        except Refused as again:
            refused = refused or again
    raise refused or Refused("unknown-bounds", "boundaries are divided by more than the group's size")


def _readings(loop: LoopFound, cp: int, machines: list[Machine]) -> list[Counts]:
    """What the loop's integers may mean: its boundaries count the whole row, or a shard. Raises `Refused`."""
    base, lengths, counted = boundaries_of(machines[0], loop)
    scales = [Scale(2 * cp, cp), Scale(2, 1), Scale(cp, cp, 1), Scale(1, 1, 1)]
    fitting = [scale for scale in scales if all((c.factor * scale.align).denominator == 1 for c in counted.values())]
    return [Counts(base, lengths, counted, scale) for scale in fitting]


def _body(gm: fx.GraphModule, loop: LoopFound, which: int, cp: int, counts: Counts, machine: Machine) -> Body:
    body = Body(gm, machine, counts.counted, counts.scale, cp)
    body.run(loop.iterations[which][1])
    return body


def _decide(gm: fx.GraphModule, loop: LoopFound, cp: int, counts: Counts, machines: list[Machine]) -> Decided:
    bodies, texts = list[Body](), list[str]()
    found, alive, lengths = [], [], []
    for i, (machine, (_, nodes, _)) in enumerate(zip(machines, loop.iterations, strict=True)):
        body = _body(gm, loop, i, cp, counts, machine)
        try:
            chosen = _choose(body, loop, nodes)
        except Refused:
            no_aliasing(body, nodes, {*body.values}, {source.node for source in body.sources}, set())
            raise
        rows = {source.node for exchange in chosen.values() for source in exchange.sources}
        no_aliasing(body, nodes, {*needed(body, nodes, chosen)}, rows, {*chosen})
        kept, counted = live(body, nodes, set(chosen))
        order = steps(nodes)
        # All that ranks must have in common: what a rank does with its part may depend on the rank (weights of its own
        # heads).
        given = needed(body, nodes, chosen)
        texts.append(program(gm, loop.iterations[i][0], given, body.spelled_out, body.own_affair))
        found.append(tuple((order.index(n), e) for n, e in chosen.items()))
        bodies.append(body)
        alive.append(kept)
        lengths.append(counted)
    if found[0] != found[1] or bodies[0].group is None:
        raise Refused("not-generic", "two iterations of the loop do different things")
    names = [collective_name(call.target) for call in collectives(gm, loop.iterations[0][1])]
    calls = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    if any(exchange.gathered for _, exchange in found[0]):
        way_back_of(bodies[0].ways_back)
    of_each = (tuple(bodies), tuple(alive), tuple(lengths))
    return Decided(loop, cp, bodies[0].group, counts, found[0], *of_each, calls, texts[0])


def _gathered_whole(body: Body, node: fx.Node, exchange: Exchange) -> tuple[fx.Node, Exchange]:
    """What all ranks gather, before each of them takes its own columns (``whole[:, rank * w : (rank + 1) * w]``): which
    it takes is its own affair, and what is gathered is not."""
    inputs = [n for n in node.all_input_nodes if n in body.exchanged]
    found = node, exchange
    while exchange.gathered and len(inputs) == 1 and collective_name(inputs[0].target) != GATHER:  # not before the wait
        known = body.exchange(inputs[0])
        if known is not None and known.gathered:
            found = inputs[0], known
        elif not isinstance(body.tensor(inputs[0]), (tuple, list)):
            break
        inputs = [n for n in inputs[0].all_input_nodes if n in body.exchanged]
    return found


def _choose(body: Body, loop: LoopFound, nodes: tuple[fx.Node, ...]) -> dict[fx.Node, Exchange]:
    """The exchanged tensors that something else uses, each as one exchange of an outer tensor."""
    inside = set(nodes)
    chosen: dict[fx.Node, Exchange] = {}

    def cover(node: fx.Node) -> None:
        if node in chosen:
            return
        exchange = body.exchange(node)
        if exchange is not None:
            node, exchange = _gathered_whole(body, node, exchange)
            chosen[node] = exchange
            return
        inputs = [n for n in node.all_input_nodes if n in body.exchanged]
        if not inputs or collective_name(node.target) or op_name(node) == AUTOGRAD_FUNCTION:
            raise Refused(
                "not-zigzag",
                "the exchanged tensors are not heads for tokens of shards, nor all tokens on every rank (of every "
                "document rank r holds chunks r and 2 * cp - 1 - r, or the r-th of cp parts)",
                node,
            )
        for n in inputs:
            cover(n)

    for node in [n for n in nodes if n in body.exchanged]:
        if isinstance(body.values.get(node), (Lin, bool)) or not isinstance(example(node), torch.Tensor):
            continue
        outsiders = [u for u in node.users if u not in inside or not (body.sees_through(u) or only_checked(u))]
        if outsiders:
            cover(node)
    chosen |= exchanges_of(body, nodes)
    if not chosen:
        raise Refused("not-zigzag", "what is exchanged in the loop is not understood or not used", nodes[0])
    return chosen
