"""Which nodes have to be computed earlier so that collectives come to stand side by side, and whether they may.

A group of collectives runs where its first member is written. A later member joins it with everything that its input
still needs, which is legal if

* none of it depends on what runs at the group's place or after it and stays there (other collectives among them),
* all of it is pure, and means the same there (autocast, recording of gradients),
* nothing that it passes writes memory which it reads, or has an effect that is not understood,
* it passes no collective of another process group: their order is kept.

Every rank of a process group that runs the same graph then runs the same collectives in the same order: the group has
the place that its first member had, so no new wait of one rank for another arises.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Any

from torch import fx

from packpass._compat import is_collective
from packpass.semantics import op_name
from passes.fuse_all_to_all.straight_effects import (
    Modes,
    is_pure,
    modes_of,
    read_memory,
    tensors_of,
    written_memory,
)
from passes.fuse_all_to_all.straight_find import Member, group_of
from passes.refused import Refused


class Schedule:
    """An order of a graph's nodes; the graph itself is not touched."""

    def __init__(self, graph: fx.Graph, members: Sequence[Member]) -> None:
        self.order: list[fx.Node] = list(graph.nodes)
        self._place = {node: i for i, node in enumerate(self.order)}
        self._of_members = {node for member in members for node in member.nodes}
        self._modes: dict[fx.Node, Modes] = modes_of(graph, self._of_members)
        self._writers: list[tuple[fx.Node, set[Any] | None]] = []
        """What writes which storages; None: any."""
        self._needs: dict[fx.Node, int] = {}
        """Bit i: the node needs the result of the i-th collective, through values or through memory."""
        self._collectives: dict[fx.Node, int] = {}
        self._groups: dict[fx.Node, str | None] = {m.nodes[0]: m.group for m in members}
        self._look()

    def _look(self) -> None:
        through_memory: dict[Any, int] = {}
        anywhere = 0
        for node in self.order:
            bits = anywhere
            for needed in node.all_input_nodes:
                bits |= self._needs[needed] | self._collectives.get(needed, 0)
            for storage in read_memory(node):
                bits |= through_memory.get(storage, 0)
            self._needs[node] = bits
            collective = node.op == "call_function" and is_collective(node.target)
            if collective or node in self._of_members:
                self._collectives[node] = 1 << len(self._collectives)
                bits |= self._collectives[node]
            if collective and node not in self._groups:
                self._groups[node] = group_of(node)
            # An autograd.Function that is a member writes nothing; a member's copy writes its buffer.
            written = written_memory(node) if node.op == "call_method" or node not in self._of_members else set()
            if written is None:
                anywhere |= bits
            for storage in written or ():
                through_memory[storage] = through_memory.get(storage, 0) | bits
            if written is None or written:
                self._writers.append((node, written))

    def depends(self, bucket: Sequence[Member], member: Member) -> bool:
        """Does a member need the result of what it would run beside, or of a later collective?"""
        start = self._place[bucket[0].nodes[0]]
        needs = self._needs[member.nodes[0]]
        return bool(needs) and any(needs & bit and self._place[n] >= start for n, bit in self._collectives.items())

    def join(self, bucket: Sequence[Member], member: Member) -> None:
        """Move ``member`` behind the last member of ``bucket``, which it must not depend on.

        Raises Refused, with nothing changed.
        """
        anchor = bucket[0].nodes[0]
        start, stop = self._place[anchor], self._place[member.nodes[0]]
        cone = self._needed(member, start)
        self._check(cone, member, start, stop)
        last = bucket[-1].nodes[-1]
        moved = {*cone, *member.nodes}
        order: list[fx.Node] = []
        for node in self.order:
            if node is anchor:
                order += sorted(cone, key=self._place.__getitem__)
            if node not in moved:
                order.append(node)
            if node is last:
                order += member.nodes
        self.order = order
        self._place = {node: i for i, node in enumerate(order)}

    def _needed(self, member: Member, start: int) -> list[fx.Node]:
        """What the member's inputs need and what stands behind the anchor, in order."""
        found: list[tuple[int, fx.Node]] = []
        seen: set[fx.Node] = set()
        stack = list(member.inputs)
        while stack:
            node = stack.pop()
            if node in seen or self._place[node] < start:
                continue
            seen.add(node)
            if not is_pure(node):
                raise Refused("not-movable", f"{op_name(node) or node.target} cannot be computed earlier", node)
            insort(found, (self._place[node], node), key=lambda entry: entry[0])
            stack.extend(node.all_input_nodes)
        return [node for _, node in found]

    def _check(self, cone: list[fx.Node], member: Member, start: int, stop: int) -> None:
        anchor = self.order[start]
        here = self._modes[anchor]
        for node in (*cone, member.nodes[0]):
            there = self._modes[node]
            if there.era != here.era or there.autocasts != here.autocasts:
                raise Refused("not-movable", "autocast, a stream or a check begins or ends between two of them", node)
            if there.grad != here.grad and any(t.requires_grad for n in node.all_input_nodes for t in tensors_of(n)):
                raise Refused("not-movable", "recording of gradients is switched between two of them", node)
        for node, group in self._groups.items():
            if start < self._place[node] < stop and group != member.group:
                raise Refused("collective-order", "a collective of another process group lies between them", node)
        reads = [(self._place[n], read_memory(n)) for n in (*cone, *member.nodes)]
        for node, memory in self._writers:
            place = self._place[node]
            for at, read in reads:
                if start < place < at and (memory is None or not memory.isdisjoint(read)):
                    raise Refused("collective-order", "its input is changed in place between them", node)
