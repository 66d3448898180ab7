"""Replace a decided loop by the whole-row form of its effects."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.decisions.records import Claims
from packpass.semantics import blank, contents_of, example, op_name, storage
from packpass.semantics.effects import grad_mode_changes, mutated_after
from packpass.semantics.meaning import Uninitialised
from packpass.semantics.registry import reorders
from passes.document_loops import emit_documents
from passes.document_loops.aliasing import Outer, only_overwritten, overwriting, separate_inputs
from passes.document_loops.blocks import Block
from passes.document_loops.collectives import said_of
from passes.document_loops.dense_masks import Squares, attend_within_documents
from passes.document_loops.elsewhere import Elsewhere
from passes.document_loops.emit import Emitter
from passes.document_loops.emit_checks import emit_checks, joined_lists
from passes.document_loops.find import Decided, content
from passes.document_loops.integers import FULL
from passes.document_loops.lists import MADE_OF_LISTS, as_eager_lays_out, uneven_in
from passes.document_loops.machine import Store
from passes.document_loops.rules_tokenwise import adds_up
from passes.document_loops.spaced import boundaries_of
from passes.document_loops.suffixes import Added
from passes.document_loops.terms import (
    Apply,
    Assign,
    Attention,
    DocRow,
    Outside,
    Reduce,
    Roll,
    Row,
    Scan,
    Softmax,
    Term,
    walk,
)
from passes.document_loops.whole import Whole
from passes.nodes import put_instead
from passes.prune import prune
from passes.refused import Refused

_ops = torch.ops.packpass


@dataclasses.dataclass(frozen=True)
class Made:
    """What a rewrite says of itself: to people, and to those who run its graph."""

    facts: dict[str, Any]
    claims: Claims


@dataclasses.dataclass(frozen=True)
class _Emitted:
    """The whole-row form of what a loop leaves, in front of it: rows per document, outer tensors, lists."""

    emitter: Emitter
    filled: list[tuple[DocRow, fx.Node]]
    news: list[tuple[Outer, fx.Node]]
    rows: dict[fx.Node, fx.Node]


def rewrite(graph: fx.Graph, decided: Decided, rule: str) -> Made:
    """Emit the new nodes, then remove the loop; raises `Refused` with nothing changed."""
    loop = decided.loop
    begin = loop.iterations[0][0]
    separate = separate_inputs(graph, decided)
    made = _emitted(graph, decided, rule)
    emitter, news = made.emitter, made.news

    # === Transform ===
    for node in decided.dead:
        graph.erase_node(node)
    with graph.inserting_before(begin):  # before what stands behind the loop, which may use the same nodes
        for target_row, new in made.filled:
            # Rows beyond the last document stay; the outer tensor may be an input, or seen elsewhere.
            emit_documents.write_rows(emitter, target_row, new)
    _lay_out_lists(graph, decided, made)
    shared = [new for _, new in news] + list(made.rows.values())
    functional = [(row, new) for row, new in news if shared.count(new) == 1 and _may_replace(graph, decided, row, new)]
    with graph.inserting_before(begin):
        for row, new in news:
            if (row, new) not in functional:
                emitter.call("copy_", emitter.selected(row), new, method=True)
    _remove_loop(graph, decided, functional)
    in_place = len(news) - len(functional) + len(made.filled)
    facts: dict[str, Any] = {"in_place": in_place, "lists": len(made.rows)}
    if separate:
        facts["separate_inputs"] = separate
    attentions = _without_dense_masks(graph, decided, emitter, functional, rule)
    if attentions:
        facts["attentions"] = attentions
    reordered = bool(attentions) or any(_adds_up(t) for term in decided.terms for t in walk(term))
    if reordered:
        facts["numerics"] = "sums in another order"
    said, group = said_of(decided.ordered)
    claims = Claims(True, tuple(separate), reordered, agreement=said, group=group)
    return Made(facts, claims)


def _without_dense_masks(
    graph: fx.Graph, decided: Decided, emitter: Emitter, functional: list[tuple[Outer, fx.Node]], rule: str
) -> int:
    """Attentions that no longer need the mask of squares which the loop has made."""
    found = 0
    for row, store in decided.writes:
        new = next((n for r, n in functional if r is row), None)
        if not isinstance(row, Block) or new is None or row.index or {row.dim, row.columns} != {-1, -2}:
            continue
        cells = row.cells(overwriting(store.term, row))
        if cells is not None:
            squares = Squares(new, cells, emitter.cu, emitter.mask(FULL), rule)
            found += attend_within_documents(graph, squares)
    return found


def _emitted(graph: fx.Graph, decided: Decided, rule: str) -> _Emitted:
    """Emit the new nodes in front of the loop; raises `Refused` with nothing changed."""
    begin = decided.loop.iterations[0][0]
    moved = [(node, node.prev) for node in decided.hoisted]
    for node in decided.hoisted:
        begin.prepend(node)
    total = _total(graph, begin, decided)
    emitter = None
    try:
        with graph.inserting_before(begin):
            like = decided.row_node if decided.row_node is not None else decided.boundaries.node
            # Lists are laid out where they are used: the program may write to the boundaries before.
            keep = _differentiable(decided) or mutated_after(graph, decided.boundaries.node, begin)
            emitter = Emitter(graph, decided.boundaries, total, like, rule, begin, keep, decided.fit)
            if decided.row_node is None:
                total = emitter.only_documents()
            emit_checks(emitter, decided, total)
            for term in decided.ordered:
                emitter.node(term)
            filled = [(row, emitter.node(term)) for row, term in decided.rows]
            news = list(_contents(emitter, graph, decided).items())
            # The lists are laid out last: every read of an outer tensor comes before the first write.
            rows = {collect: emitter.node(content(value)) for collect, value in decided.appended}
            for collect in rows:
                uneven = uneven_in(decided, collect)
                if uneven is not None and any(user.target is markers.LIST_GET for user in collect.users):
                    boundaries_of(emitter, uneven)
    except Refused:
        if emitter is not None:
            emitter.abandon()
        for node, before in reversed(moved):
            before.append(node)
        raise
    return _Emitted(emitter, filled, news, rows)


def _lay_out_lists(graph: fx.Graph, decided: Decided, made: _Emitted) -> None:
    """What is made of lists behind the loop, in the order of the graph: what one use has made may serve the next. Each
    is in memory of its own: entries of two lists may be one value, and what is made of a list twice begins with the
    same tensor."""
    given: set[Any] = set()
    named: set[Any] = set()
    bound = {symbol for node in graph.nodes for symbol in node.meta.get("unbacked_bindings") or ()}
    first: dict[Any, tuple[fx.Node, int]] = {}
    uses = [(user, whole) for collect, whole in made.rows.items() for user in collect.users]
    for user, whole in sorted(uses, key=lambda use: use[0]):
        written = mutated_after(graph, user, user.next)
        with graph.inserting_before(user):
            joined = MADE_OF_LISTS[user.target](made.emitter, decided, whole, user)
            joined = as_eager_lays_out(made.emitter, made.emitter.beside(joined, user), user)
            if user.target is not markers.LIST_GET and storage(joined) == storage(whole):
                if written or storage(whole) in given:
                    joined = made.emitter.call(torch.clone, joined)
                given.add(storage(whole))
            _as_long_as_others(made.emitter, user, joined, first)
        put_instead(user, joined)
        _copy_meta(user, joined)
        sizes = free_unbacked_symbols(example(joined))
        if sizes & (named | bound):  # one size cannot be given two names when the graph is traced again
            joined.meta.pop("unbacked_bindings", None)
        named |= sizes
        graph.erase_node(user)
    for collect in made.rows:
        graph.erase_node(collect)


def _as_long_as_others(emitter: Emitter, user: fx.Node, joined: fx.Node, first: dict[Any, tuple[fx.Node, int]]) -> None:
    """Lists that capture knows to be of one length are so in what comes behind them: torch is told, as what is made of
    each has a length of its own."""
    for d, size in enumerate(example(user).shape if user.target is markers.RAGGED_CAT else ()):
        if not free_unbacked_symbols(size):
            continue
        other, dim = first.setdefault(size.node.expr, (joined, d))
        if statically_known_true(example(joined).shape[d] == example(other).shape[dim]):
            continue
        sizes = (emitter.call(torch.ops.aten.sym_size.int, *of) for of in ((joined, d), (other, dim)))
        holds = emitter.call(operator.eq, *sizes)
        emitter.call(torch.ops.aten._assert_scalar.default, holds, "packpass: two lists of the same documents differ")


def _remove_loop(graph: fx.Graph, decided: Decided, functional: list[tuple[Outer, fx.Node]]) -> None:
    """Erase the loop; what comes later uses the new tensor in the place of each of ``functional``."""
    nodes = decided.loop.nodes - set(decided.hoisted)
    inputs = [n for node in nodes for n in node.all_input_nodes if n not in nodes]
    end = decided.loop.iterations[-1][2]
    for row, new in functional:
        later = [user for user in row.node.users if user not in nodes and end < user]
        put_instead(row.node, new, later)
        _copy_meta(row.node, new, location_only=True)
    for node in reversed(list(graph.nodes)):
        if node in nodes:
            graph.erase_node(node)
    prune(graph, [*inputs, *(row.node for row, _ in functional)])


def _adds_up(term: Any) -> bool:
    """Does this term add up (or multiply) the slots of a document, in an order that is not eager's?"""
    if isinstance(term, (Reduce, Scan, Added)):
        return term.rounds if isinstance(term, Added) else reorders(term.op)
    return isinstance(term, (Attention, Softmax)) or (isinstance(term, Apply) and adds_up(term))


def _differentiable(decided: Decided) -> bool:
    """May a backward pass need the boundaries again?"""
    found = [t for term in decided.terms for t in walk(term)]
    nodes = [t.node for t in found if isinstance(t, (Row, DocRow, Outside)) and t.node is not None]
    return any(isinstance(example(n), torch.Tensor) and example(n).requires_grad for n in nodes)


def _copy_meta(old: fx.Node, new: fx.Node, location_only: bool = False) -> None:
    for key, value in old.meta.items():
        if key in ("stack_trace", "nn_module_stack", "source_fn_stack") or (not location_only and key not in new.meta):
            new.meta.setdefault(key, value)


def _total(graph: fx.Graph, before: fx.Node, decided: Decided) -> Any:
    """The row's length: a constant, or the graph's own symbol for it; None if only the boundaries know it."""
    if decided.row_node is not None:
        size = example(decided.row_node).shape[decided.row_dim]
    else:
        sizes = [example(cat).shape[int(str(cat.args[1]))] for cat in joined_lists(decided)]
        size = next((s for s in sizes if not free_unbacked_symbols(s)), None)
    if not isinstance(size, torch.SymInt):
        return size
    for n in graph.nodes:
        if n.op == "placeholder" and isinstance(example(n), torch.SymInt) and example(n).node.expr == size.node.expr:
            return n
    if decided.row_node is None:
        return None
    with graph.inserting_before(before):
        out = graph.call_function(torch.ops.aten.sym_size.int, (decided.row_node, decided.row_dim))
    out.meta["example_value"] = size
    return out


# === What the loop leaves in its tensors =====================================================================


def _contents(emitter: Emitter, graph: fx.Graph, decided: Decided) -> dict[Outer, fx.Node]:
    """Outer tensors and what is in them after the loop, once where parts of one are written one after the other."""
    found: dict[Outer, fx.Node] = {}
    before: dict[fx.Node, list[tuple[Elsewhere, fx.Node]]] = {}
    for row, store in decided.writes:
        if not isinstance(row, Elsewhere):
            found[row] = _content(emitter, graph, decided, row, store)
            continue
        parts = before.setdefault(row.node, []) if only_overwritten(decided, row.node) else []
        if parts:
            found.pop(parts[-1][0])
        new = _written(emitter, row, store, parts)
        parts.append((row, new))
        found[row] = new
    return found


def _written(emitter: Emitter, row: Elsewhere, store: Store, before: list[tuple[Elsewhere, fx.Node]]) -> fx.Node:
    """The whole of a tensor of which documents have a part each."""
    base = emitter.node(row)
    new = emitter.fitted(overwriting(store.term, row), base)
    rows = new if isinstance(new, fx.Node) else emitter.call(torch.full_like, base, new)
    return row.written(emitter, rows, before)


def _content(emitter: Emitter, graph: fx.Graph, decided: Decided, row: Outer, store: Store) -> fx.Node:
    """The whole new content of an outer row, its tail included."""
    value = overwriting(store.term, row)
    if isinstance(row, Block):
        if value is store.term:
            raise Refused("two-packed-dims", "squares of some documents only have no rule", row.node)
        return row.written(emitter, value)
    base = emitter.node(row)
    if isinstance(row, Whole):
        return emitter.node(store.term)
    assert isinstance(row, Row)
    if isinstance(value, (Term, Outside)):
        new = emitter.node(value)
        if not store.point_fills and _keeps_tail(emitter, graph, decided, row, value, new, base):
            return new
    new = emitter.fitted(value, base)
    unwritten = contents_of(row.node) == Uninitialised() and not row.index and not store.point_fills
    if unwritten and isinstance(new, fx.Node) and not mutated_before(graph, row.node, decided):
        return new  # the tail is uninitialised memory in eager, too
    new = emitter.choose(FULL, new, base, row.dim)
    return _point_filled(emitter, new, store, row)


def mutated_before(graph: fx.Graph, node: fx.Node, decided: Decided) -> bool:
    """Was the memory of ``node`` written between its creation and the loop?"""
    return mutated_after(graph, node, node.next, decided.loop.iterations[0][0], ignore=decided.loop.nodes)


def _keeps_tail(
    emitter: Emitter, graph: fx.Graph, decided: Decided, row: Row, value: Any, new: fx.Node, base: fx.Node
) -> bool:
    """Is the tail that packed ops pass through from their source already what the outer tensor holds there?"""
    like, made = example(base), example(new)
    if made.dtype != like.dtype or tuple(made.shape) != tuple(like.shape) or made.device != like.device:
        return False
    source: Any = value
    moved = False
    while True:
        if getattr(source, "keeps_tail", False):
            source, moved = source.of, True
        elif isinstance(source, Assign) and isinstance(source.base, Roll) and new.target is _ops.packed_roll.default:
            source, moved = source.base.of, True  # a roll with its fill, emitted as one op
        else:
            break
    begin = decided.loop.iterations[0][0]
    if not moved or not isinstance(source, Row) or source.index or row.index or grad_mode_changes(row.node, begin):
        return False
    if source is row:
        return True
    if op_name(row.node) != "clone" or row.node.args[:1] != (source.node,) or row.node.kwargs:
        return False
    if any(written is source for written, _ in decided.writes):
        return False
    return not (
        mutated_before(graph, row.node, decided)
        or mutated_after(graph, source.node, row.node.next, begin, ignore=decided.loop.nodes)
    )


def _point_filled(emitter: Emitter, new: fx.Node, store: Store, row: Row) -> fx.Node:
    """``out[cu[i + 1] - 1] = v`` of an empty document writes the slot before it; the only such slot that no document
    owns is that of leading (or, for ``out[cu[i]]``, trailing) empty documents."""
    for where, number in store.point_fills:
        new = _edge_filled(emitter, new, where, number, row)
    return new


def _edge_filled(emitter: Emitter, new: fx.Node, where: str, number: Any, row: Row) -> fx.Node:
    cu, total, at_end = emitter.cu, emitter.total, where in ("end", "last")
    first, last = (0, 1) if at_end else (-1, -2)
    edge = emitter.call(operator.getitem, cu, slice(first, 1 if first == 0 else None))
    inner = emitter.call(operator.getitem, cu, slice(last, 2 if last == 1 else -1))
    empty = emitter.call(torch.eq, edge, inner)
    slot = emitter.call(torch.sub, edge, 1) if at_end else edge
    if where == "end":
        slot = emitter.call(torch.remainder, slot, total)  # index -1 is the last slot of the row, [-1:0] is none
    slots = emitter.call(torch.arange, total, device=emitter.device)
    hit = emitter.call(torch.logical_and, emitter.call(torch.eq, slots, slot), empty)
    hit = emitter.call(torch.logical_and, hit, emitter.call(torch.logical_not, emitter.mask(FULL)))
    hit = emitter.on(emitter.along(hit, row.dim), example(new).device)
    fill = emitter.fitted(number, new)
    return emitter.call(torch.where, hit, fill, new)


def _may_replace(graph: fx.Graph, decided: Decided, row: Outer, new: fx.Node) -> bool:
    """May later uses of the outer tensor simply use the new one? Only if nothing else can see the old memory."""
    node = row.node
    if row.index or not (op_name(node) == "clone" or blank(node)):
        return False
    begin, nodes = decided.loop.iterations[0][0], decided.loop.nodes
    made, like = example(new), example(node)
    if made.dtype != like.dtype or tuple(made.shape) != tuple(like.shape) or made.stride() != like.stride():
        return False
    if grad_mode_changes(node, next(iter(reversed(graph.nodes)))):
        return False  # in place, only what the loop's own grad mode records reaches the gradient
    if (
        new in (row.node, *(r.node for r, _ in decided.writes))
        or new.op == "placeholder"
        or storage(new) == storage(node)
    ):
        return False
    memory = storage(node)
    for other in graph.nodes:
        if other is not node and other not in nodes and storage(other) == memory and other < begin:
            return False
    # A result that is, or views, a tensor that others can see must be copied.
    return new.meta.get("packpass") is not None and not any(
        other is not new and storage(other) == storage(new) for other in graph.nodes
    )
