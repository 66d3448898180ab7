"""Loops over the tokens of a row whose state goes from step to step: at a document's start it begins anew.

::

    state = zeros
    for t in range(x.shape[1]):                             state = where(starts[t], zeros, state)
        state = step(state, x[:, t])             ->         state = step(state, x[:, t])
        out.append(state)

Documents stay in the row, so there is no padding, nothing is read on the host, and no step is run more than once.

What is proven, of the graph and for all numbers: every step reads its own slot of rows, what the step before it made,
and what holds no token; every step, the second included, is the step before it, call by call, with the same numbers but
for that of the slot; the first step has something without tokens where the others have what the step before them made;
and slot t of the result is what step t made, for each t alike. Then a step that finds that something at a document's
start makes of the document what the loop makes of it alone. Where any of it is not so, documents become a batch
(`passes.isolate.build`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import fx

from packpass.semantics import blank, call_of, example, read_inputs, storage
from packpass.semantics.effects import effects_of, written_inputs
from passes.isolate.alike import Alike, Argument, NotProven, arguments
from passes.isolate.kinds import PLAIN, SIZED, Merged, Row
from passes.isolate.reading import Reading
from passes.isolate.regions import Region
from passes.isolate.slots import Slot, slot_read, slot_written

LEAST = 3
"""Steps of a loop: of fewer there is nothing to compare."""


@dataclasses.dataclass(frozen=True)
class Gathered:
    """What puts the ``results`` of the steps together along ``dim``: ``node`` is a call, or the memory that they are
    written to. ``kept``: does each have that dimension already, with ``inner`` slots?"""

    node: fx.Node
    dim: int
    results: tuple[fx.Node, ...]
    kept: bool
    writes: tuple[fx.Node, ...] = ()
    inner: int = 1

    @property
    def kind(self) -> Row | Merged:
        return Row(self.dim) if self.inner == 1 else Merged(self.dim, self.inner, self.node)


@dataclasses.dataclass(frozen=True)
class Reset:
    """``reader``, in ``step``, reads ``state`` of the step before; at a document's start that is ``start``."""

    reader: fx.Node
    state: fx.Node
    start: Argument
    step: int


@dataclasses.dataclass(frozen=True)
class Carried:
    """A region that is such a loop, and what has to be put into it."""

    region: Region
    gathered: tuple[Gathered, ...]
    resets: tuple[Reset, ...]


def carried_of(reading: Reading, region: Region, least: int = LEAST) -> Carried | None:
    """The loop that a region is, of ``least`` steps or more; None if it is anything else."""
    if reading.symbols or reading.length < least:
        return None
    try:
        return _Loop(reading, region).carried()
    except NotProven:
        return None


class _Loop:
    """What every node of a region is to the loop: of a step (``steps``), without tokens (``plain``), what puts the
    results together (``gathered``), or made of that."""

    def __init__(self, reading: Reading, region: Region) -> None:
        self.reading, self.region, self.length = reading, region, int(reading.length)
        self.order = {n: i for i, n in enumerate(reading.graph.nodes)}
        self.members = set(region.nodes)
        self.steps: dict[fx.Node, int] = {}
        self.slots: dict[fx.Node, Slot] = {}
        self.plain: set[fx.Node] = set()
        self.gathered: dict[fx.Node, Gathered] = {}
        self.writes: set[fx.Node] = set()

    def carried(self) -> Carried:
        live, after = self._live(), []
        for node in self.region.nodes:
            if node not in live or node in self.writes or self._unbound(node) or self._gathers(node):
                continue
            if any(n in self.gathered or n in after for n in read_inputs(node)):
                after.append(node)
            else:
                self._place(node)
        if not self.gathered:
            raise NotProven
        for gathered in self.gathered.values():
            if any(self.steps.get(result) != t for t, result in enumerate(gathered.results)):
                raise NotProven
        self._check_after(after)
        alike = Alike(self.steps, self.slots)
        for gathered in self.gathered.values():
            alike.compare(zip(gathered.results[1:], gathered.results, strict=False))
        for state in self.region.states:
            if state in self.steps and state not in alike.pairs:
                raise NotProven
        return Carried(self.region, tuple(self.gathered.values()), tuple(self._resets(alike)))

    def _live(self) -> set[fx.Node]:
        """What is used for its numbers: of the first slot the shape is often asked for."""
        live = {*self.region.exits, *self.region.states}
        for node in reversed(self.region.nodes):
            if written_inputs(node) or not effects_of(node).repeatable:
                live.add(node)
            if node in live:
                live.update(n for n in read_inputs(node) if n in self.members)
        return live

    # === What each node is ======================================================================================

    def _gathers(self, node: fx.Node) -> bool:
        """Does a node put results together? That is noted."""
        memory, call = storage(node), call_of(node)
        if blank(node) and memory is not None and memory in self.reading.memory:
            self.gathered[node] = found = self._written(node)
            self.writes.update(found.writes)
            return True
        if call is None or call.op not in ("stack", "cat"):
            return False
        parts, dim = call.get("tensors"), call.get("dim", default=0) % example(node).dim()
        if not isinstance(parts, (tuple, list)) or len(parts) != self.length:
            return False
        if any(self.steps.get(part) != t for t, part in enumerate(parts)):
            return False
        kept = call.op == "cat"
        inner = {int(example(part).shape[dim]) for part in parts} if kept else {1}
        if len(inner) != 1:
            return False
        self.gathered[node] = Gathered(node, dim, tuple(parts), kept, inner=inner.pop())
        return True

    def _written(self, memory: fx.Node) -> Gathered:
        """Memory of which every step writes its own slot, and which nobody reads before all is written."""
        users = sorted(memory.users, key=self.order.__getitem__)
        writes = tuple(n for n in users if written_inputs(n))
        if len(writes) != self.length or tuple(users[: self.length]) != writes:
            raise NotProven
        sizes = example(memory).shape
        written = ((d, [slot_written(n, memory, d, self.length) for n in writes]) for d in range(len(sizes)))
        dim, found = next(
            ((d, slots) for d, slots in written if self.reading.touches(sizes[d]) and None not in slots), (0, [None])
        )
        values = []
        for t, slot in enumerate(found):
            if slot is None or slot.number != t or slot.form != getattr(found[0], "form", None):
                raise NotProven
            if not isinstance(slot.value, fx.Node):
                raise NotProven
            values.append(slot.value)
        return Gathered(memory, dim, tuple(values), bool(found[0] is not None and found[0].kept), writes)

    def _unbound(self, node: fx.Node) -> bool:
        """Are these the slots of a row, which steps take one by one?"""
        call = call_of(node)
        return call is not None and call.op == "unbind" and all(slot_read(self.reading, u) for u in node.users)

    def _place(self, node: fx.Node) -> None:
        """Note of which step a node is."""
        slot = slot_read(self.reading, node)
        if slot is not None:
            self.slots[node], self.steps[node] = slot, slot.number
            return
        if written_inputs(node) or not effects_of(node).repeatable:
            raise NotProven
        found = [self.steps[n] for n in read_inputs(node) if n in self.steps]
        if any(n not in self.steps and not self._without_tokens(n) for n in read_inputs(node)):
            raise NotProven
        if found:
            self.steps[node] = max(found)
        else:
            self.plain.add(node)

    def _without_tokens(self, node: fx.Node) -> bool:
        if node in self.members:
            return node in self.plain
        changes = self.reading.written.between(node, self.region.nodes[0], self.region.nodes[-1])
        return self.reading.kinds[node] in (PLAIN, SIZED) and not changes

    def _check_after(self, after: Sequence[fx.Node]) -> None:
        """What is made of the results goes token by token, and is all that leaves the region."""
        rows: dict[fx.Node, Row | Merged] = {node: gathered.kind for node, gathered in self.gathered.items()}
        reading = self.reading.with_rows(rows)
        for node in after:
            outside = [n for n in read_inputs(node) if n not in rows and not self._without_tokens(n)]
            if written_inputs(node) or not effects_of(node).repeatable:
                raise NotProven
            if any(n in self.members or not isinstance(reading.kinds[n], (Row, Merged)) for n in outside):
                raise NotProven
            kind = reading.token_by_token(node)
            if not isinstance(kind, (Row, Merged)) or reading.aligned:
                raise NotProven
            reading.kinds[node] = rows[node] = kind
        for node in self.region.exits:
            if rows.get(node) != self.reading.kinds[node]:
                raise NotProven
        if any(n not in self.steps and n not in self.plain and n not in rows for n in self.region.states):
            raise NotProven

    def _resets(self, alike: Alike) -> Iterator[Reset]:
        """What has to be put in front of which calls, in the order of the graph."""
        first: dict[fx.Node, fx.Node] = {}
        for node in sorted(alike.pairs, key=lambda n: (self.steps[n], self.order[n])):
            before = alike.pairs[node]
            first[node] = first.get(before, before)
        for node in sorted((n for n in first if n not in self.slots), key=self.order.__getitem__):
            step, starts = self.steps[node], dict[fx.Node, Argument]()
            for place, (_, x) in enumerate(arguments(node)):
                if not isinstance(x, fx.Node) or self.steps.get(x) != step - 1:
                    continue
                start = alike.starts.get((first[node], place), NotProven)
                if start is NotProven or starts.setdefault(x, start) is not start:
                    raise NotProven
                if self.order[first[node]] > self.order[node]:
                    raise NotProven
            yield from (Reset(node, state, start, step) for state, start in starts.items())


# === Transform ===================================================================================================


def rewrite(graph: fx.Graph, carried: Carried, starts: fx.Node, moved: dict[fx.Node, fx.Node]) -> None:
    """Put the initial values in front of the steps that a document begins with, where ``starts``, bool ``[steps]``, is
    True. ``moved``: what stands for nodes that are gone, kept up to date."""
    flags: dict[int, fx.Node] = {}
    made: dict[tuple[fx.Node, Argument], fx.Node] = {}
    for reset in carried.resets:
        key = (reset.state, reset.start)
        with graph.inserting_before(reset.reader):
            if reset.step not in flags:
                flags[reset.step] = graph.call_function(torch.select, (starts, 0, reset.step))
            if key not in made:
                made[key] = graph.call_function(torch.where, (flags[reset.step], reset.start, reset.state))
                made[key].meta = reset.state.meta.copy()
        reset.reader.replace_input_with(reset.state, made[key])
    for gathered in carried.gathered:
        if gathered.writes:
            _put_together(graph, gathered, moved)


def _put_together(graph: fx.Graph, gathered: Gathered, moved: dict[fx.Node, fx.Node]) -> None:
    """One call in place of a write for every step, each of which Inductor makes a copy of everything, as far as it has
    the same form in memory."""
    memory = example(gathered.node)
    slot = memory.narrow(gathered.dim, 0, 1) if gathered.kept else memory.select(gathered.dim, 0)
    same = all(example(n).shape == slot.shape and example(n).dtype == memory.dtype for n in gathered.results)
    if not same or not memory.is_contiguous():
        return
    join = torch.cat if gathered.kept else torch.stack
    with graph.inserting_after(gathered.writes[-1]):
        new = graph.call_function(join, (list(gathered.results), gathered.dim))
    new.meta = gathered.node.meta.copy()
    for node in gathered.writes:
        graph.erase_node(node)
    gathered.node.replace_all_uses_with(new)
    moved[gathered.node] = new
    graph.erase_node(gathered.node)
