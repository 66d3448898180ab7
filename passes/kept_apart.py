"""Loops that look at slots which different masks keep, or at kept slots and at all: one loop for each kind of slots.

Before::

    for s, e in documents:
        x[s:e][asked[s:e]].sum() - x[s:e].sum()

After::

    for s, e in documents:
        sums.append(x[s:e][asked[s:e]].sum())
    for i, (s, e) in enumerate(documents):
        sums[i] - x[s:e].sum()

Only what is one value per document leaves a loop, and lists of the slots, computed by calls without an effect from what
the loop does not write. Graph surgery in front of `passes.kept`, which knows slots of one kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, is_tensor, storage
from packpass.semantics.effects import changes_mode, effects_of, written_inputs
from passes.document_loops.fission import Prefix, alike, split
from passes.loops import WAYS, LoopFound, is_unused, only_asserted
from passes.nodes import computed_from, needed_for


def take_apart(graph: fx.Graph, loop: LoopFound, seeds: list[list[fx.Node]]) -> bool:
    """Put a loop in front of ``loop`` for the slots that start at ``seeds``, those of each iteration. False if that
    cannot be proven to be the same."""
    if len(loop.iterations) != 2 or any(changes_mode(node) or node.target in WAYS for node in loop.nodes):
        return False
    found = []
    for which, own in enumerate(seeds):
        prefix = _prefix(loop, which, own)
        if prefix is None:
            return False
        found.append(prefix)
    if not alike(*found):
        return False
    for node in (node for own in seeds for node in own):
        for check in only_asserted(node):
            graph.erase_node(check)
    split(graph, loop, found)
    left = set(graph.nodes)
    for node in (node for prefix in found for node in reversed(prefix.nodes) if node in left):
        if is_unused(node):
            for check in only_asserted(node):
                graph.erase_node(check)
            graph.erase_node(node)
    return True


def _prefix(loop: LoopFound, which: int, seeds: list[fx.Node]) -> Prefix | None:
    """The values per document that are made of what ``seeds`` hold, the lists of these slots, and the calls that make
    them."""
    begin, body, _ = loop.iterations[which]
    inside, lengths = set(body), _symbols(seeds)
    checks = {check for node in seeds for check in only_asserted(node)}
    after = [n for n in computed_from(seeds) if n in inside and n not in checks]
    long = {n for n in (*seeds, *after) if _symbols([n]) & lengths}
    results = [n for n in after if n not in long and any(i in long for i in n.all_input_nodes)]
    entries: list[tuple[fx.Node, Any]] = [(collect, collect.args[which]) for collect in loop.collects]
    listed = [(collect, entry) for collect, entry in entries if entry in long]
    if not (results or listed) or not all(isinstance(example(n), torch.Tensor) for n in (*long, *results)):
        return None
    if any(user not in inside and user not in dict(listed) for node in long for user in node.users):
        return None  # the slots themselves are used after the loop
    needed, stack = set[fx.Node](), [*results, *(entry for _, entry in listed)]
    while stack:
        node = stack.pop()
        if node is begin or node in needed:
            continue
        if node in inside:
            needed.add(node)
            stack += node.all_input_nodes
        elif node in loop.nodes or not node < loop.iterations[0][0]:
            return None  # of another document
    if _looks_at_others(needed, long, needed_for(seeds, inside) - set(seeds)):
        return None
    picked = {n for n in needed if n.target is markers.MASKED}
    read = {*needed, *(n for node in needed for n in node.all_input_nodes)}
    if not long <= needed or picked - set(seeds) or any(storage(n) in loop.written for n in read if is_tensor(n)):
        return None
    if not all(_harmless(node) for node in needed):
        return None
    nodes = tuple(node for node in body if node in needed)
    return Prefix(tuple(sorted(results)), nodes, tuple(listed))


def _looks_at_others(needed: set[fx.Node], long: set[fx.Node], cut: set[fx.Node]) -> bool:
    """Are other slots of a document looked at than those that ``long`` holds, which are picked from what ``cut`` is?"""
    tensors = {node for node in needed if is_tensor(node)}
    outer = {n for node in tensors for n in node.all_input_nodes if n not in needed}
    length = _symbols(cut & tensors) - _symbols(filter(is_tensor, outer))
    if any(_symbols([node]) & length for node in tensors - long - cut):
        return True
    return any(
        user in tensors and user not in cut and user not in long for node in cut & tensors for user in node.users
    )


def _harmless(node: fx.Node) -> bool:
    known = node.target in (markers.MASKED, markers.SPLIT_GET, markers.LIST_GET)
    return not written_inputs(node) and (known or effects_of(node).repeatable)


def _symbols(nodes: Iterable[fx.Node]) -> set[Any]:
    """The sizes that stand in the shapes of tensors, or in numbers."""
    out = set[Any]()
    for node in nodes:
        value = example(node)
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            out |= size.node.expr.free_symbols if isinstance(size, (torch.SymInt, torch.SymBool)) else set()
    return out
