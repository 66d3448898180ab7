"""Split a loop in two, one in front of the other: where it computes on a document before it exchanges it, say.

Before::

    for s, e in documents:
        part = silu(x[s:e])
        received.append(all_to_all(part.view(...)))

After::

    for s, e in documents:
        parts.append(silu(x[s:e]))
    for i, (s, e) in enumerate(documents):
        received.append(all_to_all(parts[i].view(...)))

Only graph surgery: the first loop is for `vectorize_segments`, the second one then exchanges documents of a row as any
other. Why `prefixes` are safe: what moves to the first loop are calls without an effect, that use nothing the exchange
returns and nothing that the loop writes. Who finds a `Prefix` otherwise has reasons of its own.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import AUTOGRAD_FUNCTION, argument, blank, example, is_tensor, op_name, storage
from packpass.semantics.effects import changes_mode, mutated_after, written_inputs
from packpass.semantics.memory import copied
from passes.building import Builder
from passes.document_loops.boundaries import unchanged
from passes.document_loops.op_names import name_of
from passes.loops import LoopFound, find
from passes.nodes import put_instead

CUTS = (markers.SEGMENT, markers.SPLIT_GET, markers.LIST_GET)
"""How a document is cut out of a row, or taken from a list."""

IsExchange = Callable[[fx.Node], bool]


@dataclasses.dataclass(frozen=True)
class Prefix:
    """One iteration: tensors to compute beforehand, and the nodes that compute them, in order."""

    results: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    listed: tuple[tuple[fx.Node, fx.Node], ...] = ()
    """Lists that go with these: what collects the entries, and the entry of this iteration."""


def prefixes(loop: LoopFound, is_exchange: IsExchange, moves: Collection[str]) -> list[Prefix]:
    """Of each iteration, what it computes before it exchanges it; none if that is nothing, or cannot be done before.

    ``moves``: the names of operations that the exchange itself sees through.
    """
    if len(loop.iterations) != 2 or any(changes_mode(node) for node in loop.nodes):
        return []
    inside, start, written = loop.nodes, loop.iterations[0][0], loop.written
    found = []
    for begin, body, _ in loop.iterations:
        prefix = _prefix(begin, body, inside - set(body), is_exchange, moves)
        if prefix is None or not prefix.results:
            return []
        outer = {n for node in prefix.nodes for n in node.all_input_nodes if n not in inside}
        if not all(n < start for n in outer) or any(storage(n) in written for n in (*prefix.nodes, *outer)):
            return []
        found.append(prefix)
    return found if alike(*found) else []


def split(graph: fx.Graph, loop: LoopFound, found: list[Prefix]) -> int:
    """Put a loop in front of ``loop`` that computes what is exchanged. Returns its id."""
    start = loop.iterations[0][0]
    number = max(other.id for other in find(graph)) + 1
    copies: list[dict[fx.Node, fx.Node]] = []
    divided: dict[tuple[fx.Node, int], fx.Node] = {}
    with graph.inserting_before(start):
        for (begin, _, end), prefix in zip(loop.iterations, found, strict=True):
            copy: dict[fx.Node, fx.Node] = {}
            copy[begin] = _marker(graph, begin, (start.args[0], number, begin.args[2]))
            for node in prefix.nodes:
                copy[node] = graph.node_copy(node, lambda n: copy.get(n, n))  # noqa: B023
            divide_before(graph, divided, [copy[node] for node in prefix.nodes])
            _marker(graph, end, (copy[begin], number, end.args[2]))
            copies.append(copy)
        lists = []
        for (collect, one), (_, other) in zip(found[0].listed, found[1].listed, strict=True):
            collect.args = (copies[0][one], copies[1][other], number)
        for one, other in zip(found[0].results, found[1].results, strict=True):
            made = graph.call_function(markers.LIST_COLLECT, (copies[0][one], copies[1][other], number))
            made.meta["example_value"] = example(one)
            lists.append(made)
    for (begin, _, _), prefix in zip(loop.iterations, found, strict=True):
        for made, result in zip(lists, prefix.results, strict=True):
            with graph.inserting_before(result):
                taken = graph.call_function(markers.LIST_GET, (made, begin))
            taken.meta = dict(result.meta)
            put_instead(result, taken)
        for node in reversed(prefix.nodes):
            if not node.users:
                graph.erase_node(node)
    return number


def divide_before(graph: fx.Graph, divided: dict[tuple[fx.Node, int], fx.Node], nodes: Iterable[fx.Node]) -> None:
    """``cu[i] // cp`` becomes ``(cu // cp)[i]``: boundaries of a shard, as `vectorize_segments` knows boundaries."""
    for node in nodes:
        number: Any = node.args[0] if node.args else None
        entry = number.args[0] if isinstance(number, fx.Node) and number.target == "item" else number
        by = node.args[1] if len(node.args) > 1 else None
        if node.target is not operator.floordiv or type(by) is not int or by < 1 or not isinstance(entry, fx.Node):
            continue
        if entry.target is not torch.select or entry.args[1] != 0 or example(entry.args[0]).is_floating_point():
            continue
        cu: Any = entry.args[0]
        if (cu, by) not in divided:
            divided[cu, by] = divided_by(graph, cu, by, node)
        with graph.inserting_before(node):
            made = graph.node_copy(entry)
            made.args = (divided[cu, by], *entry.args[1:])
            if entry is not number:
                made = graph.call_method("item", (made,))
                made.meta = dict(node.meta)
        node.replace_all_uses_with(made)


def divided_by(graph: fx.Graph, cu: fx.Node, by: int, reader: fx.Node) -> fx.Node:
    """``cu // by`` in front of all loops over it, once for all copies of these boundaries that ``reader`` may read.

    Of a slice of boundaries, a slice of all of them divided: those of two slices are known to be one set then.
    """
    source = copied(cu)
    while source is not None and unchanged(source, cu) and unchanged(cu, cu.next):
        cu, source = source, copied(source)
    begins = (n for n in graph.nodes if n.target is markers.LOOP_BEGIN and cu < n)
    first = next(n for n in begins if not mutated_after(graph, cu, n, reader))
    operation: Any = operator.floordiv
    given: tuple[fx.Node, Any] = (cu, by)
    whole = cu.args[0] if cu.target is operator.getitem and isinstance(cu.args[1], slice) else None
    if isinstance(whole, fx.Node) and example(whole).dim() == 1:
        operation, given = operator.getitem, (divided_by(graph, whole, by, reader), cu.args[1])
    known = [n for n in given[0].users if n.target is operation and n.args == given and n < first]
    known = [n for n in known if not any(mutated_after(graph, m, n, reader) for m in (cu, n))]
    return known[0] if known else Builder(graph, first, cu).call(operation, *given)


def _marker(graph: fx.Graph, like: fx.Node, args: tuple[Any, ...]) -> fx.Node:
    target: Any = like.target
    node = graph.call_function(target, args)
    node.meta = dict(like.meta)
    return node


def _prefix(
    begin: fx.Node, body: Iterable[fx.Node], others: set[fx.Node], is_exchange: IsExchange, moves: Collection[str]
) -> Prefix | None:
    """What one iteration computes before its first exchanges, those that need nothing which was exchanged; None if some
    of it needs it all the same. ``others`` are the loop's nodes outside of this body."""
    nodes = list(body)
    inside, tainted, first = set(nodes), set[fx.Node](), list[fx.Node]()
    for node in nodes:
        late = any(n in tainted for n in node.all_input_nodes)
        if is_exchange(node) and not late:
            first.append(node)
        if is_exchange(node) or late:
            tainted.add(node)
    results: dict[fx.Node, None] = {}
    stack, seen = [n for node in first for n in node.all_input_nodes], set[fx.Node]()
    while stack:
        node = stack.pop()
        if node in seen or node not in inside or not isinstance(example(node), (torch.Tensor, list, tuple)):
            continue
        seen.add(node)
        if is_exchange(node) or blank(node):
            continue
        if _moves(node, moves):
            stack += node.all_input_nodes
        elif isinstance(example(node), torch.Tensor):
            results[node] = None
    needed, stack = set[fx.Node](), list(results)
    while stack:
        node = stack.pop()
        if node in inside and node not in needed:
            if node in tainted or op_name(node) == AUTOGRAD_FUNCTION or written_inputs(node):
                return None
            needed.add(node)
            stack += [n for n in node.all_input_nodes if n is not begin]
        elif node in others:
            return None  # carried over from the document before
    return Prefix(tuple(sorted(results)), tuple(node for node in nodes if node in needed))


def _moves(node: fx.Node, moves: Collection[str]) -> bool:
    """Does this call only move slots, or cut a document out of a row?"""
    name = name_of(node)
    if name in ("cat", "stack"):
        parts = argument(node, 0, "tensors")
        return isinstance(parts, (list, tuple))
    return name in moves or node.target in CUTS


def only_moves(loop: LoopFound, moves: Collection[str]) -> bool:
    """Does a loop only cut documents and move slots of them?"""
    tensors = [node for _, body, _ in loop.iterations for node in body if is_tensor(node)]
    return all(_moves(node, moves) or not example(node).dim() for node in tensors)


def alike(one: Prefix, other: Prefix) -> bool:
    """Do two iterations compute the same?"""
    return _shape(one) == _shape(other)


def _shape(prefix: Prefix) -> tuple[Any, ...]:
    """Equal for two iterations that compute the same."""
    order = {node: i for i, node in enumerate(prefix.nodes)}
    entries = tuple((collect, order[node]) for collect, node in prefix.listed)
    return tuple(node.target for node in prefix.nodes), tuple(order[node] for node in prefix.results), entries
