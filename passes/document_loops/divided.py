"""Loops that do several things, each to documents of its own: one loop for each, one behind the other.

Before::

    for i, (a, n) in enumerate(zip(prompts, lengths)):
        text[i, :a] = f[i, :a]                       # documents as long as the prompts
        image[i, : n - a] = f[i, a:n]                # documents as long as what is behind them

After::

    for i, (a, n) in enumerate(zip(prompts, lengths)):
        text[i, :a] = f[i, :a]
    for i, (a, n) in enumerate(zip(prompts, lengths)):
        image[i, : n - a] = f[i, a:n]

Why it is safe: what a loop leaves are writes to outer tensors and entries of lists. What moves to the first loop is one
of them, and whatever it is computed from, which has no effect and is computed again in the other. Both look at one
tensor only if none of them writes it, or if both see nothing of it but the document's own row; then the first loop
does for this row what came first in the body, too. Each of the two loops is proven by itself.

Does not handle: loops that skip documents or branch, parts of a packed row that both loops look at and one writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from packpass import markers
from packpass.semantics import argument, example, is_tensor, storage
from packpass.semantics.effects import changes_mode, effects_of, written_inputs
from passes.document_loops.fission import CUTS, Prefix, alike, split
from passes.document_loops.op_names import name_of
from passes.loops import ASSERTIONS, WAYS, LoopFound, hoistable
from passes.nodes import needed_for
from passes.places_of_documents import are_apart, strided


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some effects of one iteration: writes, entries of lists (collect, entry), and all that they need, in order."""

    writes: tuple[fx.Node, ...]
    listed: tuple[tuple[fx.Node, fx.Node], ...]
    nodes: tuple[fx.Node, ...]

    @property
    def effects(self) -> tuple[fx.Node, ...]:
        """What it is there for."""
        return (*self.writes, *(entry for _, entry in self.listed))

    @property
    def touched(self) -> set[Any]:
        """The memory from outside, or of the body, that it looks at or writes."""
        return {storage(n) for node in self.nodes for n in (node, *node.all_input_nodes)} - {None}

    @property
    def written(self) -> set[Any]:
        """The memory that it writes."""
        return {storage(target) for node in self.writes for target in written_inputs(node)} - {None}


def divide(graph: fx.Graph, loop: LoopFound) -> Callable[[], int] | None:
    """What puts the first thing that a loop does into a loop in front of it, and returns its id; None if the loop does
    one thing only, or it cannot be told apart from the rest."""
    if len(loop.iterations) != 2 or any(changes_mode(node) or node.target in WAYS for node in loop.nodes):
        return None
    start, last = loop.iterations[0][0], loop.iterations[-1][2]
    if any(node.target is markers.LOOP_BEGIN and start < node < last for node in graph.nodes if node not in loop.nodes):
        return None  # a loop within the loop
    hoisted = hoistable(graph, loop)
    inside = loop.nodes - set(hoisted)
    found = [_first(loop, which, inside) for which in (0, 1)]
    if found[0] is None or found[1] is None:
        return None
    (first, rest), (other, others) = found[0], found[1]
    prefixes = [Prefix((), part.nodes, part.listed) for part in (first, other)]
    outer = {n for part in (first, rest) for node in part.nodes for n in node.all_input_nodes if n not in inside}
    if not alike(*prefixes) or not all(n < start for n in outer - set(hoisted)):
        return None

    def put_in_front() -> int:
        for node in hoisted:
            start.prepend(node)
        number = split(graph, loop, prefixes)
        for needed, (_, body, _) in zip((rest.nodes, others.nodes), loop.iterations, strict=True):
            _forget(graph, (node for node in body if node in inside), set(needed))
        return number

    return put_in_front


def _forget(graph: fx.Graph, body: Iterable[fx.Node], needed: set[fx.Node]) -> None:
    """Erase what an iteration does not need any more, and what asserts something about that."""
    there = set(graph.nodes)  # without those that the other loop has taken
    for node in reversed([node for node in body if node in there and node not in needed]):
        if not node.users:
            graph.erase_node(node)


def _first(loop: LoopFound, which: int, inside: set[fx.Node]) -> tuple[_Part, _Part] | None:
    """The first effect of an iteration, with those that cannot be told from it, and the others."""
    begin, whole, _ = loop.iterations[which]
    body = [node for node in whole if node in inside]
    given = {storage(n) for node in body for n in node.all_input_nodes if n not in inside}
    writers: dict[Any, list[fx.Node]] = {}
    for node in body:
        for target in written_inputs(node):
            writers.setdefault(storage(target), []).append(node)
    local = {memory: nodes for memory, nodes in writers.items() if memory not in given}
    writes = {node for memory, nodes in writers.items() if memory in given for node in nodes}
    entries = [(collect, markers.collected_in(collect, which)) for collect in loop.collects]
    known = all(_repeatable(node) or written_inputs(node) or node.target in ASSERTIONS for node in body)
    if None in writers or not known or any(entry not in body for _, entry in entries):
        return None
    single = [_part([node], [], body, local) for node in body if node in writes]
    single += [_part([], [pair], body, local) for pair in entries]
    parts: list[_Part] = []
    for one in single:
        same = [part for part in parts if writes.intersection(part.nodes, one.nodes) or _lists_the_same(part, one)]
        parts = [*(part for part in parts if part not in same), _together([*same, one], body)]
    order = {node: i for i, node in enumerate(body)}
    parts.sort(key=lambda part: min(order[n] for n in part.effects))
    if len(parts) < 2 or any(storage(n) is None for part in parts for n in part.nodes if is_tensor(n)):
        return None
    first, rest = parts[0], _together(parts[1:], body)
    return (first, rest) if _apart(first, rest, order, begin, given) else None


def _part(writes: list[fx.Node], listed: list[Any], body: list[fx.Node], local: dict[Any, list[fx.Node]]) -> _Part:
    """An effect, and what it is computed from; tensors of the body with all that is written to them."""
    needed = needed_for([*writes, *(entry for _, entry in listed)], set(body))
    while True:
        more = {w for node in needed for memory in (storage(node),) for w in local.get(memory, ())} - needed
        if not more:
            return _Part(tuple(writes), tuple(listed), tuple(node for node in body if node in needed))
        needed = needed_for([*needed, *more], set(body))


def _together(parts: list[_Part], body: list[fx.Node]) -> _Part:
    nodes = {node for part in parts for node in part.nodes}
    writes = {node for part in parts for node in part.writes}
    listed = tuple(pair for part in parts for pair in part.listed)
    return _Part(tuple(n for n in body if n in writes), listed, tuple(n for n in body if n in nodes))


def _lists_the_same(one: _Part, other: _Part) -> bool:
    """Do lists of both hold one tensor? What is done to it later is seen through either."""
    held = [{storage(entry) for _, entry in part.listed} - {None} for part in (one, other)]
    return not held[0].isdisjoint(held[1])


def _repeatable(node: fx.Node) -> bool:
    return node.target in CUTS or effects_of(node).repeatable


def _apart(first: _Part, rest: _Part, order: dict[fx.Node, int], begin: fx.Node, given: set[Any]) -> bool:
    """May all documents go through ``first`` before one goes through the rest?"""
    for memory in (first.written | rest.written) & first.touched & rest.touched & given:
        if not _are_own_rows(_places(first, memory, begin) | _places(rest, memory, begin)):
            return False
        early = [order[n] for n in first.nodes if _looks_at(n, memory)]
        late = [order[n] for n in rest.nodes if _looks_at(n, memory)]
        if early and late and max(early) > min(late):
            return False
    return True


def _looks_at(node: fx.Node, memory: Any) -> bool:
    """Does a call read or write what is in the memory? (A view of it does not.)"""
    of_it = any(storage(n) == memory for n in node.all_input_nodes)
    return of_it and (storage(node) != memory or bool(written_inputs(node)))


def _places(part: _Part, memory: Any, begin: fx.Node) -> set[Any]:
    """What it sees of a tensor from outside: tensors, and the dimension along which it takes the document's row of
    each; None for anything else."""
    inside, places = set(part.nodes), set()
    for node in part.nodes:
        for base in node.all_input_nodes:
            if base in inside or storage(base) != memory:
                continue
            index = argument(node, 2, "index") if name_of(node) == "select" else None
            dim: Any = argument(node, 1, "dim") if index is begin and node.args[0] is base else None
            places.add(None if type(dim) is not int else (base, dim % example(base).dim()))
    return places


def _are_own_rows(places: set[Any]) -> bool:
    """Is that nothing but the rows of the document, which no other document sees?"""
    if None in places or len(places) < 2:
        return None not in places and bool(places)
    views = [strided(base) for base, dim in places if dim == 0]
    known = [view for view in views if view is not None]
    return len(known) == len(places) and len({of for of, _ in known}) == 1 and are_apart([cut for _, cut in known])
