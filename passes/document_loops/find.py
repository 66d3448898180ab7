"""Find captured loops, interpret both traced iterations, and decide. Nothing here changes the graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import hint_of, statically_known_true
from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from passes.document_loops import (  # noqa: F401  (fills the rule table)
    masked,
    rules_convolution,
    rules_created,
    rules_cuts,
    rules_documents,
    rules_extremes,
    rules_indexing,
    rules_lookups,
    rules_losses,
    rules_norms,
    rules_orders,
    rules_packed,
    rules_pairs,
    rules_places,
    rules_reductions,
    rules_scans,
    rules_shapes,
    rules_splits,
    rules_tokenwise,
    rules_views,
)
from passes.document_loops.aliasing import Outer, no_aliasing, outside_nodes
from passes.document_loops.appended import Common, appended_value
from passes.document_loops.arms import joined
from passes.document_loops.blocks import Block, Diagonal
from passes.document_loops.documents import read_cell
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.integers import Affine, Boundaries, Index
from passes.document_loops.machine import (
    Check,
    Document,
    Machine,
    Segment,
    Store,
)
from passes.document_loops.op_names import label
from passes.document_loops.parts import OtherDocuments, Pieces
from passes.document_loops.step import step
from passes.document_loops.terms import DocRow, Interner, Row, Term, walk
from passes.loops import LoopFound, hoistable, list_sizes, no_escape
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Decided:
    """A loop that may be vectorised, with everything the rewrite needs."""

    loop: LoopFound
    boundaries: Boundaries
    writes: tuple[tuple[Outer, Store], ...]
    rows: tuple[tuple[DocRow, Term], ...]
    """Outer tensors with one row per document, and what is written there."""
    appended: tuple[tuple[fx.Node, Segment | Document | Pieces], ...]
    checks: tuple[Check, ...]
    covers_row: bool
    """Splitting by lengths: eager itself requires that the documents fill the row."""
    hoisted: tuple[fx.Node, ...]
    dead: tuple[fx.Node, ...]
    """Assertions on the made-up sizes of lists."""
    row_node: fx.Node | None
    """A tensor with the packed dimension, at ``row_dim``; None if the loop only makes lists (of positions, say)."""
    row_dim: int

    @property
    def terms(self) -> list[Term]:
        """Everything the loop leaves behind."""
        contents = [store.term for _, store in self.writes] + [term for _, term in self.rows]
        return contents + [content(value) for _, value in self.appended]


def content(value: Segment | Document | Pieces) -> Term:
    """The term of what is appended to a list."""
    if isinstance(value, Pieces):
        return value.term
    return value.store.term if isinstance(value, Segment) else value.cell.term


def interpret(
    loop: LoopFound,
    which: int,
    intern: Interner,
    fakes: dict[int, Any],
    documents: Boundaries | None = None,
    arms: bool = False,
) -> tuple[Machine, dict[fx.Node, Any]]:
    """Run one traced iteration on the abstract machine; ``documents``: by what it is known that the loop goes;
    ``arms``: for the documents that take the way of this iteration alone."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(intern, loop.nodes, fakes)
    machine.arms = arms
    if documents is not None:
        machine.boundaries, machine.parts_of_documents = (documents, 0), True
    machine.values[begin] = Affine.of(Index())
    for node in body:
        step(machine, node)
    machine.finish()
    if machine.skip is not None and loop.collects:
        raise Refused("skip-condition", "a list in a loop that skips short documents")
    appended = {}
    for collect in loop.collects:
        source = collect.args[which]
        assert isinstance(source, fx.Node)
        appended[collect] = appended_value(machine, source, collect)
    return machine, appended


def decide(graph: fx.Graph, loop: LoopFound) -> Decided:
    """Check every condition; raises `Refused`."""
    if len(loop.iterations) != 2:
        raise Refused("not-captured", "the loop was not traced twice")
    hoisted = hoistable(graph, loop)
    inside = loop.nodes - set(hoisted)
    loop = LoopFound(
        loop.id, tuple((b, tuple(n for n in body if n in inside), e) for b, body, e in loop.iterations), loop.collects
    )
    try:
        first, appended = _generic(loop)
    except Refused as refused:
        if not any(node.target is markers.LOOP_BRANCH for node in loop.iterations[0][1]):
            raise
        try:
            interner, made = Interner(), {}  # type: Interner, dict[int, Any]
            both = [interpret(loop, i, interner, made, arms=True) for i in (0, 1)]
            first, appended = joined(graph, loop, both)
        except Refused as again:
            raise refused if again.code == "not-generic" else again from None
    return conclude(graph, loop, first, appended, all_documents(first, loop), hoisted)


def _generic(loop: LoopFound) -> tuple[Machine, dict[fx.Node, Any]]:
    """What each iteration leaves, if the two that were traced leave the same."""
    intern, fakes = Interner(), {}  # type: Interner, dict[int, Any]
    try:
        (first, appended), (second, appended_again) = (interpret(loop, i, intern, fakes) for i in (0, 1))
    except OtherDocuments as refused:
        intern, fakes = Interner(), {}
        try:
            both = [interpret(loop, i, intern, fakes, refused.documents) for i in (0, 1)]
        except Refused:
            raise refused from None
        (first, appended), (second, appended_again) = both
    _same_effects(first, appended, second, appended_again)
    return first, appended


def conclude(
    graph: fx.Graph,
    loop: LoopFound,
    first: Machine,
    appended: dict[fx.Node, Any],
    boundaries: Boundaries,
    hoisted: tuple[fx.Node, ...],
) -> Decided:
    """The conditions on what a generic iteration does, whatever form the loop was found in; raises `Refused`."""
    written = sorted(first.outer.values(), key=lambda store: store.turn)
    writes = tuple((store.outer, store) for store in written if store.version and store.outer is not None)
    doc_rows = tuple((cell.outer, cell.term) for cell in first.rows.values() if cell.version and cell.outer is not None)
    if not writes and not doc_rows and not loop.collects and not first.checks:
        raise Refused("no-effect", "the loop over documents changes nothing")
    appends = []
    sizes = list_sizes(loop)
    for collect, value in appended.items():
        if isinstance(value, Pieces):
            _check_pieces(graph, loop, collect, value, sizes)
            appends.append((collect, value))
            continue
        (_check_segment if isinstance(value, Segment) else _check_document)(graph, loop, first, collect, value, sizes)
        appends.append((collect, value))
    found = Decided(
        loop, boundaries, writes, doc_rows, tuple(appends), tuple(first.checks), bool(first.split_of), hoisted, sizes,
        None, 0,
    )  # fmt: skip
    rows: list[Row | Block] = list(_rows(found, first))
    no_aliasing(found, [row for row in rows if isinstance(row, Row)], first)
    rows += [row for row, _ in writes if isinstance(row, Block)]
    extents = [example(row.node).shape[_position(row)] for row in rows]
    squares = [row for row in rows if isinstance(row, Block)]
    extents += [example(row.node).shape[_position(row, row.columns)] for row in squares]
    for other, extent in zip([*rows, *squares][1:], extents[1:], strict=True):
        if not same_length(extent, extents[0]):
            raise Refused("row-lengths", "rows of different lengths are cut by the same boundaries", other.node)
    no_escape(loop, label)
    return dataclasses.replace(found, row_node=rows[0].node, row_dim=_position(rows[0])) if rows else found


def _check_segment(
    graph: fx.Graph, loop: LoopFound, machine: Machine, collect: fx.Node, value: Any, sizes: tuple[fx.Node, ...]
) -> None:
    """A list of segments may be concatenated along their packed dimension, or padded."""
    if not value.window.full or not value.store.exact:
        raise Refused("list-append", "what is appended per document is not as long as the document", collect)
    machine.read(value, collect)
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
        if user.target is markers.LIST_GET:
            if machine.skips_empty:
                raise Refused("list-use", "a list that lacks the skipped documents is looped over again", user)
            continue
        if user.target is markers.LIST_BOUNDARIES:
            if machine.skips_empty:
                raise Refused("list-use", "a jagged tensor lacks the skipped documents", user)
            continue
        if user.target is markers.LIST_PAD:
            if value.dim != -value.rank:
                raise Refused("list-use", "pad_sequence of segments whose slots are not their rows", user)
            continue
        if user.target is not markers.RAGGED_CAT:
            raise Refused("list-use", "the list of per-document tensors is used by something else than torch.cat", user)
        if int(user.args[1]) % value.rank != value.rank + value.dim:  # type: ignore[arg-type]
            raise Refused("list-use", "the per-document tensors are concatenated along another dimension", user)


def _check_pieces(
    graph: fx.Graph, loop: LoopFound, collect: fx.Node, value: Pieces, sizes: tuple[fx.Node, ...]
) -> None:
    """A list of several parts of each document may be concatenated along their packed dimension."""
    begin = loop.iterations[0][0]
    parts = [term for term in walk(value.term) if isinstance(term, (Elsewhere, Row))]
    if any(mutated_after(graph, part.node, begin) for part in parts):
        raise Refused(
            "aliasing", "a list holds views of a tensor that is changed before they are concatenated", collect
        )
    for user in collect.users:
        joins = user.target is markers.RAGGED_CAT and int(user.args[1]) % value.rank == value.rank + value.term.dim  # type: ignore[arg-type]
        if user not in sizes and not joins:
            raise Refused("list-use", "several parts of each document are used by something else than torch.cat", user)


def _check_document(
    graph: fx.Graph, loop: LoopFound, machine: Machine, collect: fx.Node, value: Any, sizes: tuple[fx.Node, ...]
) -> None:
    """A list of values that documents have one of each may be stacked or concatenated."""
    if not isinstance(value, Document):
        raise Refused("list-append", "what is appended per document is not a part of a packed row", collect)
    memory: Any = value.cell
    read_cell(value.cell, collect)
    while memory.parent is not None:
        memory = memory.parent[0]
    begin = loop.iterations[0][0]
    if isinstance(memory.term, Common) and any(
        mutated_after(graph, node, begin) for node in outside_nodes([memory.term])
    ):
        raise Refused("aliasing", "a list holds a tensor that is changed before they are stacked", collect)
    if memory.outer is not None and (memory.version or mutated_after(graph, memory.outer.node, loop.iterations[0][0])):
        raise Refused("aliasing", "a list holds views of a tensor that is changed before they are stacked", collect)
    squares = isinstance(value.cell.term, Diagonal)
    if squares and machine.skips_empty:
        raise Refused("skip-condition", "a list has no entry for the documents that are skipped", collect)
    for user in collect.users:
        if user not in sizes and squares and user.target is not markers.LIST_DIAGONAL:
            raise Refused("list-use", "squares of documents are used by something else than block_diag", user)
        if user not in sizes and not squares and user.target not in (markers.LIST_STACK, markers.LIST_JOIN):
            raise Refused("list-use", "a list of per-document values is used by something else than stack or cat", user)


def same_length(a: Any, b: Any) -> bool:
    """Are two sizes equal? Torch gives inputs of varying length one symbol each, even where their sizes agree; a loop
    that cuts both is the place to settle that they do (by a guard, as adding the two tensors would)."""
    if statically_known_true(a == b):
        return True
    hints = [hint_of(size) for size in (a, b)]
    return None not in hints and hints[0] == hints[1] and bool(a == b)


def _position(row: Row | Block, dim: int | None = None) -> int:
    """Index of the packed dimension in the outer tensor itself (before ``index`` drops others)."""
    dim = row.dim if dim is None else dim
    if not row.index:
        return example(row.node).dim() + dim
    kept = [d for d, entry in enumerate(row.index) if not isinstance(entry, int)]
    return kept[dim]


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
    if list(first.rows) != list(second.rows):
        raise differs
    for key, cell in first.rows.items():
        if cell.term is not second.rows[key].term or cell.version != second.rows[key].version:
            raise differs
    for collect, value in appended.items():
        other = again[collect]
        if isinstance(value, Pieces) and isinstance(other, Pieces):
            if value.term is not other.term:
                raise differs
            continue
        if isinstance(value, Document) and isinstance(other, Document):
            if value.cell.term is not other.cell.term:
                raise differs
            continue
        if not (isinstance(value, Segment) and isinstance(other, Segment)):
            raise Refused("list-append", "what is appended per document is not a part of a packed row", collect)
        if value.store.term is not other.store.term or value.window != other.window or value.rank != other.rank:
            raise differs


def all_documents(machine: Machine, loop: LoopFound) -> Boundaries:
    """The loop must visit every document, in order, once."""
    if machine.boundaries is None:
        raise Refused("no-segments", "the loop does not cut anything by boundaries")
    boundaries, k = machine.boundaries
    trips = loop.iterations[0][0].args[0]
    count = example(trips) if isinstance(trips, fx.Node) else trips
    if boundaries.made is not None:
        for bound in boundaries.made.bounds():
            spare = example(bound.of.node).shape[0] - bound.k
            if bound.of.lengths or bound.k < 0 or not any(same_length(spare - more, count) for more in (0, 1)):
                raise Refused("partial-coverage", "the loop does not visit every document", bound.of.node)
        return boundaries
    vector = example(boundaries.node)
    if vector.dtype not in (torch.int32, torch.int64) or vector.dim() != 1:
        raise Refused("boundary-dtype", f"boundaries of dtype {vector.dtype}", boundaries.node)
    documents = vector.shape[0] if boundaries.lengths else vector.shape[0] - 1
    if k != 0 or not same_length(count, documents):
        raise Refused("partial-coverage", "the loop does not visit every document", boundaries.node)
    return boundaries


def _rows(decided: Decided, machine: Machine) -> list[Row]:
    rows: dict[Row, None] = {row: None for row, _ in decided.writes if isinstance(row, Row)}
    for term in decided.terms:
        rows.update({t: None for t in walk(term) if isinstance(t, Row)})
    if not rows:
        rows.update({store.outer: None for store in machine.outer.values() if isinstance(store.outer, Row)})
    segments = any(isinstance(value, (Segment, Pieces)) for _, value in decided.appended)
    others = [row for row, _ in decided.writes] + [t for term in decided.terms for t in walk(term)]
    squares = any(isinstance(row, (Elsewhere, Block)) for row in others)
    squares = squares or any(isinstance(content(value), Diagonal) for _, value in decided.appended)
    if not rows and not segments and not squares:
        raise Refused("no-segments", "the loop does not cut any tensor by boundaries")
    return list(rows)
