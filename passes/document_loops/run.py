"""One loop over documents as a whole: decided about, then rewritten, or refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Refusal, Rewrite
from passes.context import PassContext
from passes.document_loops import last_boundary
from passes.document_loops.find import Decided, decide
from passes.document_loops.rewrite import rewrite
from passes.loops import LoopFound, find, first_line
from passes.refused import Refused

NAME = "vectorize_segments"
"""The pass in whose name loops are rewritten, whoever asks for it."""


def numbered(graph: fx.Graph, number: int) -> LoopFound:
    """A captured loop as it is now: rewriting an earlier one changes what this one reads."""
    (loop,) = (loop for loop in find(graph) if loop.id == number)
    return loop


def run_loop(graph: fx.Graph, number: int, context: PassContext) -> Rewrite | Refusal:
    """Rewrite one captured loop. An earlier loop may have made the documents that this one takes from its list."""
    loop = numbered(graph, number)
    location = context.locations.get(number) or first_line(loop)
    result = run_one(graph, functools.partial(decide, graph, loop), location)
    if isinstance(result, Refusal) and result.code == "not-generic" and number in context.branches:
        where = context.branches[number]
        reason = f"what the loop does for a document depends on its length or its data: the branch at {where} matters"
        return Refusal(NAME, "length-branch", reason, location)
    return result


def run_one(graph: fx.Graph, decision: Callable[[], Decided], location: str) -> Rewrite | Refusal:
    """Decide about one loop, then rewrite it or say why not."""
    try:
        decided = decision()
        branches = last_boundary.unproven(graph, decided)
        before = set(graph.nodes)
        made = rewrite(graph, decided, NAME)
        last_boundary.check(graph, branches, NAME)
    except Refused as refused:
        reason = str(refused)
        line = location_of_node(refused.node)
        if line and line != location:
            reason += f" (at {line})"
        return Refusal(NAME, refused.code, reason, location)
    new = [node for node in graph.nodes if node not in before]
    ops = [
        str(node.target).removeprefix("packpass.").removesuffix(".default")
        for node in new
        if "packpass" in str(node.target)
    ]
    details: dict[str, Any] = {
        "source": "loop",
        "boundaries": decided.boundaries.node.name,
        "written": [row.node.name for row, _ in decided.writes],
        "ops": ops,
        **made.facts,
    }
    after = ", ".join(dict.fromkeys(op for op in ops if op != "check_cu_seqlens")) or "elementwise ops on the whole row"
    claims = dataclasses.replace(made.claims, boundary_source="loop")
    return Rewrite(NAME, location, "loop over documents", after, details, claims)
