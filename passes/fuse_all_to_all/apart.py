"""A loop that exchanges its documents more than once, as several: what it exchanges first, and the rest with that.

Before::

    for s, e in documents:
        heads = all_to_all(x[s:e].view(...))
        back.append(all_to_all(attention(heads).view(...)))

After::

    for s, e in documents:
        parts.append(all_to_all(x[s:e].view(...)))
    for i, (s, e) in enumerate(documents):
        back.append(all_to_all(attention(parts[i]).view(...)))

Why it is safe: what moves to the first loop is understood whole, from the rows that are cut to the documents that it
gives, and is proven there as any loop with an exchange. The rest uses nothing of it but these documents and numbers,
and writes nothing that it reads. The rest has one exchange less.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass.semantics import example, storage
from packpass.semantics.effects import changes_mode, written_inputs
from passes.building import Builder
from passes.document_loops.fission import Prefix
from passes.document_loops.op_names import is_size_check
from passes.fuse_all_to_all.blocks import TOKENS, Blocks, size_of
from passes.fuse_all_to_all.body import Body
from passes.fuse_all_to_all.counted import only_checked
from passes.fuse_all_to_all.held import Buffer
from passes.fuse_all_to_all.needed import needed
from passes.fuse_all_to_all.scalars import Lin
from passes.loops import LoopFound


@dataclasses.dataclass(frozen=True)
class Recount:
    """A number that the rest reads off a tensor that moves: ``units`` chunks of a document."""

    reader: fx.Node
    number: fx.Node
    units: int


@dataclasses.dataclass(frozen=True)
class First:
    """One iteration: what moves, and the numbers that the rest counts on ``measure``, which stays, instead."""

    prefix: Prefix
    recounts: tuple[Recount, ...]
    beside: tuple[fx.Node, ...]
    """What only counts what moves, or asserts something about its sizes."""
    measure: tuple[int, int]
    """The token dimension of the first result, and of how many chunks it is."""


def exchanged(loop: LoopFound, bodies: Sequence[Body]) -> list[First]:
    """Of each iteration, the documents that its first exchanges give, and all that makes them; none if the rest needs
    more of it."""
    if len(loop.iterations) != 2 or any(changes_mode(node) for node in loop.nodes):
        return []
    found = [_first(loop, body, nodes) for body, (_, nodes, _) in zip(bodies, loop.iterations, strict=True)]
    known = [first for first in found if first is not None]
    # That two iterations do the same is for each of the two loops to prove.
    targets = [[result.target for result in first.prefix.results] for first in known]
    return known if len(known) == 2 and targets[0] == targets[1] else []


def _first(loop: LoopFound, body: Body, nodes: tuple[fx.Node, ...]) -> First | None:
    covering = _covering(body, nodes)
    results = [node for node in nodes if node in covering]
    if not results or any(isinstance(body.values[node], Buffer) for node in results):
        return None
    moved = needed(body, nodes, results)
    if not _is_apart(loop, set(moved)):
        return None
    # What is cut and moved before the exchange may well be made twice.
    buffers = {n for n in moved if isinstance(body.values.get(n), Buffer)}
    parts = {n for n in moved if n in body.exchanged and _is_tensor(n) and n not in results} | buffers
    parts |= {n for n in moved if _is_only_counted(body, n, set(moved))}
    beside = _beside(body, nodes, set(moved), parts)
    if any(user not in moved and user not in beside for node in parts for user in node.users):
        return None
    recounts = []
    for node in beside:
        readers = [user for user in node.users if user not in beside and user not in moved]
        if any(_is_tensor(node) or reader not in nodes or reader < results[0] for reader in readers):
            return None
        for reader in readers:
            value = body.values.get(node)
            if not isinstance(value, Lin) or value != Lin(unit=value.unit) or value.unit.denominator != 1:
                return None
            recounts.append(Recount(reader, node, int(value.unit)))
    dims = body.blocks(results[0]).dims
    dim = next(d for d, factors in enumerate(dims) if TOKENS in factors)
    measure = (dim, size_of(dims[dim]).count)
    return First(Prefix(tuple(results), tuple(moved)), tuple(recounts), tuple(beside), measure)


def _covering(body: Body, nodes: tuple[fx.Node, ...]) -> set[fx.Node]:
    """The exchanges by which everything that is used is known: a part of one (``q, k, v = heads.chunk(3, -1)``) is cut
    out by the rest. What needs another exchange still is left to that."""
    found: set[fx.Node] = set()
    stack = [node for node in nodes if node in body.exchanged and _is_used(body, node)]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if body.exchange(node) is not None:
            found.add(node)
            continue
        inputs = [n for n in node.all_input_nodes if n in body.exchanged and n not in seen]
        seen.update(inputs)
        stack += inputs
    return found


def _is_only_counted(body: Body, node: fx.Node, moved: set[fx.Node]) -> bool:
    """Is a tensor that is cut before the exchange looked at by the rest for its sizes alone?"""
    others = [user for user in node.users if user not in moved]
    others += [u for user in node.users if user in moved and not _is_tensor(user) for u in user.users if u not in moved]
    counted = isinstance(body.values.get(node), Blocks) and bool(others) and node not in body.exchanged
    return counted and not any(_is_tensor(user) for user in node.users if user not in moved)


def _beside(body: Body, nodes: tuple[fx.Node, ...], moved: set[fx.Node], parts: set[fx.Node]) -> dict[fx.Node, None]:
    """Numbers that are read off these tensors, their parts, what is computed from such numbers alone and asserted of
    them; in order."""
    found: dict[fx.Node, None] = {}
    for node in nodes:
        counts = is_size_check(node) or not _is_tensor(node) or node in body.values
        if (
            counts
            and not (_is_tensor(node) and node in moved)
            and any(n in parts or n in found for n in node.all_input_nodes)
        ):
            found[node] = None
    return found


def recount(graph: fx.Graph, found: Sequence[First]) -> None:
    """Let the rest count on the documents that it is given, and assert nothing of what it does not see."""
    for first in found:
        result = first.prefix.results[0]
        dim, chunks = first.measure
        for at in first.recounts:
            build = Builder(graph, at.reader, result)
            size = build.call(torch.ops.aten.sym_size.int, result, dim)
            if at.units != chunks:
                size = build.call(operator.floordiv, size, chunks) if chunks > 1 else size
                size = build.call(operator.mul, size, at.units) if at.units > 1 else size
            at.reader.replace_input_with(at.number, size)
        for node in reversed(first.beside):
            if not node.users:
                graph.erase_node(node)


def _is_used(body: Body, node: fx.Node) -> bool:
    """By something that does not only move it."""
    return _is_tensor(node) and any(not body.sees_through(user) and not only_checked(user) for user in node.users)


def _is_apart(loop: LoopFound, moved: set[fx.Node]) -> bool:
    """May the rest of all iterations run after what is moved of all of them?"""
    inside, start = loop.nodes, loop.iterations[0][0]
    given = {n for node in moved for n in node.all_input_nodes if n not in moved}
    begins = {begin for begin, _, _ in loop.iterations}
    if any(n in inside - begins or not n <= start for n in given - begins):
        return False  # carried over from the document before
    read = {storage(n) for n in (*moved, *given) if _is_tensor(n)} - {None}
    written = [target for node in inside - moved for target in written_inputs(node)]
    return not any(storage(target) is None or storage(target) in read for target in written)


def _is_tensor(node: Any) -> bool:
    return isinstance(example(node), (torch.Tensor, tuple, list))
