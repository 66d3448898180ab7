"""Places in a tensor that go by the number of the document, as rows of a view: the rules know what a document does with
its row of a tensor.

::

    member[cu[i] : cu[i + 1], i] = 1         # a column: a row of the tensor turned around
    bounds[2 * i + 1] = i * longest + n      # every second entry: entry i of bounds[1::2]

Views are made in front of the loop, and share the memory of what they are views of.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass.semantics import example, op_name, storage
from packpass.semantics.build import Builder, NotBuilt
from passes.loops import LoopFound, find

View = tuple[Any, ...]
"""A function, and what it takes besides a tensor."""


def settle(graph: fx.Graph) -> None:
    """Every such place in a tensor from in front of a captured loop of which documents take no other places."""
    for loop in find(graph):
        found: dict[Any, list[tuple[fx.Node, fx.Node, View | None]]] = {}
        for begin, body, _ in loop.iterations:
            for node in body:
                for tensor in node.all_input_nodes:
                    if tensor not in loop.nodes and isinstance(example(tensor), torch.Tensor):
                        view = _view(node, tensor, begin)
                        found.setdefault(storage(tensor), []).append((node, begin, view))
        views = _Views(graph, loop)
        for uses in found.values():
            if None not in [view for *_, view in uses] and _are_apart([view for *_, view in uses if view]):
                for node, begin, view in uses:
                    views.put(node, begin, view)  # type: ignore[arg-type]


def _view(node: fx.Node, tensor: fx.Node, begin: fx.Node) -> View | None:
    """The view of which a node takes a row, or writes to it; None if it does something else with the tensor."""
    if node.kwargs or node.args[0] is not tensor or tensor in node.args[1:]:
        return None
    if node.target is operator.setitem and isinstance(node.args[2], fx.Node) and node.args[2] is tensor:
        return None
    return _column(node, tensor, begin) or _each_of_several(node, begin)


def _are_apart(views: list[View]) -> bool:
    """Are what two documents take of such views no places in common?"""
    if len({view[0] for view in views}) > 1:
        return False
    if views[0][0] is torch.movedim:
        return len(set(views)) == 1
    return are_apart([view[1] for view in views])


def are_apart(cuts: list[slice]) -> bool:
    """Have two slices of one tensor, from a number on in steps, no place in common if they are not the same?"""
    steps, starts = {cut.step for cut in cuts}, {cut.start for cut in cuts}
    return len(steps) == 1 and len({start % min(steps) for start in starts}) == len(starts)


def strided(view: fx.Node) -> tuple[fx.Node, slice] | None:
    """The tensor of which a view is every so many-th entry, from one on, and that slice; None of any other view."""
    cut: Any = view.args[1] if view.target is operator.getitem else None
    known = isinstance(cut, slice) and cut.stop is None and type(cut.start) is int and type(cut.step) is int
    return (view.args[0], cut) if known and cut.start >= 0 else None  # type: ignore[return-value]


class _Views:
    """The views of tensors that one loop looks at."""

    def __init__(self, graph: fx.Graph, loop: LoopFound) -> None:
        self._graph, self._first = graph, loop.iterations[0][0]
        self._made: dict[Any, fx.Node] = {}

    def put(self, node: fx.Node, begin: fx.Node, view: View) -> None:
        """Let a node take the row of a view in place of another place."""
        tensor: Any = node.args[0]
        build, key = Builder(self._graph, before=self._first, like=tensor), (tensor, str(view))
        try:
            if key not in self._made:
                self._made[key] = build.call(view[0], tensor, *view[1:])
            if node.target is operator.setitem:
                node.update_arg(0, self._made[key])
                node.update_arg(1, begin)
                return
            made = Builder(self._graph, before=node, like=tensor).call(torch.select, self._made[key], 0, begin)
        except NotBuilt:
            build.undo()
            self._made.pop(key, None)
            return
        node.replace_all_uses_with(made)
        self._graph.erase_node(node)


def _column(node: fx.Node, tensor: fx.Node, begin: fx.Node) -> View | None:
    """``m[:, i]``: m turned around."""
    dim: Any = None
    if op_name(node) == "select" and len(node.args) == 3 and node.args[2] is begin:
        dim = node.args[1]
    elif node.target is operator.getitem and isinstance(node.args[1], tuple) and node.args[1][-1] is begin:
        front = node.args[1][:-1]
        dim = len(front) if all(part == slice(None) for part in front) else None
    rank = example(tensor).dim()
    return (torch.movedim, dim % rank, 0) if type(dim) is int and dim % rank else None


def _each_of_several(node: fx.Node, begin: fx.Node) -> View | None:
    """``v[2 * i + 1]``: ``v[1::2]``."""
    at: Any = node.args[1] if node.target in (operator.getitem, operator.setitem) else None
    if op_name(node) == "select" and len(node.args) == 3 and node.args[1] == 0:
        at = node.args[2]
    place, document = (example(at) if isinstance(at, fx.Node) else None), example(begin)
    if not isinstance(place, torch.SymInt) or not isinstance(document, torch.SymInt):
        return None
    symbol, expression = document.node.expr, sympy.expand(place.node.expr)
    step, start = expression.coeff(symbol, 1), expression.coeff(symbol, 0)
    if not step.is_Integer or not start.is_Integer or step < 2 or start < 0 or step * symbol + start != expression:
        return None
    return operator.getitem, slice(int(start), None, int(step))
