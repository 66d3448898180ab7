"""Replay: one Dynamo graph for every number of documents, even where a loop body cannot be vectorised.

A captured body that is proven generic (its two traced iterations are the same nodes, and nothing but the index tells
them apart; `packpass.capture` refuses everything else) is run once per document, eagerly, op by op, in the user's
order. What stands before and after the loop is compiled by the inner backend. So a loop with an op that has no rule
stays a loop (interpreted: up to three times eager's cost where the ops are tiny), but breaks no graph, works under
``fullgraph=True`` and compiles once for all N.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.engine.generic import (
    Iteration,
    NotReplayable,
    hoist_sizes,
    is_check,
    is_symbolic,
    only_checks,
    prove_generic,
    refuse_broadcasts,
    regions,
    wants_lengths,
)
from packpass.engine.interpreter import Interpreter
from packpass.semantics.effects import changes_mode

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def replay(gm: fx.GraphModule, compile_part: Compile, doubt: str = "", *, beside: bool = False) -> Callable[..., Any]:
    """A callable that does what ``gm`` does, loops included. ``gm`` is not usable afterwards.

    ``doubt`` is what capture knows against a replay and the graph does not show. ``beside`` a rewritten graph, which
    checks the lengths, it may take lengths for equal. Raises `NotReplayable` before anything is compiled.
    """
    if doubt:
        raise NotReplayable(doubt)
    if any(isinstance(m, fx.GraphModule) and m is not gm and has_loops(m) for m in gm.modules()):
        raise NotReplayable("the loop is inside a higher-order operator")
    if any(changes_mode(node) for node in gm.graph.nodes):  # such a node must not move into a part of its own
        raise NotReplayable("the graph changes the grad mode, autocast or another global state")
    for branch in [node for node in gm.graph.nodes if node.target in markers.LOOP_BRANCH]:
        gm.graph.erase_node(branch)  # both ways are the same, or the two iterations are not
    for asked in [node for node in gm.graph.nodes if beside and wants_lengths(node)]:
        gm.graph.erase_node(asked)
    if not beside and any(n.target is markers.LIST_GET and isinstance(n.args[1], int) for n in gm.graph.nodes):
        # What leaves the graph is cut anew: it would not be the tensor that the list holds.
        raise NotReplayable("an entry of a list of documents is taken by its number")
    hoist_sizes(gm.graph, regions(gm.graph))
    loops = regions(gm.graph)
    for iterations in loops.values():
        prove_generic(iterations)
        if not beside:
            refuse_broadcasts(iterations[0][1])
    _drop_made_up_sizes(gm.graph, loops)
    return _Replay(gm, _cut(gm, _partition(gm.graph, loops)), compile_part)


# === Cutting the graph =======================================================================================


def _drop_made_up_sizes(graph: fx.Graph, loops: dict[int, list[Iteration]]) -> None:
    """Erase second iterations, and every assertion about sizes that capture made up."""
    for iterations in loops.values():
        begin, body, end = iterations[1]
        for node in reversed([begin, *body, end]):
            for user in list(node.users):
                if user.target is markers.LIST_COLLECT:
                    user.update_arg(1, user.args[0])
                elif not user.users and (is_check(user) or is_symbolic(user)):
                    graph.erase_node(user)
        for node in reversed([begin, *body, end]):
            if node.graph is graph and node in set(graph.nodes):
                graph.erase_node(node)
    for node in graph.find_nodes(op="call_function", target=markers.LIST_COLLECT):
        loops[node.args[2]][0][2].append(node)  # a list stands in one part with the loop that fills it
    for node in reversed(list(graph.nodes)):
        if not node.users and (is_check(node) or is_symbolic(node)) and depends_on(node, MADE_UP):
            graph.erase_node(node)


MADE_UP = (markers.LIST_COLLECT, *markers.LIST_USES, markers.SPLIT_GET, markers.LOOP_BEGIN)
"""What gives sizes that capture made up."""


def depends_on(node: fx.Node, targets: tuple[Any, ...]) -> bool:
    seen, stack = set(), [node]
    while stack:
        n = stack.pop()
        if n.target in targets:
            return True
        if n not in seen:
            seen.add(n)
            stack.extend(n.all_input_nodes)
    return False


def _partition(graph: fx.Graph, loops: dict[int, list[Iteration]]) -> dict[fx.Node, int]:
    """Even parts are compiled, odd parts (loops and what handles their lists) are replayed."""
    interpreted: set[fx.Node] = set()
    for iterations in loops.values():
        begin, body, end = iterations[0]
        interpreted |= {begin, *body, end}
    interpreted |= {n for n in graph.nodes if n.target in (markers.LIST_COLLECT, *markers.LIST_USES)}
    owner: dict[fx.Node, int] = {}
    part = 0
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if (node in interpreted) != bool(part % 2):
            part += 1
        owner[node] = part
    return owner


@dataclasses.dataclass(frozen=True)
class _Part:
    """A stretch of the graph as a module of its own: values come in and go out by the original nodes."""

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def _cut(gm: fx.GraphModule, owner: dict[fx.Node, int]) -> list[_Part]:
    parts = []
    for part in sorted(set(owner.values())):
        nodes = [n for n in gm.graph.nodes if owner.get(n) == part]
        mine = set(nodes)
        inputs = list(
            dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in mine and i.op != "get_attr")
        )
        inputs = [*_sizes_of(inputs, gm), *inputs]
        outputs = [n for n in nodes if any(u not in mine for u in n.users)]
        graph, copies = fx.Graph(), {}  # type: fx.Graph, dict[fx.Node, fx.Node]
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in gm.graph.nodes:
            if node.op == "get_attr" and any(u in mine for u in node.users):
                copies[node] = graph.node_copy(node)
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[n] for n in outputs))
        parts.append(_Part(fx.GraphModule(gm, graph), tuple(inputs), tuple(outputs)))
    return parts


def _sizes_of(inputs: list[fx.Node], gm: fx.GraphModule) -> list[fx.Node]:
    """Inputs of the graph that are sizes of which a part gets only what is made of them: a vector of ``s - 1`` entries.
    Inductor wants to know ``s`` itself."""
    fakes = [node.meta.get("example_value") for node in inputs]
    sizes = [size for fake in fakes if isinstance(fake, torch.Tensor) for size in fake.shape]
    given = {n.node.expr for n in (*sizes, *fakes) if isinstance(n, torch.SymInt)}
    wanted = set().union(*(expression.free_symbols for expression in given)) - given
    values = {node: node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"}
    return [n for n, value in values.items() if isinstance(value, torch.SymInt) and value.node.expr in wanted]


# === Running =================================================================================================


class _Replay:
    """The cut graph: compiled parts and interpreted loops, in the user's order."""

    def __init__(self, gm: fx.GraphModule, parts: list[_Part], compile_part: Compile) -> None:
        self.gm = gm
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.constants = [n for n in gm.graph.nodes if n.op == "get_attr"]
        self.result = next(iter(reversed(gm.graph.nodes))).args[0]
        self.steps = [
            (p, _Loops(p.module) if has_loops(p.module) else _compiled(p.module, compile_part)) for p in parts
        ]

    def __call__(self, *inputs: Any) -> Any:
        env: dict[fx.Node, Any] = dict(zip(self.placeholders, inputs, strict=True))
        for node in self.constants:
            env[node] = operator.attrgetter(str(node.target))(self.gm)
        for part, run in self.steps:
            env.update(zip(part.outputs, run(*(env[n] for n in part.inputs)), strict=True))
        return fx.node.map_arg(self.result, env.__getitem__)


def has_loops(part: fx.GraphModule) -> bool:
    return any(n.target in markers.MARKERS for n in part.graph.nodes if n.op == "call_function")


def _compiled(part: fx.GraphModule, compile_part: Compile) -> Callable[..., Any]:
    values = [n.meta.get("example_value") for n in part.graph.nodes if n.op == "placeholder"]
    works = any(
        isinstance(n.meta.get("example_value"), torch.Tensor) and n.op != "placeholder" for n in part.graph.nodes
    )
    return compile_part(part, values) if works else part.forward


class _Loops(Interpreter):
    """Runs a part that consists of loops over documents, one document after the other."""

    def __init__(self, part: fx.GraphModule) -> None:
        super().__init__(part)
        self.program: list[fx.Node | tuple[fx.Node, list[fx.Node]]] = []
        body: list[fx.Node] | None = None
        self.appends: dict[int, list[fx.Node]] = {}
        """Per loop: the lists it fills."""
        for node in part.graph.nodes:
            if node.target is markers.LOOP_BEGIN:
                body = []
                self.program.append((node, body))
            elif node.target is markers.LOOP_END:
                body = None
            elif node.target is markers.LIST_COLLECT:
                loop: Any = node.args[2]
                self.appends.setdefault(loop, []).append(node)
            elif body is not None:
                if not only_checks(node):
                    body.append(node)
            else:
                self.program.append(node)

        bodies = [item[1] for item in self.program if isinstance(item, tuple)]
        self.know_shapes(node for nodes in bodies for node in nodes)

    def __call__(self, *inputs: Any) -> Any:
        env: dict[fx.Node, Any] = {c: [] for cs in self.appends.values() for c in cs}
        feed = iter(inputs)
        for item in self.program:
            if isinstance(item, tuple):
                begin, body = item
                splits: dict[fx.Node, Any] = {}
                loop: Any = begin.args[1]
                for i in range(int(self.value(begin.args[0], env))):
                    env[begin] = i
                    self._iterate(body, self.appends.get(loop, []), env, splits)
            elif item.op == "placeholder":
                env[item] = next(feed)
            elif item.op == "output":
                return self.value(item.args[0], env)
            elif not is_check(item):
                env[item] = self.call(item, env, {})
        raise AssertionError

    def _iterate(
        self, body: list[fx.Node], lists: list[fx.Node], env: dict[fx.Node, Any], splits: dict[fx.Node, Any]
    ) -> None:
        sizes: dict[Any, int] = {}
        for node in body:
            if node.target in markers.LOOP_SKIP:
                if bool(self.value(node.args[0], env)) == node.args[1]:
                    return
            else:
                value = env[node] = self.call(node, env, splits)
                if isinstance(value, torch.Tensor):
                    self.as_traced(node, value, sizes)
        for collected in lists:
            env[collected].append(self.value(collected.args[0], env))
