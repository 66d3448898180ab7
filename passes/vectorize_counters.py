"""Take out loops over documents that only make numbers: capture reads these from vectors of all documents instead.

Before (user code)::

    count = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 4:
            count += e - s
    return x * count

Before (FX, from `packpass.capture`): the vector of what each document adds, its running sums, and two traced iterations
between marker ops, of which nobody uses anything. After: the vector and its sums, of which one entry is read.

Why it is safe: nothing outside of the loop uses a node of it, its nodes have no effect that anybody could see, and what
a split asks of its lengths is still checked.

Does not handle: loops that do anything else with a document; these go on to the next passes.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from packpass import markers
from packpass.decisions.records import Refusal, Rewrite
from packpass.markers.lengths import STEPS
from packpass.semantics.effects import effects_of
from passes.building import Builder
from passes.context import PassContext
from passes.document_loops.boundaries import check_split
from passes.loops import LoopFound, find, first_line

NAME = "vectorize_counters"

_COUNTING = frozenset(
    {torch.select, torch.sym_sum, torch.ops.aten._assert_scalar.default, *markers.LOOP_BRANCH, *STEPS}
    | {operator.add, operator.sub, operator.ge, operator.gt, operator.le, operator.lt, operator.eq, operator.and_}
)
"""What a loop that makes numbers from lengths consists of; nothing that anybody else could see."""


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Erase loops that make numbers, or a list of numbers, from lengths or shapes."""
    done: list[Rewrite | Refusal] = []
    for loop in find(gm.graph):
        if not _only_counts(loop):
            continue
        location = context.locations.get(loop.id) or first_line(loop)
        for node in loop.iterations[0][1]:
            _keep_check(gm.graph, node, loop)
        for node in sorted(loop.nodes, reverse=True):
            gm.graph.erase_node(node)
        done.append(Rewrite(NAME, location, "loop over documents", "numbers of all documents", {"source": "loop"}))
    if done:
        gm.graph.lint()
        gm.recompile()
    return done


def _only_counts(loop: LoopFound) -> bool:
    """Is what the loop does seen nowhere else?"""
    bodies = [node for _, body, _ in loop.iterations for node in body]
    nodes = loop.nodes
    return (
        not loop.collects
        and all(map(_counts, bodies))
        and not any(user not in nodes for node in nodes for user in node.users)
    )


def _counts(node: fx.Node) -> bool:
    """Does nobody see that a node of such a loop is gone?"""
    known = node.target == "item" or node.target in _COUNTING or node.target is markers.SPLIT_GET
    return known or effects_of(node).repeatable


def _keep_check(graph: fx.Graph, node: fx.Node, loop: LoopFound) -> None:
    """Torch splits a tensor only where the lengths add up to its size, whoever looks at the parts."""
    if node.target is not markers.SPLIT_GET:
        return
    x, lengths, _, dim = node.args
    assert isinstance(lengths, fx.Node)
    others = [n for n in graph.nodes if n.target is markers.SPLIT_GET and n not in loop.nodes]
    if any(n.args[:2] == (x, lengths) for n in others):
        return
    build = Builder(graph, loop.iterations[0][0], lengths)
    check_split(build.call, x, lengths, dim)
