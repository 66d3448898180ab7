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
from torch.nn.utils.rnn import pad_sequence

from packpass import markers
from packpass.capture.assumed import EQUAL_SIZES
from packpass.capture.divisible import EQUAL_PARTS
from packpass.decisions.location import location_of_node
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
)
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


def reference(gm: fx.GraphModule, doubt: str) -> Callable[..., Any]:
    """A replay, op by op, to stand beside the rewritten graph, which raises for lengths that do not divide."""
    known = "" if doubt in (EQUAL_PARTS, EQUAL_SIZES) else doubt
    return replay(gm, lambda part, inputs: part.forward, known, beside=True)


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
    made_up = (markers.LIST_COLLECT, *markers.LIST_USES, markers.SPLIT_GET, markers.LOOP_BEGIN)
    for node in reversed(list(graph.nodes)):
        if not node.users and (is_check(node) or is_symbolic(node)) and _depends_on(node, made_up):
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


def _traced_shape(node: fx.Node) -> tuple[Any, ...] | None:
    """The traced size of each dimension: a number, a symbol, or None for anything else."""
    fake = node.meta.get("example_value")
    if not isinstance(fake, torch.Tensor):
        return None
    sizes = (s.node.expr if isinstance(s, torch.SymInt) else s for s in fake.shape)
    return tuple(s if isinstance(s, int) or s.is_Symbol else None for s in sizes)


def _as_traced(node: fx.Node, value: torch.Tensor, traced: tuple[Any, ...] | None, sizes: dict[Any, int]) -> None:
    """Raise RuntimeError if a result has not the shape that tracing took for granted.

    Where tracing cannot know, it takes lengths for neither 1 nor broadcast; Python numbers taken from such a shape
    would be wrong. ``sizes`` are the symbols seen in this iteration.
    """
    if traced is None:
        return
    fits = value.dim() == len(traced)
    for have, want in zip(value.shape, traced, strict=False):
        fits = fits and (want is None or have == (want if isinstance(want, int) else sizes.setdefault(want, have)))
    if not fits:
        raise RuntimeError(
            f"packpass: at {location_of_node(node) or node.name} a loop over documents met a tensor of shape "
            f"{tuple(value.shape)} that was traced as {traced}; a document of one token was probably broadcast. "
            'options={"packpass.symbolic_loops": False} compiles the model without capturing such loops'
        )


def _none_of(node: fx.Node) -> torch.Tensor:
    """What a join has of documents where none has appended anything, beside what is in the list all the same."""
    fake: torch.Tensor = node.meta["example_value"]
    at = int(node.args[1]) % fake.dim()  # type: ignore[arg-type]
    sizes = [0 if d == at else size for d, size in enumerate(fake.shape)]
    if not all(isinstance(size, int) for size in sizes):
        raise RuntimeError(
            f"packpass: at {location_of_node(node) or node.name} no document has appended to a list of tensors whose "
            'sizes change. options={"packpass.symbolic_loops": False} compiles the model without capturing such loops'
        )
    return torch.empty(sizes, dtype=fake.dtype, device=fake.device)


class _Loops:
    """Runs a part that consists of loops over documents, one document after the other."""

    def __init__(self, part: fx.GraphModule) -> None:
        self.part = part
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
        self.shapes = {node: _traced_shape(node) for nodes in bodies for node in nodes}

    def __call__(self, *inputs: Any) -> Any:
        env: dict[fx.Node, Any] = {c: [] for cs in self.appends.values() for c in cs}
        feed = iter(inputs)
        for item in self.program:
            if isinstance(item, tuple):
                begin, body = item
                splits: dict[fx.Node, Any] = {}
                loop: Any = begin.args[1]
                for i in range(int(self._value(begin.args[0], env))):
                    env[begin] = i
                    self._iterate(body, self.appends.get(loop, []), env, splits)
            elif item.op == "placeholder":
                env[item] = next(feed)
            elif item.op == "output":
                return self._value(item.args[0], env)
            elif not is_check(item):
                env[item] = self._call(item, env, {})
        raise AssertionError

    def _value(self, arg: Any, env: dict[fx.Node, Any]) -> Any:
        return fx.node.map_arg(arg, env.__getitem__)

    def _iterate(
        self, body: list[fx.Node], lists: list[fx.Node], env: dict[fx.Node, Any], splits: dict[fx.Node, Any]
    ) -> None:
        sizes: dict[Any, int] = {}
        for node in body:
            if node.target in markers.LOOP_SKIP:
                if bool(self._value(node.args[0], env)) == node.args[1]:
                    return
            else:
                value = env[node] = self._call(node, env, splits)
                if isinstance(value, torch.Tensor):
                    _as_traced(node, value, self.shapes[node], sizes)
        for collected in lists:
            env[collected].append(self._value(collected.args[0], env))

    def _call(self, node: fx.Node, env: dict[fx.Node, Any], splits: dict[fx.Node, Any]) -> Any:
        args, kwargs = self._value(node.args, env), self._value(node.kwargs, env)
        if isinstance(node.target, torch._ops.OpOverload) and node.target in markers.SHADOWS:
            result = markers.SHADOWS[node.target](*args)
            if node.target is markers.CHUNK and (len(result) != args[1] or args[0].shape[args[2]] % args[1]):
                raise RuntimeError(f"packpass: {args[0].shape[args[2]]} slots are not {args[1]} equal parts")
            return result
        if node.target is markers.SPLIT_GET:
            x, lengths, index, dim = args
            if node not in splits:
                splits[node] = torch.split(x, lengths.tolist(), dim)
            return splits[node][index]
        if node.target is markers.SEGMENT:
            x, boundaries, index, dim = args
            start, stop = boundaries[index : index + 2].tolist()
            return x.narrow(dim, start, stop - start)
        if node.target is markers.MASKED:
            return args[0][args[1]]
        if node.target is markers.MASKED_PUT:
            args[0][args[1]] = args[2]
            return None
        if node.target is markers.LOOP_CHECK:
            if not args[0]:
                raise AssertionError(args[1])
            return None
        if node.target is markers.LIST_GET:
            return args[0][args[1]]
        if node.target is markers.RAGGED_CAT and not args[0] and args[2:] == (False,):
            return _none_of(node)
        if node.target in (markers.RAGGED_CAT, markers.LIST_JOIN):
            return torch.cat(args[0], args[1])
        if node.target is markers.LIST_STACK:  # of none for a sum, say: a program that stacks them has asserted one
            return torch.stack(args[0], args[1]) if args[0] else _none_of(node)
        if node.target is markers.LIST_DIAGONAL:
            return torch.block_diag(*args[0])
        if node.target is markers.LIST_BOUNDARIES:
            lengths = [part.shape[args[2] if len(args) > 2 else 0] for part in args[0]]
            return torch.tensor([0, *lengths], device=args[0][0].device).cumsum(0)
        if node.target is markers.LIST_PAD:
            return pad_sequence(args[0], args[2], args[3], args[4])
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "call_module":
            return self.part.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.part)
        return node.target(*args, **kwargs)  # type: ignore[operator]
