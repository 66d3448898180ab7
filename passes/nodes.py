"""What every rewriter needs when it adds nodes to a Dynamo graph."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, TypeVar

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.build import Builder
from packpass.semantics.effects import mutated_after
from packpass.semantics.memory import share_memory

Made = TypeVar("Made")

SNAPSHOT = torch.ops.packpass.snapshot.default
KNOWN = frozenset({"aten", "prims", "prim", "inductor_prims", "packpass"})
"""Namespaces whose ops do what their schema says and nothing else; any other op may hold collectives of its own."""


def namespace_of(target: Any) -> str | None:
    """The namespace of an op (overload or not), None for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace
    return str(target).split(".")[0] if isinstance(target, torch._ops.OpOverloadPacket) else None


def copy_of(graph: fx.Graph) -> fx.Graph:
    """The graph as it is now, to go back to."""
    copy, made = fx.Graph(), dict[fx.Node, fx.Node]()
    copy.output(copy.graph_copy(graph, made))
    for node in graph.nodes:
        # Dynamo notes on an input where it comes from, which AOTAutograd asks for, and torch does not copy that.
        if node.op == "placeholder":
            vars(made[node]).update({k: v for k, v in vars(node).items() if k not in vars(made[node])})
    return copy


def or_as_it_was(gm: fx.GraphModule, attempt: Callable[[], list[Made]]) -> list[Made]:
    """What ``attempt`` makes of a graph; nothing, and the graph as it was, where it makes nothing."""
    graph = copy_of(gm.graph)
    made = attempt()
    if not made:
        gm.graph = graph
    return made


def needed_for(nodes: Iterable[fx.Node], among: Container[fx.Node] | None = None) -> set[fx.Node]:
    """These nodes, and everything that they are made of (``among`` these nodes only, if given)."""
    needed, stack = set[fx.Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += [n for n in node.all_input_nodes if among is None or n in among]
    return needed


def computed_from(nodes: Iterable[fx.Node], goes_on: Callable[[fx.Node], bool] | None = None) -> set[fx.Node]:
    """These nodes, and everything that is made of them (by calls that ``goes_on`` lets pass only, if given)."""
    seen, stack = set(nodes), list(nodes)
    while stack:
        for user in stack.pop().users:
            if user not in seen and (goes_on is None or goes_on(user)):
                seen.add(user)
                stack.append(user)
    return seen


def ahead(a: Any, b: Any) -> int | None:
    """By how much one symbol is larger than another, if that is a constant."""
    if not isinstance(a, torch.SymInt) or not isinstance(b, torch.SymInt):
        return None
    difference = a.node.expr - b.node.expr
    return int(difference) if difference.is_Integer else None


def put_instead(node: fx.Node, made: fx.Node, users: Iterable[fx.Node] | None = None) -> None:
    """``made`` takes the place of ``node`` for all users, or for these; views that were taken of the one are views of
    the other."""
    share_memory(example(node), example(made))
    if users is None:
        node.replace_all_uses_with(made)
    for user in users or ():
        user.replace_input_with(node, made)


def call(graph: fx.Graph, rule: str, target: Any, *args: Any, method: bool = False, **kwargs: Any) -> fx.Node:
    """One node at the graph's insertion point, with its fake value."""
    return Builder(graph, rule=rule).call(target, *args, method=method, **kwargs)


def snapshot_of(cu: fx.Node, before: fx.Node, call: Callable[..., fx.Node]) -> fx.Node:
    """A copy of boundaries for the backward, one for all calls over them: the program may write those of the next batch
    to the same memory before it runs. ``call`` adds a node in front of ``before``."""
    for node in before.graph.nodes:
        if node is before:
            break
        if node.target is SNAPSHOT and node.args == (cu,) and not mutated_after(before.graph, cu, node, before):
            return node
    return call(SNAPSHOT, cu)
