"""Make naive shifts along a packed row respect its documents.

Before (user code, written for rows of one document)::

    labels = torch.roll(ids, -1, dims=-1)
    labels[..., -1] = -100

Before (FX)::

    labels = torch.roll(ids, -1, dims = -1)             # [1, T]: the last token of a document gets the next one's first
    operator.setitem(labels, (Ellipsis, -1), -100)

After::

    labels = packpass.packed_roll(ids, cu_seqlens, -1, -1, -100, None)    # -100 at every document's end

It is not the spelling that is recognised: `interpret` follows where the slots of packed rows go, through rolls, slices,
pads, joins, assignments and fills, and looks for rows that hold another row at a constant distance with one number in
the slots that this opens. ``labels[:, 1:]`` as targets of ``cross_entropy(logits[:, :-1], ...)`` gets the loss'
``ignore_index``. Tokens and a mask that are rolled together, one masking the other, stay within documents (`together`).

This changes results on purpose, so it needs boundaries that are beyond doubt (`packpass.layout`), every instance is in
the report with its line and the source of its boundaries, and ``{"packpass.fix_shifts": "declared"}`` or ``"off"``
limits it.

Does not handle (left alone, with a code): shifts whose open end is not filled with one number (``no-fill``), results
that are only compared with their neighbours (``look-ahead``), masks of the row's end that are used beside the shift
(``mask-used``), values that come from or go into running sums and sorts (``running-value``), code that treats
boundaries itself (``already-bounded``), targets that are not aligned with their scores (``unaligned-targets``),
several rows (``ambiguous-rows``), sources that are changed before the result is used (``source-written``), boundaries
that come too late (``boundaries-late``) or are on another device (``boundary-device``), shifts inside an
autograd.Function or a transform of torch.func (``autograd-function``), by as much as a row's length says
(``unknown-bounds``), shards of rows that are cut or have padded slots (``sharded-row``); and
inputs that allow more than one reading, or none: ``ambiguous-boundaries``, ``ambiguous-fields``, ``not-boundaries``.
Tokens that are looked up beside the scores of the slot before (``no-fill``) and rows that are moved by an index of
positions in another way (``moved-slots``) are named. Left alone without a code, because nothing says that they are
shifts: shifts by a symbolic number of slots.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.layout import Layouts, analyze
from packpass.semantics import argument, example, family_of_name, op_name
from packpass.semantics.inner_graphs import subgraphs
from passes.context import PassContext
from passes.declared import remove_declarations
from passes.mentions import mentions_boundaries
from passes.nodes import copy_of
from passes.pack_shifts import choosing, lookups, structural, writing  # noqa: F401  (they register their rules)
from passes.pack_shifts.decide import check, chooses, corrected, first_reader, point
from passes.pack_shifts.interpret import Found, Interpreter, ignored
from passes.pack_shifts.losses import LossFound, check_loss, find_losses, rewrite_loss
from passes.pack_shifts.masks import mask_beside
from passes.pack_shifts.pairs import refused_pairs
from passes.pack_shifts.registry import operations as operations
from passes.pack_shifts.rewrite import Boundaries, Rewriter
from passes.pack_shifts.shards import shards_of
from passes.pack_shifts.together import (
    add_masked_together,
    need_copies,
    need_rows_between,
    stays_between,
    with_all_they_need,
)
from passes.pack_shifts.values import Left

NAME = "pack_shifts"
log = logging.getLogger(f"packpass.passes.{NAME}")

_SHIFTING = frozenset({"joins", "indexing", "writes", "lookups"})
"""Families of calls that may shift."""


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite the shifts of a graph and of the graphs that its higher-order operators call."""
    results: list[Rewrite | Refusal] = []
    if context.options.fix_shifts != "off" and may_shift(gm):
        layouts = analyze(gm, declared_only=context.options.fix_shifts == "declared")
        results = _doubts(gm, layouts)
        if layouts.packings:
            fix_distances(gm, layouts)
            results += _run_safely(gm, layouts)
    # Another pass may still have to know which row was declared.
    removed = not context.options.runs("isolate") and remove_declarations(gm)
    if removed or any(isinstance(r, Rewrite) for r in results):
        for m in _modules(gm):
            m.graph.lint()
            m.recompile()
    return results


def _run_safely(gm: fx.GraphModule, layouts: Layouts) -> list[Rewrite | Refusal]:
    """A model must not fail because a shift could not be rewritten."""
    graphs = [(m, copy_of(m.graph)) for m in _modules(gm)]
    try:
        return run_graph(gm, layouts, Boundaries(gm))
    except Exception as error:
        log.warning("shifts are left alone: %s: %s", type(error).__name__, error)
        for m, graph in graphs:
            m.graph = graph
        return [Refusal(NAME, "emit", f"{type(error).__name__}: {error}; please report it", "<unknown>")]


def may_shift(gm: fx.GraphModule) -> bool:
    """A quick look: are there boundaries, and calls that may shift? Most graphs have none, and are left at once."""
    return mentions_boundaries(gm) and any(_shifts(node) for m in _modules(gm) for node in m.graph.nodes)


def _shifts(node: fx.Node) -> bool:
    """May a call shift, or be a part of a shift?"""
    return family_of_name(op_name(node)) in _SHIFTING


def _modules(gm: fx.GraphModule) -> list[fx.GraphModule]:
    return [m for m in gm.modules() if isinstance(m, fx.GraphModule)]


def _doubts(gm: Any, layouts: Layouts) -> list[Rewrite | Refusal]:
    """What is unclear about the inputs, if a shift would be rewritten otherwise."""
    if not layouts.doubts or layouts.packings:
        return []
    wanted, refusals = _outlook(gm, layouts.if_doubts_were_wrong())
    wanted = wanted or any(r.code == doubt.code for r in refusals for doubt in layouts.doubts)
    return [Refusal(NAME, doubt.code, doubt.reason, doubt.location) for doubt in layouts.doubts] if wanted else []


@dataclasses.dataclass(frozen=True)
class Wish:
    """What a graph could do with boundaries that it is given but does not use.

    ``refusals``: the shifts that would be left alone with them. ``if_equal``: sizes that have to be equal first.
    """

    wanted: bool
    refusals: tuple[Refusal, ...] = ()
    if_equal: tuple[tuple[Any, Any], ...] = ()


def wants_boundaries(gm: Any, boundaries: fx.Node | None) -> Wish:
    """Would boundaries that are an argument of the call be of use? ``boundaries`` stands in for those that are no input
    of the graph; None if they are inputs."""
    if not any(_shifts(node) for graph in _graphs(gm) for node in graph.nodes):
        return Wish(False)
    layouts = analyze(gm, boundaries=boundaries)
    doubts = tuple(r for r in _doubts(gm, layouts) if isinstance(r, Refusal))
    if doubts:
        return Wish(False, doubts, tuple(pair for d in layouts.doubts for pair in d.if_equal))
    fix_distances(gm, layouts)
    wanted, refusals = _outlook(gm, layouts)
    return Wish(wanted, tuple(refusals))


def fix_distances(gm: Any, layouts: Layouts, most: int = 16) -> None:
    """Rolls of packed rows by a symbol (an int argument that changes, such as a depth) that are filled afterwards: the
    symbol is fixed by a guard, or the first depths would stop at documents and the later ones would not. Distances
    that are made of the row's length are no depths."""
    for node in gm.graph.nodes:
        if op_name(node) != "roll" or not isinstance(node.args[0], fx.Node) or layouts.packed_dim(node.args[0]) is None:
            continue
        shifts, lengths = argument(node, 1, "shifts"), _symbols(example(node).shape)
        for shift in shifts if isinstance(shifts, (tuple, list)) else (shifts,):
            size = example(shift)
            filled = any(_shifts(user) or chooses(user) for user in node.users)
            if not isinstance(size, torch.SymInt) or not filled or _symbols([size]) & lengths:
                continue
            if abs(hint_of(size) or most + 1) <= most:
                int(size)


def _symbols(sizes: Iterable[Any]) -> set[Any]:
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def _graphs(gm: Any) -> Iterator[fx.Graph]:
    """The graph and those of its higher-order operators."""
    yield gm.graph
    for node in gm.graph.nodes:
        if op_name(node).startswith("higher_order::"):
            for sub, _, _ in subgraphs(gm, node):
                yield from _graphs(sub)


def _outlook(gm: Any, layouts: Layouts) -> tuple[bool, list[Refusal]]:
    """Is there a shift to rewrite, here or in a subgraph, and which are left alone?"""
    run = find(gm, layouts)
    refusals = []
    wanted = False
    for found in run.found:
        refused = _unfit(found, run, layouts)
        wanted = wanted or refused is None
        if refused is not None:
            refusals.append(Refusal(NAME, *refused, location_of_node(found.origin) or "<unknown>"))
    refusals += _wrapping(run)
    wanted = wanted or any(check_loss(loss) is None for loss in find_losses(run, layouts))
    for node in gm.graph.nodes:
        if op_name(node).startswith("higher_order::"):
            for sub, _, _ in subgraphs(gm, node):
                inner, more = _outlook(sub, layouts)
                wanted, refusals = wanted or inner, [*refusals, *more]
    return wanted, refusals


def _unfit(found: Found, run: Interpreter, layouts: Layouts) -> Left | None:
    """Why this shift is left alone, whatever becomes of the others."""
    return check(found, run, layouts) or stays_between(run, found) or mask_beside(found, run)


def _wrapping(run: Interpreter) -> list[Refusal]:
    """Rolls and other shifts whose open end is not filled with one number, and moves that are not understood."""
    alone = (*lookups.refused_moves(run), *refused_pairs(run))
    out = [Refusal(NAME, *why, location_of_node(node) or "<unknown>") for node, why in alone]
    for store, user, _ in run.wrapping:
        if store.found is not None or store.origin is None:
            continue
        location = location_of_node(store.origin) or "<unknown>"
        packed = run.layouts.packed_dim(store.root)
        if packed is not None and corrected(user, store.root, packed[1].boundaries):
            reason = "the code itself treats the slots at boundaries, by a mask or index made from them"
            out.append(Refusal(NAME, "already-bounded", reason, location))
        else:
            reason = (
                "the roll wraps around at the row's end; if it is meant to stop at documents, fill what it opens "
                "(y[..., -1] = value) or use packpass.ops.packed_roll"
            )
            if chooses(user):
                reason = (
                    f"the roll wraps around at the row's end, and {op_name(user)} leaves slots of it out by values "
                    "that are not known; if it is meant to stop at documents, fill its end first "
                    "(y[..., -1] = value), or use packpass.ops.packed_roll"
                )
            out.append(Refusal(NAME, "no-fill", reason, location))
    for store, why in run.unfilled:
        if store.found is None and store.origin is not None:
            out.append(Refusal(NAME, *why, location_of_node(store.origin) or "<unknown>"))
    return out


def find(gm: Any, layouts: Layouts) -> Interpreter:
    """Every shift of one graph; changes nothing."""
    run = Interpreter(gm.graph, layouts)
    run.run()
    add_masked_together(run)
    need_copies(run)
    need_rows_between(run)
    return run


def run_graph(gm: fx.GraphModule, layouts: Layouts, boundaries: Boundaries) -> list[Rewrite | Refusal]:
    """Decide about every shift of one graph, then rewrite; then the graphs it calls."""
    results: list[Rewrite | Refusal] = []
    run = find(gm, layouts)
    accepted, left = decided(run, layouts, boundaries, gm.graph)
    for found, why in left.items():
        results.append(Refusal(NAME, *why, location_of_node(found.origin) or "<unknown>"))
    results += _wrapping(run)
    losses: list[LossFound] = []
    for loss in find_losses(run, layouts):
        refused = check_loss(loss) or boundaries.refused(loss, gm.graph)
        if refused is None:
            losses.append(loss)
        else:
            results.append(Refusal(NAME, *refused, location_of_node(loss.user) or "<unknown>"))
    # === Transform ===
    rewriter = Rewriter(gm.graph, NAME)
    for found in accepted:
        at = point(found, run)
        assert at is not None
        results.append(_rewrite(rewriter, found, at, boundaries))
    for loss in losses:
        rewrite_loss(rewriter, loss, *boundaries.nodes(loss.packing))
        before = f"targets of a loss {-loss.by} behind their scores, cut off at the row's end"
        after = f"{ignored(loss.user)} at every document's end, which the loss ignores"
        results.append(_reported(loss, before, after, loss.by, loss.dim, ignored(loss.user)))
    rewriter.clean()
    for node in list(gm.graph.nodes):
        if op_name(node).startswith("higher_order::"):
            for sub, _, _ in subgraphs(gm, node):
                inner = boundaries.inside(node, sub)
                results += run_graph(sub, layouts, inner)
    return results


def decided(
    run: Interpreter, layouts: Layouts, boundaries: Boundaries, graph: fx.Graph
) -> tuple[list[Found], dict[Found, Left]]:
    """The shifts to rewrite, and why the others are left alone."""
    left: dict[Found, Left] = {}
    for found in run.found:
        unfit = _unfit(found, run, layouts)
        if unfit is not None:
            left[found] = unfit
    accepted = with_all_they_need(run.found, left)
    while True:
        for found in reversed(accepted):  # who reads a shift comes behind it
            found.user = first_reader(found, accepted)
            refused = boundaries.refused(found, graph)
            if refused is None and point(found, run) is None:
                refused = Left("source-written", "the shifted tensor is changed before the result is used")
            if refused is not None:
                left[found] = refused
        remaining = with_all_they_need(accepted, left)
        if len(remaining) == len(accepted):
            return remaining, left
        accepted = remaining


def _rewrite(rewriter: Rewriter, found: Found, at: fx.Node, boundaries: Boundaries) -> Rewrite:
    shift = found.shift
    cu, padded = boundaries.nodes(found.packing)
    rewriter.rewrite(found, at, cu, padded)
    side = "end" if shift.by < 0 else "start"
    shards = shards_of(found.packing)
    roll = "packed_roll" if shards is None else f"cp_packed_roll over {shards.size} ranks"
    if shift.wraps:
        before, after = f"roll by {shift.by} along dim {found.dim}", f"{roll} by {shift.by} within every document"
    else:
        cut = f"cut off at the row's {side}" if shift.dropped else f"{shift.fill} at the row's {side}"
        before = f"shift by {shift.by} along dim {found.dim}, {cut}"
        after = f"{roll} by {shift.by}, {shift.fill} at every document's {side}"
    return _reported(found, before, after, shift.by, found.dim, shift.fill)


def _reported(found: Found | LossFound, before: str, after: str, shift: int, dim: int, fill: Any) -> Rewrite:
    packing = found.packing
    details = {
        "source": packing.text,
        "boundaries": packing.boundaries.name,
        "declared_at": packing.location if packing.kind == "declared" else None,
        "shift": shift,
        "fill": fill,
        "dim": dim,
    }
    location = location_of_node(found.origin) or "<unknown>"
    details = {k: v for k, v in details.items() if v is not None}
    return Rewrite(NAME, location, before, after, details, Claims(boundary_source=packing.text))
