"""Places that are written down in the body of a loop, ``chunks.index_select(0, torch.tensor([r, 3 - r]))``, as one
tensor in front of it.

Also the list in ``chunks[:, [1, 2]]``. Every document makes the same tensor anew, and looks up by it; the passes know
what is looked up by a tensor from outside. Not a rewrite of its own: runs before the passes that look at loops, changes
no value, and leaves a tensor at which anybody could see that there is one of it for each document: one that is
written or put into a list.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import call_of, example, is_tensor, storage
from packpass.semantics.effects import effects_of
from passes.building import Builder
from passes.loops import LoopFound, find


def with_places_in_front(graph: fx.Graph) -> None:
    """Make such tensors once, in front of the loop."""
    for loop in find(graph):
        made: dict[Any, fx.Node] = {}
        for node in [node for _, body, _ in loop.iterations for node in body]:
            numbers = _written_down(node)
            if numbers is not None:
                node.replace_all_uses_with(_in_front(graph, loop, made, numbers, node))
                graph.erase_node(node)
            elif node.target is operator.getitem and is_tensor(node.args[0]):
                _look_up(graph, loop, made, node)


def _written_down(node: fx.Node) -> list[int] | None:
    """The places in a tensor that is nothing but looked up by; None of others."""
    if node.target is not torch.tensor or len(node.args) != 1 or not _are_places(node.args[0]):
        return None
    fake, own = example(node), storage(node)
    if not isinstance(fake, torch.Tensor) or fake.dtype != torch.int64 or own is None:
        return None
    plain = all(_only_reads(user, own) for user in node.users)
    return list(node.args[0]) if plain and node.users else None  # type: ignore[arg-type]


def _only_reads(user: fx.Node, memory: Any) -> bool:
    if call_of(user) is None or not effects_of(user).repeatable:
        return False
    return storage(user) != memory or all(_only_reads(further, memory) for further in user.users)


def _are_places(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(type(number) is int for number in value)


def _look_up(graph: fx.Graph, loop: LoopFound, made: dict[Any, fx.Node], node: fx.Node) -> None:
    """Lists among the entries of an index as tensors; one of them, since several are looked up in pairs."""
    base, index = node.args
    entries = list(index) if isinstance(index, tuple) else [index]
    lists = [at for at, entry in enumerate(entries) if isinstance(entry, list) and _are_places(entry)]
    if len(lists) != 1 or any(map(is_tensor, entries)):
        return
    (at,) = lists
    entries[at] = _in_front(graph, loop, made, entries[at], base)  # type: ignore[arg-type]
    node.update_arg(1, tuple(entries) if isinstance(index, tuple) else entries[0])


def _in_front(graph: fx.Graph, loop: LoopFound, made: dict[Any, fx.Node], numbers: Any, like: fx.Node) -> fx.Node:
    device = example(like).device
    key = (tuple(numbers), device)
    if key not in made:
        made[key] = Builder(graph, loop.iterations[0][0], like).call(torch.tensor, list(numbers), device=device)
    return made[key]
