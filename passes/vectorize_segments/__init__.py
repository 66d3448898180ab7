"""Run a loop over documents as ops on the whole packed row.

Before (user code)::

    out = x.clone()
    for i in range(len(cu_seqlens) - 1):
        s, e = cu_seqlens[i], cu_seqlens[i + 1]
        r = torch.roll(x[..., s:e], -1, -1)
        r[..., -1:] = 0
        out[..., s:e] = r

Before (FX, from `packpass.capture`): two traced iterations between marker ops. After::

    packpass.check_cu_seqlens(cu_seqlens, T)
    out = packpass.packed_roll(x, cu_seqlens, -1, -1, 0, None)        # x, out: [B, T]; cu_seqlens: [N + 1], any N

Why it is safe: both traced iterations are run on an abstract machine (`machine`) that knows nothing but boundaries,
segments and terms; they must leave the same terms in the same tensors; the loop must visit every document once;
documents do not overlap (checked on the device); and no tensor that is written may be visible in any other way.

Values that documents have one of each (a mean over the slots, the first slot, the length, row ``i`` of a table) are
tensors with one entry per document, from segment ops; they are spread back to the slots, stacked, or written to a
tensor with one row per document. Sums over a document are then added up in another order than in eager; such rewrites
say so in ``details["numerics"]``.

Where a loop is refused that goes over lists which others have filled, these loops and it are tried as one
(`passes.joined_loops`): parts of documents in a list are cut by boundaries of their own.

Does not handle (each refused by a stable code): ops without a rule (``no-rule``), boundaries, lengths or the index
used in a way that is not understood (``index-as-number``), loops that skip documents (``partial-coverage``), slices
beyond one document (``not-a-segment``), aliasing (``aliasing``, ``write-through-view``, ``stale-view``), values that
leave the loop (``leaked-local``), rows of different lengths (``row-lengths``), two sets of boundaries in one loop
(``two-boundaries``), conditions other than "the document is empty" (``skip-condition``), branches on lengths or data
of which both ways do not leave the same (``length-branch``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Refusal, Rewrite
from packpass.semantics.overview import operations as known_operations
from passes import loop_vectors, places_of_documents
from passes.context import PassContext
from passes.document_loops.collectives import sent_by
from passes.document_loops.lists import as_they_were_made
from passes.document_loops.run import NAME, numbered, run_loops, run_one
from passes.joined_loops import fillers, follower, join
from passes.loops import drop_idle
from passes.loops import find as find_loops
from passes.nodes import or_as_it_was
from passes.refused import Refused
from passes.vectorize_segments.unrolled import Lists, decide_unrolled, find_unrolled, sweep_scalars

EXCHANGES = "fuse_all_to_all"
"""The pass without which loops keep their collectives: it does not run where the ranks differ."""


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite every captured loop of one graph. ``context`` gives the user's line per loop id."""
    results: list[Rewrite | Refusal] = []
    if not context.user_checks:
        drop_idle(gm.graph)
    loop_vectors.settle(gm.graph)
    places_of_documents.settle(gm.graph)
    loops = [loop.id for loop in find_loops(gm.graph)]
    done: set[int] = set(context.products.judged_loops)
    for number in loops:
        if number not in done:
            results += _run_with_follower(gm, number, context, done)
    if not loops and not context.products.judged_loops:
        results += run_unrolled(gm.graph, context)
    if any(isinstance(result, Rewrite) for result in results):
        as_they_were_made(gm.graph)
        gm.graph.lint()
        gm.recompile()
    return results


def _run_with_follower(
    gm: fx.GraphModule, number: int, context: PassContext, done: set[int]
) -> list[Rewrite | Refusal]:
    """One loop; where it, the one behind it that goes over its lists, or another that this one goes over, is refused,
    all as one. Loops that need not be looked at any more go to ``done``."""
    done.add(number)
    loop = numbered(gm.graph, number)
    second = follower(gm.graph, loop)
    parts = [part.id for part in fillers(gm.graph, [loop, second])] if second is not None else []
    if not parts or parts[0] != number or done.intersection(parts[1:]):
        return _run_captured(gm, number, context)

    def apart() -> list[Rewrite | Refusal]:
        return [result for part in parts for result in _run_captured(gm, part, context)]

    def joined() -> list[Rewrite | Refusal]:
        if not all(join(gm, numbered(gm.graph, number), numbered(gm.graph, part)) for part in parts[1:]):
            return []
        return _run_with_follower(gm, number, context, done)

    for way in (apart, joined):
        refused, known = dict(context.products.without_a_row), set(done)
        done.update(parts)
        found = or_as_it_was(gm, functools.partial(_all_rewritten, way, context))
        if found:
            return found
        context.products.without_a_row = refused
        done.intersection_update(known)
    return _run_captured(gm, number, context)


def _all_rewritten(way: Callable[[], list[Rewrite | Refusal]], context: PassContext) -> list[Rewrite | Refusal]:
    """What becomes of loops, if all of them are rewritten."""
    before = len(context.products.without_a_row)
    found = way()
    whole = found and all(isinstance(one, Rewrite) for one in found)
    return found if whole and len(context.products.without_a_row) == before else []


def _run_captured(gm: fx.GraphModule, number: int, context: PassContext) -> list[Rewrite | Refusal]:
    if not context.options.runs(EXCHANGES) and (calls := sent_by(numbered(gm.graph, number).nodes)):
        reason = f"there is no rule for {calls[0].target} in a loop over documents where {EXCHANGES} does not run"
        return [Refusal(NAME, "no-rule", reason, context.locations.get(number, "<unknown>"))]
    results = run_loops(gm, number, context)
    refused = [result for result in results if isinstance(result, Refusal)]
    if len(refused) < len(results) or not context.options.runs("ragged_grids"):
        return results
    context.products.without_a_row[number] = refused  # said where no other form is found, either
    return []


def operations() -> frozenset[str]:
    """The operations with a rule; what has none is taken by its meaning."""
    from passes.document_loops.rules import DOCUMENTS, RULES, TOKENWISE

    known = frozenset(op.name for op in known_operations())
    return known | frozenset(RULES) | frozenset(TOKENWISE) | frozenset(DOCUMENTS) - {"*"}


def run_unrolled(graph: fx.Graph, context: PassContext) -> list[Rewrite | Refusal]:
    """Copies of a body, one per document, where no loop was captured."""
    results: list[Rewrite | Refusal] = []
    while True:
        # One group after the other: a rewrite replaces tensors that later groups read.
        try:
            copies = find_unrolled(graph)
        except Refused as refused:
            where = location_of_node(refused.node) or "<unknown>"
            return [*results, Refusal(NAME, refused.code, str(refused), where)]
        if copies is None:
            if results and not context.user_checks:
                sweep_scalars(graph)
            return results
        lists, node = Lists(graph), next(n for n in graph.nodes if n in copies.group.owner)
        decision = functools.partial(decide_unrolled, graph, copies, lists)
        results.append(run_one(graph, decision, location_of_node(node) or "<unknown>"))
        if isinstance(results[-1], Refusal):
            lists.undo()
            return results
