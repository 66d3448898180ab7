"""An ``autograd.Function`` around the messages of a roll: its forward is one, and its backward the roll back.

The forward is run on the machine of the loop, as if it stood in the body. Nothing else passes gradients on through
messages, so what it returns may only be put away as it is; the backward must give, of a gradient of that, what a roll
the other way gives, with zeros where the roll has filled, and its own messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import AUTOGRAD_FUNCTION, example, op_name, storage
from packpass.semantics.effects import changes_grad_mode
from packpass.semantics.expand import several
from packpass.semantics.inner_graphs import inner_graph, places_of
from passes.fuse_boundary_exchange.values import UNKNOWN, ZERO, Constant, Memory, Own, Run, View
from passes.loops import LoopFound
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.fuse_boundary_exchange.machine import Machine


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A call of one: its backward, and what that is given behind the gradients of the results."""

    node: fx.Node
    backward: fx.GraphModule
    results: tuple[Any, ...]
    saved: tuple[Any, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Halo:
    """A call of one that only exchanges slots at the ends of shards: what it is given of the document."""

    function: Function
    given: tuple[Run, ...]
    result: View
    messages: frozenset[tuple[int, int]]


def with_messages(node: fx.Node) -> fx.GraphModule | None:
    """The forward of an ``autograd.Function`` that sends or receives."""
    if op_name(node) != AUTOGRAD_FUNCTION:
        return None
    forward = inner_graph(node, 0)
    sends = forward is not None and any(n.target in markers.MESSAGES for n in forward.graph.nodes)
    return forward if sends else None


def is_sent(node: fx.Node) -> bool:
    """Is something of the operands sent, or do they go to a function that sends or receives?"""
    return node.target is markers.SEND or with_messages(node) is not None


def is_message(node: fx.Node) -> bool:
    """Is this a message, or does it call a function that sends or receives some?"""
    return node.target in (markers.SEND, markers.RECV) or with_messages(node) is not None


def exchanges_in(loop: LoopFound) -> Callable[[fx.Node], bool]:
    """Is a node of the loop a message, or does it take what one has brought? (Some ranks only receive.)"""
    received = {storage(node.args[0]) for node in loop.nodes if node.target is markers.RECV} - {None}

    def is_exchange(node: fx.Node) -> bool:
        if is_message(node):
            return True
        used = isinstance(example(node), (torch.Tensor, type(None)))
        return used and any(storage(n) in received for n in node.all_input_nodes)

    return is_exchange


def markers_in(nodes: Any, *kinds: Any) -> list[fx.Node]:
    """Marker nodes of these kinds, also in the forwards of functions that are called."""
    found = []
    for node in nodes:
        forward = with_messages(node)
        if node.target in kinds:
            found.append(node)
        elif forward is not None:
            found += markers_in(forward.graph.nodes, *kinds)
    return found


def call(machine: Machine, node: fx.Node) -> tuple[Any, ...]:
    """The results of a call, whose forward is part of the body."""
    forward, backward = with_messages(node), inner_graph(node, 1)
    if forward is None or backward is None:
        raise Refused("no-rule", "an autograd.Function between the messages of a roll is not understood", node)
    if node.kwargs.get("non_differentiable_idx") or node.kwargs.get("saved_for_backward_idx"):
        raise Refused("message-gradient", "an autograd.Function around messages keeps tensors for its backward", node)
    given, before = [_given(machine, arg, node) for arg in node.args[2:]], len(machine.messages)
    results, *rest = run(machine, forward, given)
    returned = several(results)
    saved = tuple(value for part in rest for value in several(part))
    function = Function(node, backward, returned, saved)
    views = [value for value in returned if isinstance(value, View)]
    if len(views) != 1 or any(isinstance(value, View) for value in saved):
        raise Refused("message-gradient", "an autograd.Function around messages returns or keeps more tensors", node)
    parts = [value for value in given if isinstance(value, View)]
    if len(parts) == 1 and not machine.is_document(views[0]):
        asked = frozenset(message.number for message in machine.messages[before:])
        machine.halos.append(Halo(function, machine.read(parts[0], node), views[0], asked))
    # Memory of its own: what the function returns is told from what the body makes of it.
    made = machine.fresh(machine.read(views[0], node), views[0])
    made.memory.function = function
    return tuple(made if value is views[0] else value for value in returned)


def _given(machine: Machine, arg: Any, node: fx.Node) -> Any:
    """An argument: a part of a document, a row from outside, an integer, or something that nobody asks about."""
    found = machine.value(arg)
    return None if found is arg and arg in machine.inside else found


def run(machine: Machine, module: fx.GraphModule, given: list[Any]) -> Any:
    """What the graph of a function returns for arguments that are known, or None."""
    nodes = list(module.graph.nodes)
    machine.inside = machine.inside | set(nodes)
    for place, value in zip(places_of(module), given, strict=False):
        if value is not None:
            machine.values[place] = value
    for node in nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], machine.values.get)
        if node.op != "placeholder" and not changes_grad_mode(node):
            machine.step(node)
    raise Refused("no-rule", "a function without a result")


def gradient(machine: Machine, function: Function, like: View) -> tuple[Machine, fx.Node, View]:
    """The backward of ``function``: the machine that ran it, the gradient of ``like``, and what is made of that, which
    has as many slots."""
    places = places_of(function.backward)
    at = next(i for i, value in enumerate(function.results) if isinstance(value, View))
    assert like.dim is not None
    row = Own(places[at], like.dim, ZERO)
    grad = View(
        Memory((Run(like.length, row),), like.length, like.empty), ZERO, like.length, like.empty, like.dim, True
    )
    ran = machine.another(function.node)
    given = [grad if i == at else None for i in range(len(function.results))] + list(function.saved)
    found = several(run(ran, function.backward, given))
    ran.finish()
    views = [value for value in found if isinstance(value, View)]
    sized = [bool(view.kept) and (view.length, view.dim) == (like.length, like.dim) for view in views]
    if sized != [True] or (like.length == machine.whole and not ran.is_document(views[0])):
        raise Refused(
            "message-gradient", "the backward of an autograd.Function gives more than one gradient", function.node
        )
    return ran, places[at], views[0]


def is_nothing(fill: Constant) -> bool:
    """Zero, or not known on this rank?"""
    return fill == UNKNOWN or (not isinstance(fill.value, complex) and fill.value == 0)
