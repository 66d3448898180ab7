"""One loop over documents as a whole: decided about, then rewritten, or refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Refusal, Rewrite
from passes.context import PassContext
from passes.document_loops import last_boundary
from passes.document_loops.aliasing import used_beside_written
from passes.document_loops.cropped import Cropped
from passes.document_loops.divided import divide
from passes.document_loops.find import Decided
from passes.document_loops.lengthened import made_longer, put_in_front
from passes.document_loops.rewrite import rewrite
from passes.loops import LoopFound, find, first_line
from passes.nodes import copy_of
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
    cropped = Cropped(graph, loop)
    result = run_one(graph, cropped.decide, location)
    if isinstance(result, Refusal):
        cropped.undo()
    if isinstance(result, Refusal) and result.code == "not-generic" and number in context.branches:
        where = context.branches[number]
        reason = f"what the loop does for a document depends on its length or its data: the branch at {where} matters"
        return Refusal(NAME, "length-branch", reason, location)
    return result


def run_loops(gm: fx.GraphModule, number: int, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite one captured loop, as it is or as several; or why not, and the graph as it was."""
    result = run_loop(gm.graph, number, context)
    if isinstance(result, Rewrite):
        return [result]
    for division in (_made_longer, divide):
        done = _in_two(gm, number, context, division)
        if done:
            return [*done]
    return [result]


Division = Callable[[fx.Graph, LoopFound], Callable[[], int] | None]
"""Finds what may be a loop of its own; what it returns puts that in front of the loop, and returns the new one's id."""


def _made_longer(graph: fx.Graph, loop: LoopFound) -> Callable[[], int] | None:
    prefixes = made_longer(loop)
    return functools.partial(put_in_front, graph, loop, prefixes) if prefixes else None


def _in_two(gm: fx.GraphModule, number: int, context: PassContext, division: Division) -> list[Rewrite]:
    """Rewrite a loop as several; nothing, and the graph as it was, if there is one only, or one of them stays."""
    loop = numbered(gm.graph, number)
    divide_it = division(gm.graph, loop)
    if divide_it is None:
        return []
    graph, separate = copy_of(gm.graph), used_beside_written(gm.graph, loop)
    before = divide_it()
    first = run_loop(gm.graph, before, at_line_of(context, before, number))
    rest = run_loops(gm, number, context) if isinstance(first, Rewrite) else []
    done = [one for one in (first, *rest) if isinstance(one, Rewrite)]
    if not rest or len(done) <= len(rest):
        gm.graph = graph
        return []
    return [*done[:-1], with_separate_inputs(done[-1], separate)]


def at_line_of(context: PassContext, before: int, number: int) -> PassContext:
    """The loop ``before`` was put in front of another one: both are at one place in the user's code."""
    where = context.locations.get(number, "<unknown>")
    return dataclasses.replace(context, locations={**context.locations, before: where})


def with_separate_inputs(rewrite: Rewrite, separate: Sequence[str]) -> Rewrite:
    """The rewrite, and that these inputs must not share memory, which its part of the loop does not show."""
    names = tuple(dict.fromkeys((*rewrite.claims.separate_inputs, *separate)))
    return dataclasses.replace(rewrite, claims=dataclasses.replace(rewrite.claims, separate_inputs=names))


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
