"""Calls of a rewritten graph that Inductor has longer code for than they need.

* ``index_select(numbers, 0, ids)`` for the documents that slots belong to: an entry by a number that is in range
  (`packpass.ops._entries`).
* ``cat((new_zeros(1), cumsum(lengths)))``, ``pad(cumsum(lengths), (1, 0))`` on the CPU: one call.
* ``_assert_async(scalar_tensor(number > 0))``, a kernel for what is known without one: a call.

Only integers, and only in graphs that packpass has changed: others are compiled as stock torch compiles them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.ops._entries import ends_op, entries_op
from packpass.ops._library import NAMESPACE
from packpass.ops._must_hold import must_be_some_op
from packpass.ops._segment_ids import segment_ids_op
from packpass.semantics import argument, example, op_name
from packpass.semantics.effects import effects_of


def with_shorter_code(graph: fx.Graph) -> None:
    """Change such calls; nothing where packpass has added nothing to the graph."""
    if not any(getattr(node.target, "namespace", "") == NAMESPACE for node in graph.nodes):
        return
    owners = set(graph.find_nodes(op="call_function", target=segment_ids_op))
    for node in graph.nodes:
        if node.target is torch.index_select and _is_entry(node, owners):
            if node.args[0] in owners:
                owners.add(node)
            node.target, node.args = entries_op, (node.args[0], node.args[2])
    for node in list(graph.nodes):
        if op_name(node) == "assert_async":
            number = _number_of_some(node)
            if number is not None:
                message = argument(node, 1, "assert_msg", "an assertion of the compiled program does not hold")
                _put(graph, node, must_be_some_op, (number, message))
        else:
            lengths = _lengths_of_ends(node)
            if lengths is not None:
                _put(graph, node, ends_op, (lengths,))


def _put(graph: fx.Graph, node: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    """A call in the place of another, and of what only that one needed."""
    with graph.inserting_before(node):
        made = graph.call_function(target, args)
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    unused = {node: None}
    while unused:
        old, _ = unused.popitem()
        goes = old is node or (old.op.startswith("call") and effects_of(old).repeatable)
        if goes and not old.users and old not in args:
            unused |= dict.fromkeys(old.all_input_nodes)
            graph.erase_node(old)


def _number_of_some(node: fx.Node) -> fx.Node | None:
    """The number, of an assertion that there are more than none."""
    condition: Any = argument(node, 0, "input")
    while isinstance(condition, fx.Node) and op_name(condition) == "reshape" and len(condition.all_input_nodes) == 1:
        (condition,) = condition.all_input_nodes
    if not isinstance(condition, fx.Node) or condition.target is not torch.scalar_tensor or condition.kwargs:
        return None
    holds = condition.args[0]
    if not isinstance(holds, fx.Node) or holds.target is not operator.gt or holds.args[1] != 0:
        return None
    number = holds.args[0]
    return number if isinstance(number, fx.Node) and isinstance(example(number), torch.SymInt) else None


def _integers(node: Any) -> bool:
    """Is it a vector of int64?"""
    value = example(node) if isinstance(node, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype == torch.int64


def _is_entry(node: fx.Node, owners: set[fx.Node]) -> bool:
    if len(node.args) != 3 or node.kwargs:
        return False
    numbers, dim, places = node.args
    return isinstance(dim, int) and dim == 0 and places in owners and _integers(numbers)


def _lengths_of_ends(node: fx.Node) -> fx.Node | None:
    """The lengths, of a node that is where each of some things in a row ends, with 0 in front."""
    sums: Any = None
    if node.target is torch.cat and len(node.args) == 1 and not node.kwargs:
        parts = node.args[0]
        if isinstance(parts, (tuple, list)) and len(parts) == 2:
            zero, sums = parts
            if not isinstance(zero, fx.Node) or op_name(zero) != "new_zeros" or zero.args != (sums, (1,)):
                return None
    elif node.target is torch.nn.functional.pad and node.args[1:] == ((1, 0),) and not node.kwargs:
        sums = node.args[0]
    if not isinstance(sums, fx.Node) or sums.target is not torch.cumsum or sums.args[1:] != (0,) or sums.kwargs:
        return None
    lengths = sums.args[0]
    if not isinstance(lengths, fx.Node) or not _integers(lengths) or example(lengths).device.type != "cpu":
        return None
    return lengths
