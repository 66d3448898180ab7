"""What a loop picks by numbers of its own from vectors and tables, in the order in which it picks them.

Before::

    for i in order.tolist(): x[cu[i] : cu[i + 1]]            # documents in another order
    for i in range(0, n, 2): x[cu[i] : cu[i + 1]]            # every second one
    for i in reversed(range(n)): x[cu[i] : cu[i + 1]]

After::

    starts, ends = cu[order], cu[order + 1]                  # or cu[arange(m) * 2], ...
    for j in range(m): x[starts[j] : ends[j]]

Which is a loop over documents that lie elsewhere. Python counts a negative number from the end and raises for one too
large, as indexing by all of them does. Not a rewrite of its own: runs before the passes that look at loops, changes no
value, and leaves what it does not recognise.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.markers.entries import is_vector, place_of, read_from
from packpass.semantics import example, storage
from packpass.semantics.effects import mutated_after
from passes.building import Builder
from passes.loops import LoopFound, find
from passes.refused import Refused

_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
INDEX = "index"
"""The number of the loop's own document, in the description of another number."""


def with_picked_in_order(graph: fx.Graph) -> None:
    """Read entries that a loop picks by numbers from vectors that hold them in the loop's order."""
    for loop in find(graph):
        _Picked(graph, loop).put_in_order()


class _Picked:
    """The entries that one loop picks."""

    def __init__(self, graph: fx.Graph, loop: LoopFound) -> None:
        self.graph, self.loop = graph, loop
        self.first, self.last = loop.iterations[0][0], loop.iterations[-1][2]
        self.inside, self.written = loop.nodes, loop.written
        self.vectors: dict[Any, fx.Node] = {}
        self.numbers: set[Any] = set()
        """Those that pick entries of vectors."""

    def put_in_order(self) -> None:
        if any(node.target in (*markers.LOOP_SKIP, *markers.LOOP_BRANCH) for node in self.inside):
            return  # a document that reads nothing may have any number
        for rows in (False, True):
            for begin, body, _ in self.loop.iterations:
                for node in body:
                    found = place_of(node, rows=rows)
                    number = None if found is None else self._number(found[1], begin)
                    if found is None or number is None or not self._is_picked(found[0], number):
                        continue
                    self._put(node, found[0], number, begin)

    def _is_picked(self, source: fx.Node, number: Any) -> bool:
        """Is it an entry of a vector of integers, or a row of a table by a number that picks such entries as well?"""
        if _is_ahead(number) or not self._may_be_read(source):
            return False
        if is_vector(source):
            self.numbers.add(number)
            return True
        return example(source).dim() > 0 and number in self.numbers

    def _put(self, node: fx.Node, source: fx.Node, number: Any, begin: fx.Node) -> None:
        """Let a node read what its document picks from all that is picked."""
        step, more = _multiple(number) or (0, 0)
        if step > 1:
            vector = self._made((source, step, more % step), source, slice(more % step, None, step))
        else:
            vector = self._made((source, number), source, number)
        if vector is not None:
            at = self._ahead(begin, more // step if step > 1 else 0)
            node.target, node.args, node.kwargs = torch.select, (vector, 0, at), {}

    def _may_be_read(self, source: fx.Node) -> bool:
        """Does it hold in front of the loop what it holds where it is read, and does nobody write to it later on, where
        a row of it is looked at?"""
        memory, rows = storage(source), example(source).dim() > 1
        if source in self.inside or not source < self.first or memory is None or memory in self.written:
            return False
        until = next(iter(reversed(self.graph.nodes))) if rows else self.last
        return not mutated_after(self.graph, source, self.first, until)

    def _number(self, node: Any, begin: fx.Node) -> Any:
        """How a number is made from that of the loop's document, and from others in front of the loop; None if it is
        made in another way. The same for all iterations."""
        if type(node) is int:
            return node
        if node is begin:
            return INDEX
        if not isinstance(node, fx.Node):
            return None
        if node not in self.inside:
            return node if isinstance(example(node), torch.SymInt) and node < self.first else None
        if node.target is torch.sym_sum:
            parts = [self._number(part, begin) for part in node.args[0]]  # type: ignore[union-attr]
            known = parts and all(part is not None for part in parts)
            return (torch.sym_sum, *sorted(parts, key=str)) if known else None
        if node.target in _ARITHMETIC and node.op == "call_function" and len(node.args) == 2 and not node.kwargs:
            sides = [self._number(side, begin) for side in node.args]
            return None if any(side is None for side in sides) else (node.target, *sides)
        if node.target is torch.sym_int:
            return self._number(node.args[0], begin)
        read = read_from(node)
        found = None if read is None else place_of(read)
        at = None if found is None else self._number(found[1], begin)
        if found is None or at is None or not self._may_be_read(found[0]):
            return None
        return ("entry", found[0], at)

    def _made(self, key: Any, source: fx.Node, number: Any) -> fx.Node | None:
        """The entries of ``source`` that all documents pick; None if that cannot be made."""
        if key not in self.vectors:
            build = Builder(self.graph, self.first, source)
            try:
                numbers = number if isinstance(number, slice) else self._all(build, source, number)
                self.vectors[key] = build.call(operator.getitem, source, numbers)
            except Refused:
                build.undo()
                return None
        return self.vectors[key]

    def _ahead(self, begin: fx.Node, more: int) -> fx.Node:
        """The number of a document further on."""
        if not more:
            return begin
        if (begin, more) not in self.vectors:
            self.vectors[begin, more] = Builder(self.graph, begin.next, begin).call(operator.add, begin, more)
        return self.vectors[begin, more]

    def _all(self, build: Builder, source: fx.Node, number: Any) -> Any:
        """The number of every document of the loop."""
        if number is INDEX:
            return build.call(torch.arange, self.first.args[0], device=example(source).device)
        if not isinstance(number, tuple):
            return number
        function, *parts = number
        if function == "entry":
            vector, at = parts
            return build.call("long", build.call(operator.getitem, vector, self._all(build, vector, at)), method=True)
        made = [self._all(build, source, part) for part in parts]
        if function is torch.sym_sum:
            total, *rest = made
            for more in rest:
                total = build.call(operator.add, total, more)
            return total
        return build.call(function, *made)


def _multiple(number: Any) -> tuple[int, int] | None:
    """``(a, b)`` if a number is ``a`` times that of the document, and ``b`` more, neither of them negative."""
    if number is INDEX:
        return 1, 0
    if type(number) is int:
        return (0, number) if number >= 0 else None
    function, *parts = number if isinstance(number, tuple) else (None,)
    sides = [_multiple(part) for part in parts] if function in (operator.add, operator.mul, torch.sym_sum) else [None]
    if None in sides:
        return None
    if function is operator.mul:
        (a, b), (c, d) = sides  # type: ignore[misc]
        return None if a and c else (a * d + c * b, b * d)
    return sum(a for a, _ in sides), sum(b for _, b in sides)  # type: ignore[misc]


def _is_ahead(number: Any) -> bool:
    """Is it the document's own number, and a constant more?"""
    if number is INDEX or not isinstance(number, tuple):
        return True
    function, *parts = number
    if function not in (operator.add, torch.sym_sum) or len(parts) != 2 or INDEX not in parts:
        return False
    more = parts[1] if parts[0] is INDEX else parts[0]
    return type(more) is int and more >= 0
