"""Join the members of a bucket: one cat, one all-to-all, one wait, and a part of the result for each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map_only

from packpass._compat import fake_mode_of, size_oblivious, suppress_guards
from passes.bucket_all_to_all.find import A2A, NAME, WAIT, Member

aten = torch.ops.aten
MUST_EQUAL = torch.ops.packpass.must_equal.default


class NotJoined(Exception):
    """The joined form cannot be built, say for sizes that depend on data."""


def join(graph: fx.Graph, members: Sequence[Member], beside: str = "") -> None:
    """Replace ``members`` (of one level) by one all-to-all where the last of them is.

    Args:
        beside: if not empty, the members stay beside it, and the graph raises an error with this name in it where a
            result differs.

    Raises:
        NotJoined: a size is not known well enough; the graph is as it was.
    """
    # Joining another bucket may have moved some of them.
    places = {node: i for i, node in enumerate(graph.nodes)}
    members = sorted(members, key=lambda member: places[member.node])
    made: list[fx.Node] = []
    try:
        results = _together(graph, members, made)
    except Exception as error:  # torch's errors about sizes have no common class
        for node in reversed(made):
            graph.erase_node(node)
        raise NotJoined(str(error).split("\n")[0]) from error

    # === Transform ===
    pairs = [(result, m.wait) for m, result in zip(members, results, strict=True)]
    for result, wait in pairs:
        wait.replace_all_uses_with(result)
    _delay(members[0].node, set(made), made[-1])
    _compare(graph, pairs, beside) if beside else _erase(graph, members)


def _together(graph: fx.Graph, members: Sequence[Member], made: list[fx.Node]) -> list[fx.Node]:
    """What each member receives, by one exchange in front of the last of them; ``made`` gets every node."""
    size, last, mode = members[0].group_size, members[-1].node, fake_mode_of(members[0].send.meta["val"])

    def call(origin: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        node = graph.call_function(target, args, kwargs)
        made.append(node)
        values = tree_map_only(fx.Node, lambda n: n.meta["val"], (args, kwargs))
        node.meta["val"] = target(*values[0], **values[1])
        for key in ("stack_trace", "nn_module_stack", "custom", "partitioner_tag"):
            if key in origin.meta:
                node.meta[key] = origin.meta[key]
        node.meta["packpass"] = NAME
        return node

    def size_of(node: fx.Node, dim: int) -> Any:
        known = node.meta["val"].shape[dim]
        return call(node, aten.sym_size.int, node, dim) if isinstance(known, torch.SymInt) else known

    # That the rows divide by the ranks is proven (`equal_splits`), if in words that a reshape may not recognise.
    with graph.inserting_before(last), _fake(mode), size_oblivious(), suppress_guards(mode):
        # Row r of each goes to rank r. By way of one dimension: reshape would ask whether there are `size` rows
        # already, and put the answer into a guard.
        flat = [call(m.node, aten.reshape.default, m.send, [-1]) for m in members]
        sent = [call(m.node, aten.reshape.default, f, [size, -1]) for m, f in zip(members, flat, strict=True)]
        together = call(last, aten.cat.default, sent, 1)
        exchange = call(last, A2A, together, [1] * size, [1] * size, members[0].group)
        received = call(last, WAIT, exchange)
        parts = call(last, aten.split_with_sizes.default, received, [size_of(s, 1) for s in sent], 1)
        results = []
        for i, m in enumerate(members):
            part = call(m.wait, operator.getitem, parts, i)
            shape = [size_of(m.send, d) for d in range(m.send.meta["val"].dim())]
            # Memory of its own, as before: parts of one buffer would keep each other alive.
            own = call(m.wait, aten.clone.default, part, memory_format=torch.contiguous_format)
            results.append(call(m.wait, aten.reshape.default, call(m.wait, aten.reshape.default, own, [-1]), shape))
    return results


def _erase(graph: fx.Graph, members: Sequence[Member]) -> None:
    for m in members:
        graph.erase_node(m.wait)
        graph.erase_node(m.node)


def _compare(graph: fx.Graph, pairs: Sequence[tuple[fx.Node, fx.Node]], name: str) -> None:
    """Hold every result against what the member itself gives."""
    for result, wait in pairs:
        with graph.inserting_after(max(result, wait)):
            check = graph.call_function(MUST_EQUAL, (result, wait, name))
        check.meta["val"] = None


def _delay(start: fx.Node, made: set[fx.Node], end: fx.Node) -> None:
    """Move what reads a result, and stands between ``start`` and ``end``, behind ``end``, in the same order."""
    late, node, target = set(made), start, end
    moved: list[fx.Node] = []
    while node is not end:
        if node not in made and any(source in late for source in node.all_input_nodes):
            late.add(node)
            moved.append(node)
        node = node.next
    for node in moved:
        target.append(node)
        target = node


def _fake(mode: Any) -> AbstractContextManager[Any]:
    if mode is None:
        raise NotJoined("the graph has no fake values")
    return mode
