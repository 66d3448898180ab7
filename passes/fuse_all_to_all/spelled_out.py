"""Indices that a program spells out: a list, ``torch.tensor`` of one, or a tensor that it makes of constants alone.

    ids = torch.empty(2 * cp, dtype=torch.int32)
    for rank in range(cp):
        ids[rank], ids[rank + cp] = 2 * rank, 2 * cp - 2 * rank - 1

Nothing of such a tensor depends on what the model is given, so that its numbers are found by running its few calls.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import contents_of, example, storage
from packpass.semantics.effects import effects_of, written_inputs
from packpass.semantics.meaning import Uninitialised

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body

LIMIT = 1 << 16
"""Numbers and calls beyond which it is not worth the time."""

_NOTHING = -(1 << 31)
"""What is in new memory before it is written: no index."""


def numbers_of(body: Body, index: object, reader: fx.Node) -> list[int] | None:
    """The numbers of an index along one dimension where ``reader`` reads it; None if they depend on anything."""
    if isinstance(index, fx.Node):
        index = _run(body, index, reader)
        body.spelled_out.append(index)
    if isinstance(index, (tuple, list)) and index and all(type(i) is int for i in index):
        return [int(i) for i in index]
    return None


def _run(body: Body, index: fx.Node, reader: fx.Node) -> list[int] | None:
    calls = _calls(body, index, reader)
    if calls is None:
        return None
    try:
        with torch.device("cpu"):
            made = _made(sorted(calls), index)
    except Exception:  # what raises here raises where the program runs it
        return None
    return made.tolist() if type(made) is torch.Tensor else None


def _made(calls: list[fx.Node], index: fx.Node) -> Any:
    values: dict[fx.Node, Any] = {}
    for node in calls:
        args: Any = fx.map_arg([_on_host(arg) for arg in node.args], values.__getitem__)
        kwargs: Any = fx.map_arg({name: _on_host(arg) for name, arg in node.kwargs.items()}, values.__getitem__)
        if node.op == "call_method":
            values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        new = values[node]
        if isinstance(contents_of(node), Uninitialised):
            if new.dtype not in (torch.int32, torch.int64):
                return None
            new.fill_(_NOTHING)
    return values[index]


def _on_host(arg: Any) -> Any:
    return torch.device("cpu") if isinstance(arg, torch.device) else arg


def _calls(body: Body, index: fx.Node, reader: fx.Node) -> set[fx.Node] | None:
    """The calls that make a tensor what it is where it is read; None if they are others than such of constants, or if
    they do not do the same for every document."""
    before = list(itertools.takewhile(lambda node: node is not reader, index.graph.nodes))
    found: set[fx.Node] = set()
    memory: set[object] = set()
    stack = [index]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if not _is_of_constants(node) or len(found) > LIMIT:
            return None
        found.add(node)
        stack += node.all_input_nodes
        own = storage(node)
        if own is not None and own not in memory:
            memory.add(own)
            stack += [other for other in before if any(storage(n) == own for n in written_inputs(other))]
    # What is written in the loop was different for the documents before, unless each makes it anew.
    inside = {storage(n) for n in found if n in body.machine.inside} - {None}
    outside = {storage(n) for n in found if n not in body.machine.inside} - {None}
    return None if inside & outside or _written_later(body, outside) else found


def _written_later(body: Body, memory: set[object]) -> bool:
    return any(storage(n) in memory for node in body.machine.inside for n in written_inputs(node))


def _is_of_constants(node: fx.Node) -> bool:
    """A call that makes whole numbers, or puts them somewhere, and does nothing else."""
    if node.op not in ("call_function", "call_method"):
        return False
    fake, effects = example(node), effects_of(node)
    if isinstance(fake, torch.Tensor):
        known = not fake.is_floating_point() and all(isinstance(size, int) for size in fake.shape)
        if not known or fake.numel() > LIMIT:
            return False
    elif fake is not None and type(fake) not in (int, bool, torch.Size):
        return False
    return dataclasses.replace(effects, writes=()).pure
