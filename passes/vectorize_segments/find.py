"""Find captured loops, interpret both traced iterations, and decide. Nothing here changes the graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.capture import markers
from passes.mutation import mutated_after
from passes.vectorize_segments import rules_indexing, rules_packed, rules_views  # noqa: F401  (fills the rule table)
from passes.vectorize_segments.machine import Check, Machine, Refused, Segment, Store, example, storage
from passes.vectorize_segments.rules import label, step
from passes.vectorize_segments.terms import Affine, Boundaries, Index, Interner, Outside, Row, Term, walk


@dataclasses.dataclass(frozen=True)
class LoopFound:
    """A captured loop: its traced iterations as ``(begin, body, end)`` and the lists it fills."""

    id: int
    iterations: tuple[tuple[fx.Node, tuple[fx.Node, ...], fx.Node], ...]
    collects: tuple[fx.Node, ...]

    @property
    def nodes(self) -> set[fx.Node]:
        return {n for begin, body, end in self.iterations for n in (begin, *body, end)}


@dataclasses.dataclass(frozen=True)
class Decided:
    """A loop that may be vectorised, with everything the rewrite needs."""

    loop: LoopFound
    boundaries: Boundaries
    writes: tuple[tuple[Row, Store], ...]
    appended: tuple[tuple[fx.Node, Segment], ...]
    checks: tuple[Check, ...]
    covers_row: bool
    """Splitting by lengths: eager itself requires that the documents fill the row."""
    hoisted: tuple[fx.Node, ...]
    dead: tuple[fx.Node, ...]
    """Assertions on the made-up sizes of lists."""
    row_node: fx.Node | None
    """A tensor with the packed dimension, at ``row_dim``; None if the loop only makes lists (of positions, say)."""
    row_dim: int


def find(graph: fx.Graph) -> list[LoopFound]:
    """Every loop between markers, in graph order."""
    open_: list[tuple[fx.Node, list[fx.Node]]] = []
    found: dict[int, list[tuple[fx.Node, tuple[fx.Node, ...], fx.Node]]] = {}
    collects: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target is markers.LOOP_BEGIN:
            open_.append((node, []))
        elif node.target is markers.LOOP_END:
            begin, body = open_.pop()
            found.setdefault(int(str(begin.args[1])), []).append((begin, tuple(body), node))
        else:
            if node.target is markers.LIST_COLLECT:
                collects.setdefault(node.args[2], []).append(node)
            for _, body in open_:
                body.append(node)
    return [LoopFound(i, tuple(its), tuple(collects.get(i, ()))) for i, its in found.items()]


def interpret(
    loop: LoopFound, which: int, intern: Interner, fakes: dict[int, Any]
) -> tuple[Machine, dict[fx.Node, Any]]:
    """Run one traced iteration on the abstract machine."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(intern, loop.nodes, fakes)
    machine.values[begin] = Affine.of(Index())
    for node in body:
        step(machine, node)
    machine.finish()
    if machine.skip is not None and (loop.collects or machine.checks):
        raise Refused("skip-condition", "a list, or a check, in a loop that skips short documents")
    appended = {}
    for collect in loop.collects:
        source = collect.args[which]
        assert isinstance(source, fx.Node)
        appended[collect] = machine.value(source)
    return machine, appended


def decide(graph: fx.Graph, loop: LoopFound) -> Decided:
    """Check every condition; raises `Refused`."""
    if len(loop.iterations) != 2:
        raise Refused("not-captured", "the loop was not traced twice")
    intern, fakes = Interner(), {}  # type: Interner, dict[int, Any]
    hoisted = _hoistable(graph, loop)
    inside = loop.nodes - set(hoisted)
    loop = LoopFound(
        loop.id, tuple((b, tuple(n for n in body if n in inside), e) for b, body, e in loop.iterations), loop.collects
    )
    (first, appended), (second, appended_again) = (interpret(loop, i, intern, fakes) for i in (0, 1))
    _same_effects(first, appended, second, appended_again)
    return conclude(graph, loop, first, appended, _boundaries(first, loop), hoisted)


def conclude(
    graph: fx.Graph,
    loop: LoopFound,
    first: Machine,
    appended: dict[fx.Node, Any],
    boundaries: Boundaries,
    hoisted: tuple[fx.Node, ...],
) -> Decided:
    """The conditions on what a generic iteration does, whatever form the loop was found in; raises `Refused`."""
    writes = tuple((store.outer, store) for store in first.outer.values() if store.version and store.outer is not None)
    if not writes and not loop.collects and not first.checks:
        raise Refused("no-effect", "the loop over documents changes nothing")
    appends = []
    sizes = _list_sizes(loop)
    for collect, value in appended.items():
        if not isinstance(value, Segment) or not value.window.full or not value.store.exact:
            raise Refused("list-append", "what is appended per document is not as long as the document", collect)
        first.read(value, collect)
        root = value.store
        while root.parent is not None:
            root = root.parent[0]
        if root.outer is not None and (root.version or mutated_after(graph, root.outer.node, loop.iterations[0][0])):
            raise Refused(
                "aliasing", "a list holds views of a tensor that is changed before they are concatenated", collect
            )
        for user in collect.users:
            if user in sizes:
                continue
            if user.target is not markers.RAGGED_CAT:
                raise Refused(
                    "list-use", "the list of per-document tensors is used by something else than torch.cat", user
                )
            if int(user.args[1]) % value.rank != value.rank + value.dim:  # type: ignore[arg-type]
                raise Refused("list-use", "the per-document tensors are concatenated along another dimension", user)
        appends.append((collect, value))
    rows = _rows(writes, [v for _, v in appends], first)
    _no_aliasing(graph, loop, rows, {row for row, _ in writes}, boundaries, [v for _, v in appends], writes)
    extents = [example(row.node).shape[_position(row)] for row in rows]
    for other, extent in zip(rows[1:], extents[1:], strict=True):
        if not statically_known_true(extent == extents[0]):
            raise Refused("row-lengths", "rows of different lengths are cut by the same boundaries", other.node)
    _no_escape(loop)
    return Decided(
        loop,
        boundaries,
        writes,
        tuple(appends),
        tuple(first.checks),
        bool(first.split_of),
        hoisted,
        sizes,
        rows[0].node if rows else None,
        _position(rows[0]) if rows else 0,
    )


def _position(row: Row) -> int:
    """Index of the packed dimension in the outer tensor itself (before ``index`` drops others)."""
    if not row.index:
        return example(row.node).dim() + row.dim
    kept = [d for d, entry in enumerate(row.index) if not isinstance(entry, int)]
    return kept[row.dim]


def _same_effects(first: Machine, appended: dict[Any, Any], second: Machine, again: dict[Any, Any]) -> None:
    """Two iterations must leave the same terms in the same places: then every iteration does."""
    differs = Refused("not-generic", "two iterations of the loop do different things")
    if (
        first.boundaries != second.boundaries
        or first.checks != second.checks
        or first.skips_empty != second.skips_empty
    ):
        raise differs
    if list(first.outer) != list(second.outer) or first.split_of != second.split_of:
        raise differs
    for key, store in first.outer.items():
        other = second.outer[key]
        if store.term is not other.term or store.version != other.version or store.point_fill != other.point_fill:
            raise differs
    for collect, value in appended.items():
        other = again[collect]
        if not (isinstance(value, Segment) and isinstance(other, Segment)):
            raise Refused("list-append", "what is appended per document is not a part of a packed row", collect)
        if value.store.term is not other.store.term or value.window != other.window or value.rank != other.rank:
            raise differs


def _boundaries(machine: Machine, loop: LoopFound) -> Boundaries:
    """The loop must visit every document, in order, once."""
    if machine.boundaries is None:
        raise Refused("no-segments", "the loop does not cut anything by boundaries")
    boundaries, k = machine.boundaries
    vector = example(boundaries.node)
    if vector.dtype not in (torch.int32, torch.int64) or vector.dim() != 1:
        raise Refused("boundary-dtype", f"boundaries of dtype {vector.dtype}", boundaries.node)
    documents = vector.shape[0] if boundaries.lengths else vector.shape[0] - 1
    trips = loop.iterations[0][0].args[0]
    count = example(trips) if isinstance(trips, fx.Node) else trips
    if k != 0 or not statically_known_true(count == documents):
        raise Refused("partial-coverage", "the loop does not visit every document", boundaries.node)
    return boundaries


def _rows(writes: tuple[tuple[Row, Store], ...], appended: list[Segment], machine: Machine) -> list[Row]:
    rows: dict[Row, None] = {}
    for row, store in writes:
        rows[row] = None
        rows.update({t: None for t in walk(store.term) if isinstance(t, Row)})
    for segment in appended:
        rows.update({t: None for t in walk(segment.store.term) if isinstance(t, Row)})
    if not rows:
        rows.update({store.outer: None for store in machine.outer.values() if store.outer is not None})
    if not rows and not appended:
        raise Refused("no-segments", "the loop does not cut any tensor by boundaries")
    return list(rows)


def _outside_nodes(terms: list[Term]) -> set[fx.Node]:
    """Outer tensors that the terms use whole, not cut by boundaries."""
    return {t.node for term in terms for t in walk(term) if isinstance(t, Outside) and t.node is not None}


def _no_aliasing(
    graph: fx.Graph,
    loop: LoopFound,
    rows: list[Row],
    written: set[Row],
    boundaries: Boundaries,
    appended: list[Segment],
    writes: tuple[tuple[Row, Store], ...],
) -> None:
    """A tensor that the loop writes may be read only as the very same row, and never holds the boundaries."""
    terms = [store.term for _, store in writes] + [s.store.term for s in appended]
    whole = _outside_nodes(terms)
    used = whole | {row.node for row in rows} | {boundaries.node}
    for target in written:
        memory = storage(target.node)
        if target.node in whole:
            raise Refused("aliasing", "the loop reads the whole of a tensor whose documents it writes", target.node)
        for node in used:
            if node is not target.node and storage(node) == memory:
                raise Refused(
                    "aliasing", "the loop writes a tensor that shares memory with another tensor it uses", node
                )
        if boundaries.node is target.node:
            raise Refused("boundaries-written", "the loop writes its own boundaries", target.node)
        for other in written:
            if other is not target and other.node is target.node and not _disjoint(target, other):
                raise Refused("aliasing", "the loop writes overlapping parts of one tensor", target.node)
        for row in rows:
            if row is not target and row.node is target.node and not _disjoint(target, row):
                raise Refused("aliasing", "the loop reads and writes overlapping parts of one tensor", target.node)
        fake = example(target.node)
        if any(isinstance(s, int) and s == 0 and n != 1 for s, n in zip(fake.stride(), fake.shape, strict=True)):
            raise Refused("aliasing", "the loop writes a tensor whose elements share memory (expanded)", target.node)


def _disjoint(a: Row, b: Row) -> bool:
    """Do two selections of one tensor never overlap? Proven by two different integers in one position."""
    if len(a.index) != len(b.index):
        return False
    return any(
        isinstance(x, int) and isinstance(y, int) and x != y and (x >= 0) == (y >= 0)
        for x, y in zip(a.index, b.index, strict=True)
    )


def _hoistable(graph: fx.Graph, loop: LoopFound) -> tuple[fx.Node, ...]:
    """Sizes of outside tensors that Dynamo computes inside the region and uses after it as well."""
    nodes, keep = loop.nodes, []
    depends: set[fx.Node] = {begin for begin, _, _ in loop.iterations}
    for _, body, _ in loop.iterations:
        for node in body:
            fake = example(node)
            inputs = [n for n in node.all_input_nodes if n in nodes]
            symbolic = isinstance(fake, (int, torch.SymInt, torch.SymBool)) and node.op == "call_function"
            if not symbolic or any(n in depends for n in inputs):
                depends.add(node)
            else:
                keep.append(node)
    escaping = [n for n in keep if any(u not in nodes for u in n.users)]
    needed: set[fx.Node] = set()
    stack = list(escaping)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(n for n in node.all_input_nodes if n in nodes)
    return tuple(n for n in graph.nodes if n in needed)


def _list_sizes(loop: LoopFound) -> tuple[fx.Node, ...]:
    """Nodes that only assert something about the size of a collected list (Dynamo's own), users after their inputs."""
    found: list[fx.Node] = []

    def only_asserts(node: fx.Node) -> bool:
        if node.target is torch.ops.aten._assert_scalar.default:
            found.append(node)
            return True
        if node.op != "call_function" or isinstance(example(node), torch.Tensor):
            return False
        ok = all(only_asserts(user) for user in list(node.users))
        found.append(node)
        return ok

    for collect in loop.collects:
        for user in list(collect.users):
            if user.target is torch.ops.aten.sym_size.int:
                mark = len(found)
                if not only_asserts(user):
                    del found[mark:]
    return tuple(dict.fromkeys(found))


def _no_escape(loop: LoopFound) -> None:
    nodes = loop.nodes
    for node in nodes:
        for user in node.users:
            if user not in nodes and user not in loop.collects:
                raise Refused("leaked-local", f"{label(node)} of one document is used after the loop", user)
