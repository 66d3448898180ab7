"""The graphs of a function with a backward of its own, without the sizes of documents that Dynamo hands to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass.semantics import AUTOGRAD_FUNCTION, example, is_tensor, op_name
from packpass.semantics.effects import changes_grad_mode
from packpass.semantics.inner_graphs import inner_graph, places_of, result_of
from passes.refused import Refused

_KNOWN = {"non_differentiable_idx", "saved_for_backward_idx", "dirty_idx"}


@dataclasses.dataclass(frozen=True)
class Inner:
    """A graph that a higher-order operator runs; equal to another one that does the same."""

    said: tuple[Any, ...]
    """What it does, in numbers of its nodes: every call has graphs of its own."""
    graph: fx.GraphModule = dataclasses.field(compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Function:
    """A call on tensors alone: its forward, which returns results and what it keeps, and its backward, which takes
    gradients of the results and what was kept."""

    node: fx.Node
    forward: Inner
    backward: Inner
    operands: tuple[fx.Node, ...]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def results(self) -> tuple[Sequence[Any], Sequence[Any]]:
        """Of the forward: what it returns, and what it keeps for the backward."""
        returned, kept = result_of(self.forward.graph)
        return returned, kept

    @property
    def gradients(self) -> Sequence[Any]:
        """Of the backward, one for each operand."""
        found: Sequence[Any] = result_of(self.backward.graph)
        return found

    def calls(self) -> list[fx.Node]:
        """What both graphs do."""
        return [*calls(self.forward.graph), *calls(self.backward.graph)]


def function_of(node: fx.Node) -> Function | None:
    """A call of a function with a backward of its own; None of anything else.

    Raises:
        Refused: it takes a number of the document, or writes what it is given.
    """
    if op_name(node) != AUTOGRAD_FUNCTION or len(node.args) < 3:
        return None
    forward, backward = inner_graph(node, 0), inner_graph(node, 1)
    if forward is None or backward is None or not isinstance(example(node), (tuple, list)):
        return None
    if not set(node.kwargs) <= _KNOWN or node.kwargs.get("dirty_idx"):
        raise Refused("no-rule", "a function with a backward of its own writes what it is given", node)
    return _on_tensors(node, forward, backward)


def _on_tensors(node: fx.Node, forward: fx.GraphModule, backward: fx.GraphModule) -> Function:
    given: tuple[Any, ...] = tuple(node.args[2:])
    tensors = [at for at, arg in enumerate(given) if is_tensor(arg)]
    returned, kept = result_of(forward)
    returned = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    kept_at = [at for at, value in enumerate(kept) if is_tensor(value)]
    gradients = result_of(backward)
    gradients = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    if not all(map(is_tensor, returned)) or len(gradients) != len(given):
        raise Refused("no-rule", "a function with a backward of its own returns something beside tensors", node)
    taken = [*range(len(returned)), *(len(returned) + at for at in kept_at)]
    first = _copy(node, forward, tensors, (tuple(returned), tuple(kept[at] for at in kept_at)))
    second = _copy(node, backward, taken, tuple(gradients[at] for at in tensors))
    saved = node.kwargs.get("saved_for_backward_idx")
    kwargs: dict[str, Any] = dict(node.kwargs)
    if saved is not None:
        kwargs["saved_for_backward_idx"] = [new for new, at in enumerate(kept_at) if at in saved]  # type: ignore[operator]
    frozen = tuple(sorted((name, tuple(value)) for name, value in kwargs.items()))
    return Function(node, first, second, tuple(given[at] for at in tensors), frozen)


def _copy(node: fx.Node, gm: fx.GraphModule, places: list[int], result: Any) -> Inner:
    """The same graph with these of its placeholders, which are all that its calls use, and this result."""
    graph, env = fx.Graph(), {}
    given = places_of(gm)
    for at in places:
        env[given[at]] = graph.node_copy(given[at])
    for call in calls(gm, modes=True):
        missing = [n for n in call.all_input_nodes if n not in env]
        if missing or call.op in ("get_attr", "call_module"):
            raise Refused("no-rule", "a function with a backward of its own takes a number of the document", node)
        env[call] = graph.node_copy(call, env.__getitem__)
    used: list[fx.Node] = []
    fx.map_arg(result, used.append)
    if any(n not in env for n in used):
        raise Refused("no-rule", "a function with a backward of its own hands on a number of the document", node)
    graph.output(fx.map_arg(result, env.__getitem__))
    return Inner(_said(graph), fx.GraphModule(torch.nn.Module(), graph))


def calls(gm: fx.GraphModule, modes: bool = False) -> list[fx.Node]:
    """What a graph does, without the switching of gradients, which is done for it anyway; ``modes``: with that."""
    ends = ("placeholder", "output")
    return [n for n in gm.graph.nodes if n.op not in ends and (modes or not changes_grad_mode(n))]


def _said(graph: fx.Graph) -> tuple[Any, ...]:
    numbers: dict[fx.Node, str] = {}
    lines = []
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{numbers[n]}")
        numbers[node] = str(len(numbers))
        target = node.op if node.op in ("placeholder", "output") else node.target
        lines.append((node.op, target, repr(args), repr(kwargs)))
    return tuple(lines)
