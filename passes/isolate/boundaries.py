"""The boundaries where a rewritten graph needs them: as a tensor in it, and for whoever calls it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from packpass.layout import Packing
from packpass.semantics import example
from packpass.semantics.effects import effects_of, mutated_after
from passes.isolate.kinds import Row
from passes.isolate.reading import Reading
from passes.nodes import needed_for
from passes.refused import Refused

_OPS = torch.ops.packpass


class Boundaries:
    """Boundaries of a graph's one row; every node is made when it is first asked for."""

    def __init__(self, graph: fx.Graph, packing: Packing, reading: Reading) -> None:
        self.graph, self.packing, self.reading = graph, packing, reading
        self._length: Any = None
        self._checked: fx.Node | None = None
        self._positions: fx.Node | None = None
        self._starts: fx.Node | None = None

    def check(self) -> None:
        """Raises `Refused` where they are not known from the start, or change."""
        cu = self.packing.boundaries
        if cu.graph is not self.graph:
            raise Refused("boundaries-late", "the boundaries are known only inside a part of the model", None)
        if mutated_after(self.graph, cu, cu.next):
            raise Refused("boundaries-written", "the boundaries are written in place", cu)
        self._to_the_start(cu)

    def _to_the_start(self, node: fx.Node) -> None:
        """Compute the boundaries before anything else is: another pass may have put them where it needed them, behind
        what is to stop at documents here."""
        needed = needed_for([node])
        made = [n for n in self.graph.nodes if n in needed and n.op not in ("placeholder", "get_attr")]
        anchor = next((n for n in self.graph.nodes if n.op not in ("placeholder", "get_attr")), None)
        fixed = all(effects_of(n).repeatable for n in made) and not any(
            isinstance(example(n), torch.Tensor) and mutated_after(self.graph, n, anchor or n) for n in needed
        )
        if not fixed or anchor is None:
            return
        for n in made:
            if n is anchor:
                anchor = anchor.next
            else:
                anchor.prepend(n)

    def length(self) -> Any:
        """The number of slots of the row: a number, or a node at the graph's start."""
        if isinstance(self.reading.length, int):
            return self.reading.length
        if self._length is None:
            row = next(
                (n for n, k in self.reading.kinds.items() if n.op == "placeholder" and isinstance(k, Row)),
                next(n for n, k in self.reading.kinds.items() if isinstance(k, Row)),
            )
            kind = self.reading.kinds[row]
            with self.graph.inserting_before(self._after(row)):
                self._length = self.graph.call_method("size", (row, kind.dim))
                self._length.meta["example_value"] = self.reading.length
        return self._length

    def _after(self, node: fx.Node) -> fx.Node:
        following = node.next
        while following.op == "placeholder":
            following = following.next
        return following

    def whole(self) -> fx.Node:
        """Boundaries from 0 to the row's end: what lies outside of them is in a document of its own."""
        if self._checked is None:
            length, cu = self.length(), self.packing.boundaries
            order = {n: i for i, n in enumerate(self.graph.nodes)}
            latest = max((n for n in (cu, length) if isinstance(n, fx.Node)), key=order.__getitem__)
            with self.graph.inserting_before(self._after(latest)):
                if self.packing.kind == "declared":
                    self.graph.call_function(_OPS.check_cu_seqlens.default, (cu, length))
                else:
                    cu = self.graph.call_function(_OPS.boundaries_or_row.default, (cu, length, None, False))
                first = self.graph.call_method("new_zeros", (cu, (1,)))
                last = self.graph.call_method("new_full", (cu, (1,), length))
                self._checked = self.graph.call_function(torch.cat, ([first, cu, last],))
        return self._checked

    def positions(self) -> fx.Node:
        """The position of every slot in its document, int64 ``[T]``."""
        if self._positions is None:
            cu = self.whole()
            with self.graph.inserting_after(cu):
                self._positions = self.graph.call_function(_OPS.position_ids.default, (cu, self.length()))
        return self._positions

    def starts(self) -> fx.Node:
        """Does a document begin at a slot? bool ``[T]``."""
        if self._starts is None:
            positions = self.positions()
            with self.graph.inserting_after(positions):
                self._starts = self.graph.call_function(torch.eq, (positions, 0))
        return self._starts

    def alone(self, gm: fx.GraphModule) -> fx.GraphModule:
        """A graph of the same inputs that gives the boundaries and the row's length, and does nothing else."""
        cu, length = self.packing.boundaries, self.length()
        needed = needed_for(n for n in (cu, length) if isinstance(n, fx.Node))
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.graph.nodes:
            if node in needed and node.op in ("call_function", "call_method") and not effects_of(node).repeatable:
                raise Refused("boundaries-late", "computing the boundaries does more than that", node)
            if node.op == "placeholder" or node in needed:
                copies[node] = graph.node_copy(node, lambda n: copies[n])
                copies[node].meta.clear()
        graph.output((copies[cu], copies[length] if isinstance(length, fx.Node) else length))
        return fx.GraphModule(gm, graph)


def original(boundaries: fx.Node) -> fx.Node:
    """The boundaries as they are given, before any check of whether they fit a row."""
    while boundaries.target is _OPS.boundaries_or_row.default and boundaries.args[2] is None:
        boundaries = cast(fx.Node, boundaries.args[0])
    return boundaries


def value_shape(node: fx.Node) -> Any:
    """The shape of a tensor node."""
    return example(node).shape
