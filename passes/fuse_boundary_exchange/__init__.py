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

Why it is safe: an iteration is run on a machine that knows which slots of the document every tensor holds (`machine`);
what it leaves, sends and receives must be this rank's part of a roll by one slot (`canonical`), for every length of a
chunk; both traced iterations must do the same; and what any loop over documents must satisfy is checked as for any
other. Every rank proves its own program; if each does its part, together they roll the row. Lengths that do not divide
by 2 * cp, which eager cuts in unequal chunks, are an error that names the document. Where eager raises because it
selects a slot of a document without slots, that document is left alone.

Does not handle (each refused by a stable code): messages that are not those of a roll by one (``not-a-roll``), several
groups, tags, an order that differs between peers (``message-order``), requests that are waited for later
(``message-wait``), gradients, which eager does not send (``message-gradient``), loops whose body does anything else
with the documents (``no-rule``).
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from typing import Any

import torch
from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.semantics import example
from passes import cp_rolls
from passes.building import Builder
from passes.context import PassContext
from passes.document_loops.integers import Boundaries
from passes.document_loops.rewrite import Made, rewrite
from passes.fuse_boundary_exchange.decide import Decided, decide, groups_seen, has_messages
from passes.fuse_boundary_exchange.machine import RULES
from passes.loops import find
from passes.prune import prune
from passes.refused import Refused

NAME = "fuse_boundary_exchange"
CHECK = torch.ops.packpass.check_cu_seqlens.default
log = logging.getLogger(f"packpass.passes.{NAME}")


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite every captured loop of one graph that sends messages."""
    results: list[Rewrite | Refusal] = []
    rewritten: list[tuple[str, dict[str, Any], Claims]] = []
    before = set(gm.graph.nodes)
    groups = groups_seen(gm.graph)
    for loop in find(gm.graph):
        if not has_messages(loop):
            continue
        location = context.locations.get(loop.id, "<unknown>")
        try:
            decided = decide(gm.graph, loop, groups)
            made = _rewrite(gm.graph, decided)
        except Refused as refused:
            reason, line = str(refused), location_of_node(refused.node)
            if line and line != location:
                reason += f" (at {line})"
            results.append(Refusal(NAME, refused.code, reason, location))
            continue
        rolls, said = _facts(decided)
        facts = {"source": "loop", "boundaries": decided.cu.name, **made.facts, "group_size": decided.group.size}
        claims = dataclasses.replace(made.claims, agreement=(said,), boundary_source="loop")
        rewritten.append((location, {**facts, "fields": rolls, "agreement": said}, claims))
    if not rewritten:
        return results
    ours = set(gm.graph.nodes) - before
    found = cp_rolls.exchanges(gm.graph, cp_rolls.find(gm.graph, ours))
    for i, exchange in enumerate(found):
        cp_rolls.put_together(gm.graph, exchange, found[i + 1 :])
    gm.graph.lint()
    gm.recompile()
    after = f"cp_packed_roll, {len(found)} exchange{'s' if len(found) > 1 else ''} in the graph"
    what = "messages per document"
    return results + [Rewrite(NAME, where, what, after, facts, claims) for where, facts, claims in rewritten]


def operations() -> frozenset[str]:
    """The operations that a body may do with its document between messages."""
    return frozenset(name for name in RULES if isinstance(name, str))


def _facts(decided: Decided) -> tuple[list[str], str]:
    """The rolls of the fields, and what every rank must have found, for rank 0 alone knows the fill."""
    group, fields = decided.group, decided.fields
    rolls = [f"shift={f.shift} dim={f.dim} {str(example(f.node).dtype).removeprefix('torch.')}" for f in fields]
    text = f"cp_packed_roll over {group.size} ranks, boundaries of {'a shard' if decided.sharded else 'the row'}"
    return rolls, f"{text}: {'; '.join(rolls)}"


# === Transform ===============================================================================================


def _rewrite(graph: fx.Graph, decided: Decided) -> Made:
    """The loop by the rewrite of all loops over documents, which knows boundaries of the row itself only."""
    cu, begin = decided.cu, decided.loop.loop.iterations[0][0]
    local = cu
    if not decided.sharded:
        local = Builder(graph, begin, cu).call(operator.floordiv, cu, decided.group.size)
    known = set(graph.nodes)
    try:
        made = rewrite(graph, dataclasses.replace(decided.loop, boundaries=Boundaries(local)), NAME)
    except Refused:
        prune(graph, [local])
        raise
    for node in [n for n in graph.nodes if n not in known and n.target is CHECK]:
        graph.erase_node(node)  # the op checks the boundaries, and more
    prune(graph, [local])
    return made
