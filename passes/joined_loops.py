"""Two loops, of which the second goes over what the first has put into lists, as one: the reverse of
`passes.document_loops.fission`.

Before::

    for s, e in documents:
        handles.append(all_to_all(received, x[s:e].view(...), async_op=True))
        parts.append(received)
    for handle, part in zip(handles, parts):
        handle.wait()
        rows.append(part.view(...))

After::

    for s, e in documents:
        rows.append(all_to_all(x[s:e].view(...)).view(...))

Why it is safe: the second loop sees of each document what the first has listed for it, and else only what was there
before the first and is written by neither loop, nor between them. What the second writes is a document's own.

Does not handle: loops that skip documents or branch, random numbers in both, lists that the second uses in another way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import fx

from packpass import markers
from packpass.semantics import AUTOGRAD_FUNCTION, is_tensor, op_name, storage
from packpass.semantics.collectives import collective_name
from packpass.semantics.effects import changes_mode, effects_of, mutated_after, written_inputs
from passes.loops import ASSERTIONS, LAYOUT, WAYS, LoopFound, find, only_asserted
from passes.nodes import needed_for


def follower(graph: fx.Graph, first: LoopFound, parts: Sequence[LoopFound] = ()) -> LoopFound | None:
    """The loop that goes over what this one puts into lists; it is none of the ``parts`` of it."""
    lists = _lists(first)
    readers = {user for collect in lists for user in collect.users if user.target is markers.LIST_GET}
    if not readers:
        return None
    known = {first.id, *(part.id for part in parts)}
    return next((loop for loop in find(graph) if loop.id not in known and readers & loop.nodes), None)


def fillers(graph: fx.Graph, loops: Sequence[LoopFound]) -> list[LoopFound]:
    """These loops, and those that put into lists what they take from them, or what such a loop does, in graph order."""
    found: dict[int, LoopFound] = {loop.id: loop for loop in loops}
    left = [*loops]
    while left:
        taken = {node.args[0] for node in left.pop().nodes if node.target is markers.LIST_GET}
        more = [other for other in find(graph) if taken & _lists(other) and other.id not in found]
        found |= {other.id: other for other in more}
        left += more
    return sorted(found.values(), key=lambda other: other.iterations[0][0])


def join(gm: fx.GraphModule, first: LoopFound, second: LoopFound) -> bool:
    """Let a loop do what its `follower` does with its lists; False, and nothing is changed, if that may not be."""
    graph, lists = gm.graph, _lists(first)
    if not _may_join(gm, (first,), second):
        return False
    for which in (0, 1):
        _move(graph, first, second, which)
    for collect in second.collects:
        collect.args = (*collect.args[:2], first.id)
    for collect in lists:
        for node in (*only_asserted(collect), collect):
            if not node.users:
                graph.erase_node(node)
    return True


def together(gm: fx.GraphModule, first: LoopFound) -> tuple[LoopFound, ...]:
    """A loop and all that go over what it, or one of these, puts into lists, in their order. The graph is as it was,
    but for what the later ones are given, which is computed in front of the first now."""
    parts: tuple[LoopFound, ...] = (first,)
    while (second := follower(gm.graph, as_one(parts), parts)) is not None and _may_join(gm, parts, second):
        parts = (*parts, second)
    return parts


@dataclasses.dataclass(frozen=True)
class Again:
    """A loop that does again what others have done, and what it takes to undo that."""

    loop: LoopFound
    made: tuple[fx.Node, ...]
    listed: tuple[tuple[fx.Node, Any], ...]
    """Calls that take an entry, and what they took it from."""

    def undo(self) -> None:
        for node, args in self.listed:
            node.args = args
        for node in reversed(self.made):
            node.graph.erase_node(node)


def done_again(graph: fx.Graph, parts: Sequence[LoopFound], second: LoopFound) -> Again | None:
    """Let a loop that goes over what others have put into lists do again what these do, where it cannot be one with
    them: what it is given is made of all that they have left. None, and nothing is changed, if they do more than to
    compute from what stays as it is."""
    first = as_one(parts)
    if not _are_plain((*parts, second)) or not _reads_own(second, _lists(first)):
        return None
    computed = [node for node in first.nodes if not _is_marker(node)]
    given = {n for node in first.nodes for n in node.all_input_nodes if n not in first.nodes} - set(first.collects)
    quiet = all(effects_of(node).pure or effects_of(node).host for node in computed)
    if not quiet or any(is_tensor(n) and mutated_after(graph, n, first.iterations[0][0]) for n in given):
        return None
    if any(mutated_after(graph, collect, first.iterations[0][0], ignore=first.nodes) for collect in _lists(first)):
        return None
    made: list[fx.Node] = []
    listed: list[tuple[fx.Node, Any]] = []
    iterations = []
    others = tuple(tuple(part.iterations[which][0] for part in parts) for which in (0, 1))
    for which in (0, 1):
        theirs, readers, end = second.iterations[which]
        again = dict.fromkeys(others[which], theirs)
        with graph.inserting_before(theirs.next):
            for node in [node for part in parts for node in part.iterations[which][1]]:
                again[node] = _copied(graph, node, again, which)
        copies = [copy for copy in again.values() if copy is not theirs]
        made += copies
        iterations.append((theirs, (*copies, *readers), end))
        for node in readers:
            if node.target is markers.LIST_GET and node.args[0] in first.collects:
                listed.append((node, node.args))
                node.args = (again[markers.collected_in(node.args[0], which)], theirs)
    return Again(dataclasses.replace(second, iterations=tuple(iterations), others=others), tuple(made), tuple(listed))


def _copied(graph: fx.Graph, node: fx.Node, again: dict[fx.Node, fx.Node], which: int) -> fx.Node:
    """The same call on what has been ``again`` computed; of a list, on what the document has put into it."""

    def given(n: fx.Node) -> fx.Node:
        if n.target is markers.LIST_COLLECT:
            entry = markers.collected_in(n, which)
            return again.get(entry, n) if isinstance(entry, fx.Node) else n
        return again.get(n, n)

    return graph.node_copy(node, given)


def as_one(parts: Sequence[LoopFound]) -> LoopFound:
    """Loops as one whose bodies are all of theirs, with the marks between them."""
    first, *others = parts
    iterations = []
    for i, (begin, body, end) in enumerate(first.iterations):
        theirs = [node for loop in others for b, nodes, e in loop.iterations[i : i + 1] for node in (b, *nodes, e)]
        iterations.append((begin, (*body, *theirs), end))
    collects = tuple(collect for loop in parts for collect in loop.collects)
    return dataclasses.replace(first, iterations=tuple(iterations), collects=collects)


def _may_join(gm: fx.GraphModule, parts: Sequence[LoopFound], second: LoopFound) -> bool:
    """May the second loop be a part of those before it? What it is given is computed in front of them then."""
    first = as_one(parts)
    lists, start = _lists(first), first.iterations[0][0]
    if not _are_plain((*parts, second)) or not _reads_own(second, lists):
        return False
    given = {n for node in second.nodes for n in node.all_input_nodes if n not in second.nodes and n not in lists}
    late = _computed_between(start, first, second, given)
    if late is None or not _keeps(gm, first, second, given, late):
        return False
    for node in late:
        start.prepend(node)
    return True


def _lists(loop: LoopFound) -> set[fx.Node]:
    return {collect for collect in loop.collects if collect.target is markers.LIST_COLLECT}


def _are_plain(loops: Sequence[LoopFound]) -> bool:
    begins = {begin for loop in loops for begin, _, _ in loop.iterations}
    nodes = [node for loop in loops for node in loop.nodes]
    other = any(node.target in WAYS or changes_mode(node) for node in nodes)
    nested = any(node.target is markers.LOOP_BEGIN and node not in begins for node in nodes)
    counts = {begin.args[0] for begin in begins}
    filled = all(collect.target is markers.LIST_COLLECT for loop in loops[1:] for collect in loop.collects)
    traced = all(len(loop.iterations) == 2 for loop in loops)
    return traced and len(counts) == 1 and filled and not other and not nested


def _reads_own(second: LoopFound, lists: set[fx.Node]) -> bool:
    """Does each document take from the lists its own entry, and nothing else?"""
    for begin, body, _ in second.iterations:
        for node in body:
            if any(n in lists for n in node.all_input_nodes) and (
                node.target is not markers.LIST_GET or node.args[1] is not begin
            ):
                return False
    return True


def _computed_between(start: fx.Node, first: LoopFound, second: LoopFound, given: set[fx.Node]) -> list[fx.Node] | None:
    """What the second loop is given that is computed behind the start of the first, and can be computed before."""
    late = {n for n in needed_for(given) if start < n and n not in second.nodes}
    movable = all(n not in first.nodes and n not in first.collects and effects_of(n).pure for n in late)
    return sorted(late) if movable else None


def _keeps(gm: fx.GraphModule, first: LoopFound, second: LoopFound, given: set[fx.Node], late: list[fx.Node]) -> bool:
    """Does everything that either loop sees hold what it held?"""
    effects = [[effects_of(node) for node in loop.nodes if not _is_marker(node)] for loop in (first, second)]
    known = {node for node in second.nodes if _is_marker(node) or node.target in markers.MESSAGES}
    unknown = [node for node in second.nodes - known if not effects_of(node).known]
    if all(any(e.random for e in loop) for loop in effects) or not all(_only_computes(gm, n) for n in unknown):
        return False
    before = _memory(n for node in first.nodes for n in node.all_input_nodes if n not in first.nodes)
    seen = _memory((*given, *(n for node in late for n in node.all_input_nodes)))
    entries = _memory(markers.collected_in(c, i) for c in first.collects for i in (0, 1))
    last, behind, own = first.iterations[-1][2], second.iterations[0][0], {*first.nodes, *late}
    between = [node for node in gm.graph.nodes if last < node < behind and node not in own]
    between = [node for node in between if node.target not in LAYOUT]
    listed = any(n in first.collects for node in between for n in node.all_input_nodes)
    between = [node for node in between if not _is_marker(node)]
    written = {storage(target) for node in between for target in written_inputs(node)}
    shared = before & first.written
    if None in written or written & (seen | entries | before) or shared & (seen | entries):
        return False
    if listed and (written or second.written & entries):  # the markers that look at lists are not asked what they see
        return False
    return not second.written & (before | _memory((*between, *(n for node in between for n in node.all_input_nodes))))


def _only_computes(gm: fx.GraphModule, node: fx.Node) -> bool:
    """A wait, or a function with a backward of its own that does nothing but compute and exchange."""
    if op_name(node) != AUTOGRAD_FUNCTION:
        return bool(collective_name(node.target))
    parts = [getattr(gm, str(part.target), None) for part in node.args[:2] if isinstance(part, fx.Node)]
    nodes = [n for part in parts if isinstance(part, fx.GraphModule) for n in part.graph.nodes]
    known = all(collective_name(n.target) or (effects_of(n).known and not effects_of(n).random) for n in nodes)
    return bool(nodes) and known and not written_inputs(node)


def _is_marker(node: fx.Node) -> bool:
    return node.target in markers.MARKERS or node.target in ASSERTIONS


def _memory(nodes: Any) -> set[Any]:
    return {storage(node) for node in nodes if is_tensor(node)} - {None}


def _move(graph: fx.Graph, first: LoopFound, second: LoopFound, which: int) -> None:
    begin, _, end = first.iterations[which]
    theirs, body, behind = second.iterations[which]
    for node in body:
        if node.target is markers.LIST_GET and node.args[0] in first.collects:
            node.replace_all_uses_with(markers.collected_in(node.args[0], which))
            graph.erase_node(node)
        else:
            end.prepend(node)
    graph.erase_node(behind)
    theirs.replace_all_uses_with(begin)
    graph.erase_node(theirs)
