"""Memory without tokens that is filled in place: masks and tables of positions as people write them.

::

    mask = torch.zeros(T, T)
    mask.masked_fill_(above, -inf)          # the call is a statement: nobody uses what it returns
    table = torch.zeros(T, C)
    table[:, 0::2] = torch.sin(angles)

What such memory holds is made of the calls that write it, too. They are part of its value if all of them come before
anybody reads it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass.semantics import op_name, read_inputs, storage
from packpass.semantics.effects import effects_of, written_inputs
from passes.refused import Refused


class Written:
    """Who writes which memory of a graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self._writers: dict[Any, list[fx.Node]] = {}
        for node in graph.nodes:
            for memory in dict.fromkeys(storage(n) for n in written_inputs(node)):
                if memory is not None:
                    self._writers.setdefault(memory, []).append(node)
        self._nodes: dict[Any, list[fx.Node]] = {}
        for node in graph.nodes if self._writers else ():
            if (memory := storage(node)) in self._writers:
                self._nodes.setdefault(memory, []).append(node)
        self._settled: set[Any] = set()

    def writers(self, node: fx.Node) -> list[fx.Node]:
        """The calls that write what a value holds, in their order. Raises `Refused` where it is read before all is
        written, or is memory of the module or the caller."""
        memory = storage(node)
        found = self._writers.get(memory, []) if memory is not None else []
        if found and memory not in self._settled:
            self._check(memory, found)
            self._settled.add(memory)
        return found

    def written(self, node: fx.Node) -> bool:
        """Does any call write what a value holds?"""
        return storage(node) in self._writers

    def between(self, node: fx.Node, first: fx.Node, last: fx.Node) -> bool:
        """Is what a value holds written somewhere between two nodes?"""
        span = range(self.order[first], self.order[last] + 1)
        return any(self.order[writer] in span for writer in self._writers.get(storage(node), ()))

    def _check(self, memory: Any, writers: list[fx.Node]) -> None:
        last = self.order[writers[-1]]
        for writer in writers:
            if not dataclasses.replace(effects_of(writer), writes=()).repeatable:
                how = "at random" if effects_of(writer).random else "in a way that is not known (out=?)"
                raise Refused("mixes-documents", f"{op_name(writer)} fills positions or a mask {how}", writer)
        for node in self._nodes[memory]:
            if node.op in ("placeholder", "get_attr"):
                raise Refused(
                    "in-place",
                    f"{op_name(writers[0])} writes positions or a mask into {node.name}, which outlives the call; "
                    "write to new memory",
                    writers[0],
                )
            for user in node.users:
                early = self.order[user] < last and user not in writers and storage(user) != memory
                if early and node in read_inputs(user):
                    raise Refused(
                        "in-place",
                        f"{op_name(writers[-1])} writes to positions or a mask that {op_name(user) or user.name} has "
                        "read before; write to a copy",
                        writers[-1],
                    )
