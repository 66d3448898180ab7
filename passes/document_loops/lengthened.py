"""Loops that compute on what a document has become: one loop that makes it longer or shorter, and one for the rest.

Before::

    for s, e in documents:
        tokens = torch.cat((cls, x[s:e]))
        out.append(attention(norm(tokens)))

After::

    for s, e in documents:
        longer.append(torch.cat((cls, x[s:e])))
    for i in range(len(longer)):                 # documents of another row, with boundaries of its own
        out.append(attention(norm(longer[i])))

Why it is safe: what moves to the first loop are calls without an effect, which read nothing that the loop writes; each
of the two loops is proven by itself. What documents have one of each, and lists of what the rest does not look at, move
as well, so that the rest goes by one set of documents.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, storage
from packpass.semantics.effects import changes_mode, effects_of, written_inputs
from passes.document_loops.fission import CUTS, Prefix, alike, split
from passes.document_loops.integers import Affine, Index
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.parts import Pieces
from passes.document_loops.step import step
from passes.document_loops.terms import Interner
from passes.document_loops.uneven import Piece
from passes.loops import ASSERTIONS, WAYS, LoopFound
from passes.nodes import computed_from, needed_for
from passes.refused import Refused

_LEAVING = (Pieces, Piece, Document)
"""What the rest takes from lists: documents that have become longer or shorter, and values of each."""


def made_longer(loop: LoopFound) -> list[Prefix]:
    """What makes the documents of each iteration longer or shorter; none if nothing does, or the loop cannot be proven
    to be the same as two."""
    if len(loop.iterations) != 2 or any(changes_mode(node) or node.target in WAYS for node in loop.nodes):
        return []
    found = [_prefix(loop, which) for which in (0, 1)]
    prefixes = [prefix for prefix in found if prefix is not None]
    return prefixes if len(prefixes) == 2 and alike(*prefixes) else []


def put_in_front(graph: fx.Graph, loop: LoopFound, prefixes: list[Prefix]) -> int:
    """Put a loop in front of ``loop`` that does this. Returns its id."""
    for prefix, (_, body, _) in zip(prefixes, loop.iterations, strict=True):
        _count_on(graph, prefix, body)
    return split(graph, loop, prefixes)


def _prefix(loop: LoopFound, which: int) -> Prefix | None:
    begin, body, _ = loop.iterations[which]
    values = _understood(loop, which)
    inside = set(body)
    unknown = [node for node in body if node not in values and node.target not in ASSERTIONS]
    entries: list[tuple[fx.Node, Any]] = [(collect, markers.collected_in(collect, which)) for collect in loop.collects]
    listed = [(collect, node) for collect, node in entries if isinstance(values.get(node), (*_LEAVING, Segment))]
    results = {
        node: None
        for call in unknown
        for node in call.all_input_nodes
        if storage(node) not in (None, *loop.written) and isinstance(values.get(node), _LEAVING)
    }
    if not any(isinstance(values[node], (Pieces, Piece)) for node in results):
        return None
    needed = needed_for([*results, *(node for _, node in listed)], inside)
    read = {*needed, *(n for node in needed for n in node.all_input_nodes)}
    outer = read - needed - {begin}
    if any(n in loop.nodes or not n < loop.iterations[0][0] for n in outer):
        return None  # of another document
    if any(storage(n) in loop.written for n in read if isinstance(example(n), torch.Tensor)):
        return None
    if not all(map(_has_no_effect, needed)):
        return None
    nodes = tuple(node for node in body if node in needed)
    return Prefix(tuple(sorted(results)), nodes, tuple(listed))


_CUTS = (*CUTS, markers.PIECES)


def _has_no_effect(node: fx.Node) -> bool:
    """May it be computed elsewhere, or not at all?"""
    return not written_inputs(node) and (node.target in _CUTS or effects_of(node).repeatable)


def _understood(loop: LoopFound, which: int) -> dict[fx.Node, Any]:
    """What the abstract machine knows of one iteration, as far as it gets with each of the calls."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(Interner(), loop.nodes, {})
    machine.values[begin] = Affine.of(Index())
    for node in body:
        before = machine.state()
        try:
            step(machine, node)
        except Refused:
            machine.restore(before)
            machine.values.pop(node, None)
    return {node: machine.values[node] for node in body if node in machine.values}


def _count_on(graph: fx.Graph, prefix: Prefix, body: tuple[fx.Node, ...]) -> None:
    """The rest counts on what the documents have become; what it does not look at any more goes, and with it what torch
    asserts of that."""
    moved = set(prefix.nodes)
    after = computed_from(moved)
    for node in [n for n in body if n.target in ASSERTIONS]:
        graph.erase_node(node)
    body = tuple(node for node in body if node.target not in ASSERTIONS)
    derived = [node for node in body if node in after]
    sizes: dict[Any, tuple[fx.Node, int]] = {}
    for result in prefix.results:
        for dim, size in enumerate(example(result).shape):
            if isinstance(size, torch.SymInt):
                sizes.setdefault(size.node.expr, (result, dim))
    for node in [n for n in derived if isinstance(example(n), torch.SymInt)]:
        at = sizes.get(example(node).node.expr)
        users = [user for user in node.users if user not in moved]
        if at is None or not users or node.args[:1] == at[:1]:
            continue
        with graph.inserting_after(max(node, at[0])):
            counted = graph.call_function(torch.ops.aten.sym_size.int, at)
        counted.meta["example_value"] = example(node)
        for user in users:
            user.replace_input_with(node, counted)
    for node in reversed(body):
        if node not in moved and not node.users and not node.is_impure() and _has_no_effect(node):
            graph.erase_node(node)
