"""What a node of a Dynamo graph does besides computing its result: may it be computed earlier than it is written?

A node is *pure* if its result depends on its inputs alone and nothing else changes: no memory written, no random
number drawn, nothing read on the host, no shape that depends on data. Names are looked up among torch's own ops, whose
schemas and tags say so; an op that is not found there is not pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import is_collective
from packpass.semantics import example, op_name
from packpass.semantics.effects import ENTER_AUTOCAST, EXIT_AUTOCAST, changes_grad_mode, effects_of, written_inputs
from passes.nodes import KNOWN, namespace_of

_KNOWN = KNOWN | {"packpass_capture"}
"""Namespaces of ops that do what their schemas say, and nothing else."""
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """The tensors a node stands for: its value, or those in a list."""
    value = example(node)
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]


def body_of(node: fx.Node) -> fx.GraphModule | None:
    """The graph that a ``get_attr`` node stands for."""
    if node.op != "get_attr":
        return None
    found: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, fx.GraphModule) else None


def bodies_of(node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs of a higher-order operator."""
    yield from (body for n in node.all_input_nodes if (body := body_of(n)) is not None)


def is_pure(node: fx.Node) -> bool:
    """May this node be computed at any place where its inputs have the values they have now?"""
    if node.op in ("placeholder", "get_attr"):
        return True
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _pure_bodies(node)
    if node.op not in ("call_function", "call_method"):
        return False
    if isinstance(target, torch._ops.OpOverload):
        # A check that an operator makes (of sizes, of boundaries) holds or does not wherever it stands.
        if target.namespace == "packpass":
            return not target._schema.is_mutable
        return target not in markers.MARKERS and dataclasses.replace(effects_of(node), checks=False).pure
    return effects_of(node).pure


def _pure_bodies(node: fx.Node) -> bool:
    """A higher-order operator that only calls its bodies, all of whose nodes are pure."""
    bodies = list(bodies_of(node))
    return bool(bodies) and all(
        n.op == "output" or changes_grad_mode(n) or is_pure(n) for body in bodies for n in body.graph.nodes
    )


def written_memory(node: fx.Node) -> set[Any] | None:
    """Storages that a node may write; None: any."""
    if isinstance(node.target, torch._ops.HigherOrderOperator) and _pure_bodies(node):
        return set()
    found: set[Any] = set()
    for target in written_inputs(node):
        tensors = tensors_of(target)
        if not tensors or any(t.layout is not torch.strided for t in tensors):
            return None
        found.update(t.untyped_storage()._cdata for t in tensors)
    return found


def read_memory(node: fx.Node) -> set[Any]:
    """Storages that a node may read."""
    tensors = (t for n in node.all_input_nodes for t in tensors_of(n))
    return {t.untyped_storage()._cdata for t in tensors if t.layout is torch.strided}


# === Modes =====================================================================================================


@dataclasses.dataclass(frozen=True)
class Modes:
    """What holds where a node is: gradients recorded, open autocast regions, and a count of everything else that might
    change the meaning of what follows (streams, hooks, profiler ranges, checks)."""

    grad: bool
    autocasts: tuple[fx.Node, ...]
    era: int


def modes_of(graph: fx.Graph, understood: Collection[fx.Node] = ()) -> dict[fx.Node, Modes]:
    """The modes at every node. A node with an effect that is not understood starts a new era."""
    found: dict[fx.Node, Modes] = {}
    modes = Modes(True, (), 0)
    for node in graph.nodes:
        if changes_grad_mode(node):
            modes = dataclasses.replace(modes, grad=bool(node.args[0]))
        elif op_name(node) == ENTER_AUTOCAST:
            modes = dataclasses.replace(modes, autocasts=(*modes.autocasts, node))
        elif op_name(node) == EXIT_AUTOCAST:
            left = tuple(n for n in modes.autocasts if n is not node.args[0])
            modes = dataclasses.replace(modes, autocasts=left)
        elif node not in understood and _not_understood(node):
            modes = dataclasses.replace(modes, era=modes.era + 1)
        found[node] = modes
    return found


def _not_understood(node: fx.Node) -> bool:
    """May the node do something that its result and what it writes do not tell, such as a collective of its own?"""
    if node.op == "call_module":
        return True
    if node.op not in ("call_function", "call_method") or changes_grad_mode(node) or is_collective(node.target):
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        bodies = list(bodies_of(node))
        return not bodies or any(_not_understood(n) or _is_collective(n) for body in bodies for n in body.graph.nodes)
    if op_name(node) == "" or namespace_of(node.target) not in (None, "_c10d_functional", *_KNOWN):
        return True
    if isinstance(example(node), _NUMBERS) or tensors_of(node) or op_name(node) in ("assert_async", "size"):
        return False
    return not is_pure(node) and not written_inputs(node)


def _is_collective(node: fx.Node) -> bool:
    return node.op == "call_function" and is_collective(node.target)
