"""Find captured loops, interpret both traced iterations, and decide. Nothing here changes the graph."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from passes.document_loops import (  # noqa: F401  (fills the rule table)
    masked,
    rules_branches,
    rules_chosen,
    rules_convolution,
    rules_created,
    rules_cuts,
    rules_documents,
    rules_extremes,
    rules_fused_attention,
    rules_indexing,
    rules_joins,
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
    spaced,
)
from passes.document_loops.aliasing import Outer, no_aliasing
from passes.document_loops.appended import appended_value
from passes.document_loops.arms import Interpreted, joined
from passes.document_loops.blocks import Block, Diagonal
from passes.document_loops.check_lists import check_document, check_pieces, check_segment
from passes.document_loops.collectives import all_sent, refuse_some_only
from passes.document_loops.corners import Corner
from passes.document_loops.cut_off import cut_off
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.filled_up import filled_up
from passes.document_loops.fitting import Fit, fit_of
from passes.document_loops.integers import Affine, Bound, Boundaries, Check, Index
from passes.document_loops.lengths import are_between, is_length_or_more, same_length
from passes.document_loops.looked_at import seen, sizes_are_known
from passes.document_loops.machine import (
    Document,
    Machine,
    Segment,
    Store,
)
from passes.document_loops.op_names import label
from passes.document_loops.parts import OtherDocuments, Pieces
from passes.document_loops.row_slots import SlotOf
from passes.document_loops.row_windows import WindowOf
from passes.document_loops.step import step
from passes.document_loops.terms import DocRow, Interner, Row, Term, walk
from passes.document_loops.uneven import of_long
from passes.document_loops.whole import Whole
from passes.loops import LoopFound, hoistable, list_sizes, no_escape
from passes.overlapping import check_apart
from passes.refused import Refused
from passes.turned_in_place import check_turned


class OtherLengths(Refused):
    """Rows of different lengths are cut by the same boundaries."""

    def __init__(self, node: fx.Node, rows: Sequence[Row | Block | Whole], machine: Machine) -> None:
        super().__init__("row-lengths", "rows of different lengths are cut by the same boundaries", node)
        self.machine = machine
        self.rows = [(row.node, _position(row)) for row in rows]
        """Outer tensors and their packed dimensions; none if there are others."""


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
    filled: tuple[tuple[fx.Node, fx.Node, int], ...] = ()
    """Rows that are split by other lengths than those of the documents, which must fill them."""
    ordered: tuple[Term, ...] = ()
    """What is worked out first, in this order, as other ranks see it."""
    fit: Fit | None = None
    """What the documents are, where the numbers that cut them do not fit."""

    @property
    def terms(self) -> list[Term]:
        """Everything the loop leaves behind."""
        contents = [*self.ordered, *(store.term for _, store in self.writes), *(term for _, term in self.rows)]
        checked = [side for check in self.checks for side in (check.left, check.right) if isinstance(side, Term)]
        return contents + checked + [content(value) for _, value in self.appended]


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
    arms: int = 0,
    parts: bool = True,
    numbers: frozenset[Boundaries] = frozenset(),
) -> tuple[Machine, dict[fx.Node, Any]]:
    """Run one traced iteration on the abstract machine; ``documents``: by what it is known that the loop goes, and with
    ``parts`` that these are parts of others; ``arms``: of so many, for the documents that go this one alone;
    ``numbers``: lengths in conditions that are none of its documents."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(intern, loop.nodes, fakes)
    machine.arms, machine.numbers = arms, numbers
    if documents is not None:
        machine.boundaries, machine.parts_of_documents = (documents, 0), parts
    machine.values[begin] = Affine.of(Index())
    try:
        for node in seen(body):
            step(machine, node)
        sizes_are_known(machine, body)
        _count_from_the_start(machine, loop)
        machine.finish()
    except Refused as refused:
        if machine.asked is not None:
            try:
                return interpret(loop, which, intern, fakes, documents, arms, parts, numbers | {machine.asked})
            except Refused as again:
                if again.code == "skip-condition":  # it got as far as what skipped documents must not do
                    raise
        if isinstance(refused, OtherDocuments):
            raise OtherDocuments(machine.instead or refused, refused.documents, refused.parts) from None
        if machine.instead is None and machine.part is not None:
            raise OtherDocuments(refused, machine.part) from None
        raise (machine.instead or refused) from None
    appended: dict[fx.Node, Any] = {}
    for collect in loop.collects:
        source = markers.collected_in(collect, which)
        assert isinstance(source, fx.Node)
        if source in loop.nodes and source not in body:
            appended[collect] = None  # what is appended in the other traced iteration: this one appends nothing
            continue
        value = appended_value(machine, source, collect)
        appended[collect] = value if machine.skip is None else of_long(machine, loop, collect, value)
    return machine, appended


def _count_from_the_start(machine: Machine, loop: LoopFound) -> None:
    """``x[s : e - 1]`` is nearly all of the row where ``e`` is 0. Of a document without slots nothing comes of it but
    where it is written, or leaves something all the same; where that would have another length, eager raises."""
    behind, reach = machine.behind_end
    leaves_more = behind > 1 or machine.writes_behind_end or bool(loop.collects or machine.rows)
    if not behind or not leaves_more or machine.boundaries is None:
        return
    of, k = machine.boundaries
    if of.lengths or of.made is not None:
        return
    end = Affine.of(Bound(of, k + 1)).plus(Affine.of(behind), -1)
    message = "packpass: a slice that ends before a boundary begins to count from the row's end"
    machine.checks.append(Check(end, "ge", Affine(), message, reach))


def decide(graph: fx.Graph, loop: LoopFound, must_fit: bool = False) -> Decided:
    """Check every condition; raises `Refused`. ``must_fit``: must all documents lie within the rows?"""
    if len(loop.iterations) < 2:
        raise Refused("not-captured", "the loop was not traced twice")
    check_turned(loop)
    check_apart(loop)
    hoisted = hoistable(graph, loop)
    inside = loop.nodes - set(hoisted)
    loop = LoopFound(
        loop.id, tuple((b, tuple(n for n in body if n in inside), e) for b, body, e in loop.iterations), loop.collects
    )
    try:
        first, appended = _generic(loop)
    except Refused as refused:
        branches = any(node.target in markers.LOOP_BRANCH for node in loop.iterations[0][1])
        if not branches:
            raise
        try:
            first, appended = _of_arms(graph, loop)
        except Refused as again:
            raise refused if again.code == "not-generic" else again from None
    try:
        found = conclude(graph, loop, first, appended, all_documents(first, loop), hoisted)
    except Refused as refused:
        wanted = first.instead or refused
        if first.part is None:
            raise wanted from None
        try:  # as a loop over parts of the documents
            first, appended = _of_documents(loop, OtherDocuments(wanted, first.part))
            found = conclude(graph, loop, first, appended, all_documents(first, loop), hoisted)
        except Refused:
            raise wanted from None
    fit = None if must_fit else fit_of(first, loop.iterations[0][1], found.row_node is not None)
    checks = found.checks if fit is None else tuple(check for check in found.checks if not check.of_slices)
    return dataclasses.replace(found, fit=fit, checks=checks)


def _of_arms(graph: fx.Graph, loop: LoopFound) -> Interpreted:
    """What all documents leave, put together from what each way leaves."""
    if len(loop.iterations) == 2:
        with contextlib.suppress(Refused):
            arms = _arms(loop, conditions=False)
            one = filled_up(loop, arms) or cut_off(loop, arms)
            if one is not None:
                return one
    return joined(graph, loop, _arms(loop))


def _arms(loop: LoopFound, numbers: frozenset[Boundaries] = frozenset(), conditions: bool = True) -> list[Interpreted]:
    """What each iteration leaves for the documents that go its way. ``conditions``: and which these are, unless it is
    their length that decides, which is always noted down."""
    interner, made = Interner(), {}  # type: Interner, dict[int, Any]
    ways = len(loop.iterations) if conditions else 1
    both = [interpret(loop, i, interner, made, arms=ways, numbers=numbers) for i in range(len(loop.iterations))]
    machines = [machine for machine, _ in both]
    refuse_some_only(machines)
    cut = [m.boundaries[0] for m in machines if m.boundaries is not None and m.asked != m.boundaries[0]]
    others = {m.asked for m in machines if m.asked is not None and cut and m.asked not in cut}
    return both if others <= numbers else _arms(loop, numbers | others, conditions)


def _generic(loop: LoopFound) -> tuple[Machine, dict[fx.Node, Any]]:
    """What each iteration leaves, if those that were traced leave the same."""
    try:
        return _of_documents(loop)
    except OtherDocuments as refused:
        try:
            return _of_documents(loop, refused)
        except Refused as again:
            raise (again if again.code == "not-generic" else refused) from None


def _of_documents(loop: LoopFound, others_wanted: OtherDocuments | None = None) -> tuple[Machine, dict[fx.Node, Any]]:
    """The same, of a loop that is known to go by other documents than those that it cuts first."""
    intern, fakes = Interner(), {}  # type: Interner, dict[int, Any]
    known, parts = (None, True) if others_wanted is None else (others_wanted.documents, others_wanted.parts)
    numbers = range(len(loop.iterations))
    (first, appended), *others = [interpret(loop, i, intern, fakes, known, parts=parts) for i in numbers]
    for other, appended_again in others:
        _same_effects(first, appended, other, appended_again)
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
    if not writes and not doc_rows and not loop.collects and all(check.of_slices for check in first.checks):
        raise Refused("no-effect", "the loop over documents changes nothing")
    appends = []
    sizes = list_sizes(loop)
    for collect, value in appended.items():
        if isinstance(value, Pieces):
            check_pieces(graph, loop, first, collect, value, sizes)
            appends.append((collect, value))
            continue
        (check_segment if isinstance(value, Segment) else check_document)(graph, loop, first, collect, value, sizes)
        appends.append((collect, value))
    found = Decided(
        loop, boundaries, writes, doc_rows, tuple(appends), tuple(first.checks), bool(first.split_of), hoisted, sizes,
        None, 0, tuple(first.filled), all_sent(first, loop),
    )  # fmt: skip
    rows: list[Row | Block | Whole] = list(_rows(found, first))
    no_aliasing(found, [row for row in rows if isinstance(row, Row)], first)
    rows += [row for row, _ in writes if isinstance(row, Block) or (isinstance(row, Whole) and row.by_documents)]
    extents = [example(row.node).shape[_position(row)] for row in rows]
    squares = [row for row in rows if isinstance(row, Block)]
    extents += [example(row.node).shape[_position(row, row.columns)] for row in squares]
    for other, extent in zip([*rows, *squares][1:], extents[1:], strict=True):
        if not same_length(extent, extents[0]):
            raise OtherLengths(other.node, rows if all(isinstance(row, Row) for row in rows) else [], first)
    no_escape(loop, label)
    found = dataclasses.replace(found, checks=tuple(first.checks))
    return dataclasses.replace(found, row_node=rows[0].node, row_dim=_position(rows[0])) if rows else found


def _position(row: Row | Block | Whole, dim: int | None = None) -> int:
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
        or (first.reach, first.skips_empty) != (second.reach, second.skips_empty)
        or [*first.sent.values()] != [*second.sent.values()]
    ):
        raise differs
    if list(first.outer) != list(second.outer) or (first.split_of, first.filled) != (second.split_of, second.filled):
        raise differs
    for key, store in first.outer.items():
        other = second.outer[key]
        if store.term is not other.term or store.version != other.version or store.point_fills != other.point_fills:
            raise differs
    if list(first.rows) != list(second.rows):
        raise differs
    for key, cell in first.rows.items():
        if cell.term is not second.rows[key].term or cell.version != second.rows[key].version:
            raise differs
    for collect, value in appended.items():
        other = again[collect]
        if value is None or other is None:
            raise differs
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
    trips = loop.length
    count = example(trips) if isinstance(trips, fx.Node) else trips
    if boundaries.made is not None:
        for bound in boundaries.made.bounds():
            spare = example(bound.of.node).shape[0] - bound.k
            if bound.of.lengths or bound.k < 0 or not is_length_or_more(spare, count):
                raise Refused("partial-coverage", "the loop does not visit every document", bound.of.node)
        return boundaries
    vector = example(boundaries.node)
    if vector.dtype not in (torch.int32, torch.int64) or vector.dim() != 1:
        raise Refused("boundary-dtype", f"boundaries of dtype {vector.dtype}", boundaries.node)
    known = same_length(count, vector.shape[0]) if boundaries.lengths else are_between(count, vector.shape[0])
    if k != 0 or not known:
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
    cuts = any(isinstance(row, (Elsewhere, Block, SlotOf, WindowOf, Corner, Whole)) for row in others)
    cuts = cuts or any(isinstance(content(value), Diagonal) for _, value in decided.appended)
    cuts = cuts or bool(decided.rows) or any(isinstance(value, Document) for _, value in decided.appended)
    if not rows and not segments and not cuts:
        raise Refused("no-segments", "the loop does not cut any tensor by boundaries")
    return list(rows)
