"""Regions of a graph become calls that run them per document."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import fx

from packpass.ops._each_document import each_document
from packpass.semantics import op_name
from packpass.semantics.effects import effects_of
from passes.isolate.build import Body
from passes.refused import Refused

PLAN = ("packpass_source", "packpass_slots", "packpass_cu_seqlens", "packpass_cu_seqlens_padded")
STARTS = "packpass_starts"
"""What the plan of rows of chunks has besides."""


def add_plan(graph: fx.Graph, chunks: bool) -> list[fx.Node]:
    """Inputs for the plan, behind those of the graph."""
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    plan: list[fx.Node] = []
    for name in (*PLAN, STARTS) if chunks else PLAN:
        with graph.inserting_after(last):
            last = graph.placeholder(name)
        plan.append(last)
    return plan


def rewrite(
    gm: fx.GraphModule, bodies: Sequence[tuple[Body, float]], new: dict[fx.Node, fx.Node], chunks: bool
) -> None:
    """Put the calls there; the plan becomes more inputs of the graph. ``new``: what stands for nodes that are gone.
    ``chunks``: are documents put into rows of chunks?"""
    graph = gm.graph
    plan = add_plan(graph, chunks)
    for i, (body, fill) in enumerate(bodies):
        name = f"packpass_document_{i}"
        gm.add_submodule(name, body.function)
        given = [new.get(n, n) for n in (*body.region.entries, *body.others)]
        before = _make_room(graph, body, given, plan[-1])
        with graph.inserting_before(before):
            function = graph.get_attr(name)
            layout = (body.given, body.fills(fill), body.returned)
            keywords: dict[str, Any] = {"counted": True} if body.plain is not None else {}
            call = graph.call_function(each_document, (function, *layout, (tuple(plan),), *given), keywords)
            call.meta["stack_trace"] = body.region.mixing[0].meta.get("stack_trace", "")
            results = [graph.call_function(operator.getitem, (call, k)) for k in range(len(body.returned))]
        members = set(body.region.nodes)
        for old, result in zip(body.region.exits, results, strict=True):
            result.meta = old.meta.copy()
            for user in [user for user in old.users if user not in members]:
                user.replace_input_with(old, result)
            new[old] = result
        for node in reversed(body.region.nodes):
            # Where a state of the whole row is returned, the code for it stays, with what it writes.
            # What fills memory without tokens fills it for others, too.
            filled = node in body.constants and not effects_of(node).repeatable
            if not (node.users or body.region.states or filled):
                graph.erase_node(node)


def _make_room(graph: fx.Graph, body: Body, given: Sequence[fx.Node], plan: fx.Node) -> fx.Node:
    """The node before which a call has everything that it is given, and everybody who uses its results comes later."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    # Not before the first operation that mixes: gradients or autocast may be switched in front of it.
    first = min((order[n] for n in body.region.nodes if n not in body.constants), default=0)
    last = max(*(order[n] for n in (*given, plan)), first - 1)
    members = set(body.region.nodes)
    early: set[fx.Node] = set()
    for node in graph.nodes:
        if order[node] > last:
            break
        inputs = node.all_input_nodes
        if node not in members and any(n in early or n in body.region.exits for n in inputs):
            early.add(node)
    nodes = list(graph.nodes)
    anchor = nodes[last].next
    while anchor.op == "placeholder":
        anchor = anchor.next
    for node in sorted(early, key=order.__getitem__):
        effects = effects_of(node)
        if not effects.repeatable:
            raise Refused(
                "mixes-documents", f"{op_name(node)} cannot be moved behind a part that runs per document", node
            )
        anchor.prepend(node)
    return min(early, key=order.__getitem__) if early else anchor
