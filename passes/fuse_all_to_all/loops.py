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
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.semantics import AUTOGRAD_FUNCTION, example, op_name, storage
from packpass.semantics.effects import written_inputs
from passes.context import PassContext
from passes.document_loops.aliasing import used_beside_written
from passes.document_loops.fission import Prefix, prefixes, split
from passes.document_loops.integers import Boundaries
from passes.document_loops.machine import Machine
from passes.document_loops.op_names import is_size_check, name_of
from passes.document_loops.run import NAME as VECTORIZE
from passes.document_loops.run import at_line_of, numbered, run_loop, with_separate_inputs
from passes.fuse_all_to_all.apart import First, exchanged, recount
from passes.fuse_all_to_all.blocks import Blocks
from passes.fuse_all_to_all.body import Body
from passes.fuse_all_to_all.counted import boundaries_of, integers, only_checked
from passes.fuse_all_to_all.digest import program, steps
from passes.fuse_all_to_all.exchange import Exchange, recognise
from passes.fuse_all_to_all.held import fills
from passes.fuse_all_to_all.moves import MOVES
from passes.fuse_all_to_all.needed import needed
from passes.fuse_all_to_all.scalars import Lin, Scale
from passes.fuse_all_to_all.straight_find import EXCHANGE, base_name
from passes.fuse_all_to_all.write import write
from passes.loops import LoopFound, find
from passes.nodes import copy_of
from passes.refused import Refused
from passes.turned_in_place import check_turned

NAME = "fuse_all_to_all"


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a loop's integers mean: vectors of boundaries as fractions of one that counts the whole row, or shards."""

    base: fx.Node
    lengths: bool
    """Is it a vector of lengths, for ``x.split(lengths.tolist())``?"""
    factors: dict[Boundaries, Fraction]
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
    collectives: int
    program: str


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite every captured loop that exchanges data between ranks."""
    results: list[Rewrite | Refusal] = []
    helped = context.options.runs(VECTORIZE)
    for number in [loop.id for loop in find(gm.graph)]:
        loop = numbered(gm.graph, number)
        size = _group_size(gm, loop)
        done = [] if size is None else _rewritten(gm, number, size, context)
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
    return [whole]


def _computed_before(gm: fx.GraphModule, loop: LoopFound, cp: int) -> list[Prefix]:
    """What is exchanged is computed from the document: for the whole row, in front."""
    return prefixes(loop, lambda node: bool(_collectives(gm, [node])), MOVES)


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
        if found and len(_collectives(gm, found[0].prefix.nodes)) < len(_collectives(gm, loop.iterations[0][1])):
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
    before = f"{decided.collectives} all_to_all_single per document"
    claims = Claims(True, tuple(separate), agreement=said, group=decided.group, boundary_source="loop")
    return Rewrite(NAME, where, before, ", ".join(dict.fromkeys(op for op, _ in made)), details, claims)


def _separate_inputs(gm: fx.GraphModule, decided: Decided) -> list[str]:
    """Inputs of the graph that the loop writes and those that are exchanged: eager reads what earlier iterations wrote
    where they share memory in a later call, the exchange does not (see `find.separate_inputs`)."""
    written = decided.loop.written
    read = {storage(exchange.source.node) for _, exchange in decided.found}
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


def _collectives(gm: fx.GraphModule, nodes: Any) -> list[fx.Node]:
    """All-to-all calls among the nodes and in the functions they call (forwards only)."""
    out = []
    for node in nodes:
        if base_name(node.target) == EXCHANGE:
            out.append(node)
        elif op_name(node) == AUTOGRAD_FUNCTION:
            forward = node.args[0]
            module = getattr(gm, str(forward.target), None) if isinstance(forward, fx.Node) else None
            if isinstance(module, fx.GraphModule):
                out += _collectives(module, module.graph.nodes)
    return out


def _group_size(gm: fx.GraphModule, loop: LoopFound) -> int | None:
    """Ranks in the group of the loop's first exchange; None for a loop without one."""
    calls = _collectives(gm, loop.iterations[0][1])
    splits = calls[0].args[1] if calls and len(calls[0].args) > 1 else None
    return len(splits) if isinstance(splits, (tuple, list)) and splits else None


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
    base, lengths, factors = boundaries_of(machines[0], loop)
    scales = [Scale(2 * cp, cp), Scale(2, 1), Scale(cp, cp, 1), Scale(1, 1, 1)]
    fitting = [scale for scale in scales if all((f * scale.align).denominator == 1 for f in factors.values())]
    return [Counts(base, lengths, factors, scale) for scale in fitting]


def _body(gm: fx.GraphModule, loop: LoopFound, which: int, cp: int, counts: Counts, machine: Machine) -> Body:
    body = Body(gm, machine, counts.factors, counts.scale, cp)
    body.run(loop.iterations[which][1])
    return body


def _decide(gm: fx.GraphModule, loop: LoopFound, cp: int, counts: Counts, machines: list[Machine]) -> Decided:
    bodies, texts = list[Body](), list[str]()
    found, live, lengths = [], [], []
    for i, (machine, (_, nodes, _)) in enumerate(zip(machines, loop.iterations, strict=True)):
        body = _body(gm, loop, i, cp, counts, machine)
        try:
            chosen = _choose(body, loop, nodes)
        except Refused:
            _no_aliasing(body, nodes, {*body.values}, {source.node for source in body.sources})
            raise
        _no_aliasing(body, nodes, {*needed(body, nodes, chosen)}, {e.source.node for e in chosen.values()})
        alive, counted = _live(body, nodes, set(chosen))
        order = steps(nodes)
        # All that ranks must have in common: what a rank does with its part may depend on the rank (weights of its own
        # heads).
        texts.append(program(gm, loop.iterations[len(bodies)][0], needed(body, nodes, chosen)))
        found.append(tuple((order.index(n), e) for n, e in chosen.items()))
        bodies.append(body)
        live.append(alive)
        lengths.append(counted)
    if found[0] != found[1] or bodies[0].group is None:
        raise Refused("not-generic", "two iterations of the loop do different things")
    calls = len(_collectives(gm, loop.iterations[0][1]))
    of_each = (tuple(bodies), tuple(live), tuple(lengths))
    return Decided(loop, cp, bodies[0].group, counts, found[0], *of_each, calls, texts[0])


def _no_aliasing(body: Body, nodes: tuple[fx.Node, ...], moved: set[Any], rows: set[fx.Node]) -> None:
    """Nothing that is ``moved``, and none of the ``rows`` it comes from, may be written by something that is not
    understood. What the loop does besides is for `vectorize_segments` to prove."""
    watched = {storage(n) for n in (*moved, *rows) if n in rows or n in body.values} - {None}
    for node in nodes:
        if node in body.values:
            continue
        for target in written_inputs(node):
            if storage(target) in watched:
                raise Refused("aliasing", "a tensor that is exchanged is also changed in place in the loop", node)


def _choose(body: Body, loop: LoopFound, nodes: tuple[fx.Node, ...]) -> dict[fx.Node, Exchange]:
    """The exchanged tensors that something else uses, each as one exchange of an outer tensor."""
    inside = set(nodes)
    chosen: dict[fx.Node, Exchange] = {}

    def cover(node: fx.Node) -> None:
        if node in chosen:
            return
        value = body.tensor(node)
        if isinstance(value, Blocks):
            exchange = recognise(value, body.sources, body.cp, body.scale.shard)
            if exchange is not None:
                chosen[node] = exchange
                return
        inputs = [n for n in node.all_input_nodes if n in body.exchanged]
        if not inputs or base_name(node.target) or op_name(node) == AUTOGRAD_FUNCTION:
            raise Refused(
                "not-zigzag",
                "the exchanged tensors are not heads for tokens of shards (of every document rank r holds chunks r and "
                "2 * cp - 1 - r, or the r-th of cp parts)",
                node,
            )
        for n in inputs:
            cover(n)

    for node in [n for n in nodes if n in body.exchanged]:
        if isinstance(body.values.get(node), (Lin, bool)) or not isinstance(example(node), torch.Tensor):
            continue
        outsiders = [u for u in node.users if u not in inside or (u not in body.values and not only_checked(u))]
        if outsiders:
            cover(node)
    if not chosen:
        raise Refused("not-zigzag", "what is exchanged in the loop is not understood or not used", nodes[0])
    return chosen


def _live(
    body: Body, nodes: tuple[fx.Node, ...], chosen: set[fx.Node]
) -> tuple[frozenset[fx.Node], dict[fx.Node, bool]]:
    """Nodes of the body that are needed when ``chosen`` come from elsewhere (no exchange may be among them), and
    lengths to be counted on something else."""
    inside = set(nodes)
    roots = [n for n in nodes if any(u not in inside for u in n.users)]
    roots += [n for n in nodes if n not in body.values and not n.users and not is_size_check(n)]
    roots += [n for n in nodes if n not in body.values and written_inputs(n)]
    live: set[fx.Node] = set()
    lengths: dict[fx.Node, bool] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in live or node not in inside or is_proven_check(node, body):
            continue
        live.add(node)
        sharded = _length(body, node)
        if sharded is not None:
            lengths[node] = sharded
        elif node not in chosen:
            if base_name(node.target) or _collectives(body.gm, [node]):
                raise Refused("not-zigzag", "a part of the exchange is used in another way", node)
            stack.extend(node.all_input_nodes)
            stack.extend(user for user in node.users if fills(user, node) and user in body.values)
    return frozenset(live), lengths


def is_proven_check(node: fx.Node, body: Body) -> bool:
    """A user's check that documents divide, which the exchange makes itself."""
    return name_of(node) == "loop_check" and body.values.get(node.args[0]) is True


def _length(body: Body, node: fx.Node) -> bool | None:
    """Is this integer, counted on a tensor, the length of the document's shard (True) or of the document (False)?"""
    value = body.values.get(node)
    if not isinstance(value, Lin) or value.start or value.const or isinstance(example(node), torch.Tensor):
        return None
    shard = body.scale.shard
    return {shard: True, shard * body.cp: False}.get(int(value.unit)) if value.unit.denominator == 1 else None
