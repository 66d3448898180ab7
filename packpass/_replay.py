"""Replay: one Dynamo graph for every number of documents, even where a loop body cannot be vectorised.

A captured body that is proven generic (its two traced iterations are the same nodes, and nothing but the index tells
them apart; `packpass.capture` refuses everything else) is run once per document, eagerly, op by op, in the user's
order. What stands before and after the loop is compiled by the inner backend. So a loop with an op that has no rule
costs what it costs in eager, but breaks no graph, works under ``fullgraph=True`` and compiles once for all N.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from packpass.capture import markers

Compile = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

# Nodes that change the state of the process: they must not move into a compiled part of their own.
_STATEFUL = (
    "_set_grad_enabled",
    "_enter_autocast",
    "_exit_autocast",
    "inference_mode",
    "_saved_tensors_hooks_disable",
    "manual_seed",
)


class NotReplayable(Exception):
    """The loop is not proven generic, or the graph cannot be cut at it; the reason is for the user."""


def replay(gm: fx.GraphModule, compile_part: Compile) -> Callable[..., Any]:
    """A callable that does what ``gm`` does, loops included. ``gm`` is not usable afterwards.

    Raises `NotReplayable` before anything is compiled.
    """
    if any(isinstance(m, fx.GraphModule) and m is not gm and _has_loops(m) for m in gm.modules()):
        raise NotReplayable("the loop is inside a higher-order operator")
    if any(any(word in str(node.target) for word in _STATEFUL) for node in gm.graph.nodes):
        raise NotReplayable("the graph changes the grad mode, autocast or another global state")
    _hoist_sizes(gm.graph, _regions(gm.graph))
    loops = _regions(gm.graph)
    for iterations in loops.values():
        _prove_generic(iterations)
    _drop_made_up_sizes(gm.graph, loops)
    return _Replay(gm, _cut(gm, _partition(gm.graph, loops)), compile_part)


Iteration = tuple[fx.Node, list[fx.Node], fx.Node]


def _regions(graph: fx.Graph) -> dict[int, list[Iteration]]:
    found: dict[int, list[Iteration]] = {}
    open_: tuple[fx.Node, list[fx.Node]] | None = None
    for node in graph.nodes:
        if node.target is markers.LOOP_BEGIN:
            if open_ is not None:
                raise NotReplayable("a loop over documents inside a loop over documents")
            open_ = (node, [])
        elif node.target is markers.LOOP_END:
            assert open_ is not None
            found.setdefault(open_[0].args[1], []).append((*open_, node))  # type: ignore[arg-type]
            open_ = None
        elif open_ is not None:
            open_[1].append(node)
    return found


# === Proof ===================================================================================================


def _is_symbolic(node: fx.Node) -> bool:
    """Integer arithmetic on sizes; Dynamo shares such nodes between iterations, so they are compared as expressions."""
    value = node.meta.get("example_value")
    return (
        isinstance(value, (int, torch.SymInt, torch.SymBool))
        and node.op == "call_function"
        and node.target not in markers.MARKERS
    )


def _is_check(node: fx.Node) -> bool:
    return node.target is torch.ops.aten._assert_scalar.default


def _prove_generic(iterations: list[Iteration]) -> None:
    """The second iteration must be the first with another index."""
    if len(iterations) != 2:
        raise NotReplayable("the loop was not traced twice")
    (begin, body, _), (begin_again, body_again, _) = iterations
    proof = _Proof()
    proof.pair(begin, begin_again)
    first, second = ([n for n in nodes if not _is_symbolic(n) and not _is_check(n)] for nodes in (body, body_again))
    if len(first) != len(second):
        raise NotReplayable("two iterations of the loop do different things")
    for one, two in zip(first, second, strict=True):
        proof.compare(one, two)
        proof.pair(one, two)
    inside = {begin, begin_again, *body, *body_again}
    for node in inside:
        for user in node.users:
            if user in inside or user.target in (markers.LOOP_END, *markers.LOOP_SKIP) or _only_checks(user):
                continue
            if user.target is not markers.LIST_COLLECT:
                raise NotReplayable(f"{node.name} of one document is used after the loop")
            collected: tuple[Any, ...] = user.args
            if proof.twin.get(collected[1]) is not collected[0]:
                raise NotReplayable("two iterations append different values")


def _hoist_sizes(graph: fx.Graph, loops: dict[int, list[Iteration]]) -> None:
    """Sizes of outside tensors that are first computed in a body belong before the loop."""
    for iterations in loops.values():
        inside = {n for begin, body, end in iterations for n in (begin, *body, end)}
        for _, body, _ in iterations:
            for node in body:
                if _is_symbolic(node) and not any(i in inside for i in node.all_input_nodes):
                    iterations[0][0].prepend(node)
                    inside.discard(node)


class _Proof:
    """Pairs of nodes of two iterations, and of the data-dependent sizes they made."""

    def __init__(self) -> None:
        self.twin: dict[fx.Node, fx.Node] = {}
        self.symbols: dict[Any, Any] = {}

    def pair(self, one: fx.Node, two: fx.Node) -> None:
        self.twin[two] = one
        a, b = one.meta.get("example_value"), two.meta.get("example_value")
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dim() != b.dim() or a.dtype != b.dtype:
                raise NotReplayable(f"two iterations of the loop differ at {one.name}")
            for x, y in zip(a.shape, b.shape, strict=True):
                self._pair_sizes(x, y)
        else:
            self._pair_sizes(a, b)

    def _pair_sizes(self, x: Any, y: Any) -> None:
        if isinstance(x, torch.SymInt) and isinstance(y, torch.SymInt) and y.node.expr.is_Symbol:
            self.symbols.setdefault(y.node.expr, x.node.expr)

    def _expression(self, value: Any) -> Any:
        return value.node.expr.xreplace(self.symbols) if isinstance(value, (torch.SymInt, torch.SymBool)) else value

    def compare(self, one: fx.Node, two: fx.Node) -> None:
        marker = one.target in (*markers.LOOP_SKIP, markers.LOOP_CHECK)
        args = (one.args[:2], two.args[:2]) if marker else (one.args, two.args)
        if (
            one.op != two.op
            or one.target != two.target
            or not self._same(*args)
            or not self._same(one.kwargs, two.kwargs)
        ):
            raise NotReplayable(f"two iterations of the loop differ at {one.name} and {two.name}")

    def _same(self, a: Any, b: Any) -> bool:
        if isinstance(a, fx.Node):
            if not isinstance(b, fx.Node):
                return False
            if b in self.twin:
                return self.twin[b] is a
            x, y = a.meta.get("example_value"), b.meta.get("example_value")
            if isinstance(x, (int, torch.SymInt, torch.SymBool)) and _is_symbolic(b):
                left = x.node.expr if isinstance(x, (torch.SymInt, torch.SymBool)) else x
                return bool(left == self._expression(y))
            return a is b
        if isinstance(a, (tuple, list)):
            return type(a) is type(b) and len(a) == len(b) and all(map(self._same, a, b))
        if isinstance(a, dict):
            return isinstance(b, dict) and a.keys() == b.keys() and all(self._same(a[k], b[k]) for k in a)
        if isinstance(a, slice):
            return isinstance(b, slice) and self._same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
        return type(a) is type(b) and bool(a == b)


def _only_checks(node: fx.Node) -> bool:
    """Is this an assertion, or integer arithmetic that only assertions use?"""
    return _is_check(node) or (_is_symbolic(node) and all(_only_checks(user) for user in node.users))


# === Cutting the graph =======================================================================================


def _drop_made_up_sizes(graph: fx.Graph, loops: dict[int, list[Iteration]]) -> None:
    """Erase second iterations, and every assertion about sizes that capture made up."""
    for iterations in loops.values():
        begin, body, end = iterations[1]
        for node in reversed([begin, *body, end]):
            for user in list(node.users):
                if user.target is markers.LIST_COLLECT:
                    user.update_arg(1, user.args[0])
                elif not user.users and (_is_check(user) or _is_symbolic(user)):
                    graph.erase_node(user)
        for node in reversed([begin, *body, end]):
            if node.graph is graph and node in set(graph.nodes):
                graph.erase_node(node)
    made_up = (markers.LIST_COLLECT, markers.LIST_GET, markers.RAGGED_CAT, markers.SPLIT_GET, markers.LOOP_BEGIN)
    for node in reversed(list(graph.nodes)):
        if not node.users and (_is_check(node) or _is_symbolic(node)) and _depends_on(node, made_up):
            graph.erase_node(node)


def _depends_on(node: fx.Node, targets: tuple[Any, ...]) -> bool:
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
    interpreted |= {n for n in graph.nodes if n.target in (markers.LIST_COLLECT, markers.RAGGED_CAT, markers.LIST_GET)}
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


# === Running =================================================================================================


class _Replay:
    """The cut graph: compiled parts and interpreted loops, in the user's order."""

    def __init__(self, gm: fx.GraphModule, parts: list[_Part], compile_part: Compile) -> None:
        self.gm = gm
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.constants = [n for n in gm.graph.nodes if n.op == "get_attr"]
        self.result = next(iter(reversed(gm.graph.nodes))).args[0]
        self.steps = [
            (p, _Loops(p.module) if _has_loops(p.module) else _compiled(p.module, compile_part)) for p in parts
        ]

    def __call__(self, *inputs: Any) -> Any:
        env: dict[fx.Node, Any] = dict(zip(self.placeholders, inputs, strict=True))
        for node in self.constants:
            env[node] = operator.attrgetter(str(node.target))(self.gm)
        for part, run in self.steps:
            env.update(zip(part.outputs, run(*(env[n] for n in part.inputs)), strict=True))
        return fx.node.map_arg(self.result, env.__getitem__)


def _has_loops(part: fx.GraphModule) -> bool:
    return any(n.target in markers.MARKERS for n in part.graph.nodes if n.op == "call_function")


def _compiled(part: fx.GraphModule, compile_part: Compile) -> Callable[..., Any]:
    values = [n.meta.get("example_value") for n in part.graph.nodes if n.op == "placeholder"]
    works = any(
        isinstance(n.meta.get("example_value"), torch.Tensor) and n.op != "placeholder" for n in part.graph.nodes
    )
    return compile_part(part, values) if works else part.forward


class _Loops:
    """Runs a part that consists of loops over documents, one document after the other."""

    def __init__(self, part: fx.GraphModule) -> None:
        self.part = part
        self.program: list[fx.Node | tuple[fx.Node, list[fx.Node]]] = []
        body: list[fx.Node] | None = None
        self.appends: dict[fx.Node, list[fx.Node]] = {}
        for node in part.graph.nodes:
            if node.target is markers.LOOP_BEGIN:
                body = []
                self.program.append((node, body))
            elif node.target is markers.LOOP_END:
                body = None
            elif node.target is markers.LIST_COLLECT:
                source: Any = node.args[0]
                self.appends.setdefault(source, []).append(node)
            elif body is not None:
                if not _is_check(node):
                    body.append(node)
            else:
                self.program.append(node)

    def __call__(self, *inputs: Any) -> Any:
        env: dict[fx.Node, Any] = {c: [] for cs in self.appends.values() for c in cs}
        feed = iter(inputs)
        for item in self.program:
            if isinstance(item, tuple):
                begin, body = item
                splits: dict[fx.Node, Any] = {}
                for i in range(int(self._value(begin.args[0], env))):
                    env[begin] = i
                    self._iterate(body, env, splits)
            elif item.op == "placeholder":
                env[item] = next(feed)
            elif item.op == "output":
                return self._value(item.args[0], env)
            elif not _is_check(item):
                env[item] = self._call(item, env, {})
        raise AssertionError

    def _value(self, arg: Any, env: dict[fx.Node, Any]) -> Any:
        return fx.node.map_arg(arg, env.__getitem__)

    def _iterate(self, body: list[fx.Node], env: dict[fx.Node, Any], splits: dict[fx.Node, Any]) -> None:
        for node in body:
            if node.target in markers.LOOP_SKIP:
                if bool(self._value(node.args[0], env)) == node.args[1]:
                    return
            else:
                env[node] = self._call(node, env, splits)
        for source, lists in self.appends.items():
            if source in body:
                for collected in lists:
                    env[collected].append(env[source])

    def _call(self, node: fx.Node, env: dict[fx.Node, Any], splits: dict[fx.Node, Any]) -> Any:
        args, kwargs = self._value(node.args, env), self._value(node.kwargs, env)
        if node.target is markers.ROLL:
            return torch.roll(*args)
        if node.target is markers.SPLIT_GET:
            x, lengths, index, dim = args
            if node not in splits:
                splits[node] = torch.split(x, lengths.tolist(), dim)
            return splits[node][index]
        if node.target is markers.LOOP_CHECK:
            if not args[0]:
                raise AssertionError(args[1])
            return None
        if node.target is markers.LIST_GET:
            return args[0][args[1]]
        if node.target is markers.RAGGED_CAT:
            return torch.cat(args[0], args[1])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.part.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.part)
        return node.target(*args, **kwargs)  # type: ignore[operator]
