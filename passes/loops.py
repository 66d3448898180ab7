"""Captured loops in a graph: what stands between the markers, what may stand in front of them, what must not leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.decisions.location import location_of_node
from packpass.semantics import example, is_tensor, storage
from packpass.semantics.effects import written_inputs
from passes.nodes import needed_for
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class LoopFound:
    """A captured loop: its traced iterations as ``(begin, body, end)`` and the lists it fills."""

    id: int
    iterations: tuple[tuple[fx.Node, tuple[fx.Node, ...], fx.Node], ...]
    collects: tuple[fx.Node, ...]
    others: tuple[tuple[fx.Node, ...], ...] = ()
    """For each iteration, the beginnings of loops that it does again: they are numbers of the same document."""

    @property
    def length(self) -> Any:
        """How many documents it goes over, a node or a number."""
        return self.iterations[0][0].args[0]

    @property
    def nodes(self) -> set[fx.Node]:
        return {n for begin, body, end in self.iterations for n in (begin, *body, end)}

    @property
    def written(self) -> set[Any]:
        """The memory (`storage`) that the loop writes to."""
        return {storage(target) for node in self.nodes for target in written_inputs(node)} - {None}


def find(graph: fx.Graph) -> list[LoopFound]:
    """Every loop between markers, in graph order."""
    open_: list[tuple[fx.Node, list[fx.Node]]] = []
    found: dict[int, list[tuple[fx.Node, tuple[fx.Node, ...], fx.Node]]] = {}
    collects: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target is markers.LOOP_BEGIN:
            open_.append((node, []))
        elif node.target is markers.LOOP_END:
            begin, body = open_.pop()
            found.setdefault(int(str(begin.args[1])), []).append((begin, tuple(body), node))
        else:
            if node.target in (markers.LIST_COLLECT, markers.LIST_CONTINUE):
                collects.setdefault(node.args[2], []).append(node)
            for _, body in open_:
                body.append(node)
    return [LoopFound(i, tuple(its), tuple(collects.get(i, ()))) for i, its in found.items()]


def drop_idle(graph: fx.Graph) -> None:
    """Take loops out that only look at the number of their document: those that wait for what is complete."""
    for loop in find(graph):
        body = [node for _, nodes, _ in loop.iterations for node in nodes]
        idle = all(node.target in ASSERTIONS or _is_number(node) for node in body)
        if loop.collects or not idle or any(user not in loop.nodes for node in loop.nodes for user in node.users):
            continue
        for node in sorted(loop.nodes, reverse=True):
            graph.erase_node(node)


def _is_number(node: fx.Node) -> bool:
    known = node.op == "call_function" and node.target not in (*markers.MARKERS, *WAYS)
    return known and isinstance(example(node), (int, torch.SymInt, torch.SymBool))


def first_line(loop: LoopFound) -> str:
    """The user's line of a loop that a pass has taken out of another one."""
    lines = (location_of_node(node) for node in loop.iterations[0][1])
    return next((line for line in lines if line), "<unknown>")


def hoistable(graph: fx.Graph, loop: LoopFound) -> tuple[fx.Node, ...]:
    """Sizes of outside tensors that Dynamo computes inside an iteration and uses in the next, or after it, as well."""
    nodes, keep = loop.nodes, []
    iterations = [{begin, *body, end} for begin, body, end in loop.iterations]
    depends: set[fx.Node] = {begin for begin, _, _ in loop.iterations}
    for _, body, _ in loop.iterations:
        for node in body:
            fake = example(node)
            inputs = [n for n in node.all_input_nodes if n in nodes]
            symbolic = isinstance(fake, (int, torch.SymInt, torch.SymBool)) and node.op == "call_function"
            if not symbolic or any(n in depends for n in inputs):
                depends.add(node)
            else:
                keep.append(node)
    own = {node: iteration for iteration in iterations for node in iteration}
    escaping = [n for n in keep if any(u not in own[n] for u in n.users)]
    needed = needed_for(escaping, nodes)
    return tuple(n for n in graph.nodes if n in needed)


def list_sizes(loop: LoopFound) -> tuple[fx.Node, ...]:
    """Nodes that only assert something about the size of a collected list (Dynamo's own), users after their inputs."""
    found = [node for collect in loop.collects for node in only_asserted(collect)]
    return tuple(dict.fromkeys(found))


def is_unused(node: fx.Node) -> bool:
    """Is a tensor, or a list, only there for what is asserted of its layout?"""
    return is_tensor(node) and set(node.users) <= set(only_asserted(node))


WAYS = (*markers.LOOP_SKIP, *markers.LOOP_BRANCH, markers.LOOP_CHECK)
"""What says that a part of a body is not for all documents; what leaves the loop would be, and may raise."""
ASSERTIONS = (torch.ops.aten._assert_scalar.default, torch._check)


def asserted_alone(number: fx.Node) -> bool:
    """Is a number only looked at by assertions?"""
    numbers = (int, torch.SymInt, torch.SymBool)
    return all(
        user.target in ASSERTIONS or (isinstance(example(user), numbers) and asserted_alone(user))
        for user in number.users
    )


LAYOUT = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_storage_offset.default,
)
"""What torch reads of a tensor's layout to assert something about it; which of them differs between releases."""


def only_asserted(tensor: fx.Node) -> list[fx.Node]:
    """Nodes that only assert something about the layout of a tensor, users before their inputs."""
    found: list[fx.Node] = []

    def only_asserts(node: fx.Node) -> bool:
        if node.target in ASSERTIONS:
            found.append(node)
            return True
        if node.op != "call_function" or not isinstance(example(node), (int, torch.SymInt, torch.SymBool)):
            return False  # a write that takes the size for a bound has no value at all
        ok = all(only_asserts(user) for user in list(node.users))
        found.append(node)
        return ok

    for user in list(tensor.users):
        if user.target in LAYOUT:
            mark = len(found)
            if not only_asserts(user):
                del found[mark:]
    return list(dict.fromkeys(found))


def no_escape(loop: LoopFound, said: Callable[[fx.Node], str]) -> None:
    """Nothing of a document but what is in a list may be used after the loop; raises `Refused`.

    ``said``: a node, for the user."""
    nodes = loop.nodes
    for node in nodes:
        for user in node.users:
            if user not in nodes and user not in loop.collects:
                raise Refused("leaked-local", f"{said(node)} of one document is used after the loop", user)
