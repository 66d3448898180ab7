"""Run a loop over rows of sizes as operations on all slots of what it appends.

Before (user code)::

    for t, h, w in grid_thw.tolist():                    # grid_thw: [N, 3], integers
        rows = torch.arange(h)[:, None].expand(h, w).flatten()
        out.append(rows.repeat(t))                       # [t * h * w]
    torch.cat(out)

Before (FX, from `packpass.capture`): two traced iterations between marker ops. After::

    cu = cat([0, cumsum(t * h * w)])                     # [N + 1]
    slot = position_ids(cu, cu[-1])                      # [T]: the slot's number within its document
    rows = slot % (h * w)[document] // w[document]       # [T]

Why it is safe: both traced iterations are interpreted (`machine`) as functions of the document's numbers and of where
one looks; they must leave the same. What an operation means is asked of `packpass.semantics`. Sizes that eager would
not take for a document are checked, and the error names it.

What documents write into rows of a new tensor is put in for all at once (`written`), and loops over the lists of a loop
are a part of it (`passes.joined_loops`). Operations without a rule are taken apart by torch (`apart`). Sums and
extremes make rows of their own (`rules_slots`).
Branches on sizes may leave different things (`arms`, `ways`); loops over documents that are cut out of a row are taken
as well, where such branches keep them from being whole rows, or where nothing else has a form for them
(`run_documents`): with a slot for every two slots of a document, say. What such documents write into their own slots of
a new tensor is put in for all at once, too (`written_parts`).

Does not handle (each refused by a stable code): operations that put slots of a document together in other ways, or
have no rule (``no-rule``), shapes that depend on values (``no-rule``), writes (``outer-tensor-write``), sizes that are
taken to be equal (``length-mismatch``), lists that are neither concatenated nor stacked (``list-use``).
"""

from __future__ import annotations

import dataclasses
import functools

from torch import fx

from packpass import markers
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from passes.context import PassContext
from passes.document_loops import find as document_loops
from passes.document_loops.run import numbered, run_loops
from passes.joined_loops import as_one, done_again, follower, together
from passes.loop_vectors import split_rows
from passes.loops import LoopFound, find, first_line
from passes.nodes import or_as_it_was
from passes.ragged_grids.decide import decide, ends_as_rows, is_over_rows
from passes.ragged_grids.rewrite import rewrite
from passes.refused import Refused

NAME = "ragged_grids"


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite every captured loop of one graph that reads rows of sizes."""
    results: list[Rewrite | Refusal] = []
    for number in [loop.id for loop in find(gm.graph)]:
        loop = next((loop for loop in find(gm.graph) if loop.id == number), None)
        if loop is None:
            continue  # it went over the list of another, and is gone with that
        over_rows = is_over_rows(loop)
        if not over_rows and not _has_ways(gm.graph, loop):
            continue
        # What a row of sizes makes is no tensor that a later loop could cut: what it does with it is done here.
        parts = together(gm, loop) if over_rows else (loop,)
        results += _beside(gm, context, parts) if over_rows else []
        what = "loop over rows of sizes" if over_rows else "loop over documents"
        result = _run_one(gm.graph, as_one(parts), context.locations.get(number) or first_line(loop), what)
        if isinstance(result, Refusal) and over_rows and len(parts) == 1:
            found = or_as_it_was(gm, functools.partial(_by_columns, gm, number, context))
            if found:
                results += found
                context.products.judged_loops.add(number)
                continue
        if over_rows or isinstance(result, Rewrite) or result.code == "length-branch":
            results.append(result)
            done = parts if isinstance(result, Rewrite) else (loop,)
            context.products.judged_loops.update(part.id for part in done)
    if any(isinstance(result, Rewrite) for result in results):
        gm.graph.lint()
        gm.recompile()
    return results


def _by_columns(gm: fx.GraphModule, number: int, context: PassContext) -> list[Rewrite | Refusal]:
    """What becomes of a loop over rows that have no form as such, of starts and lengths, say: it goes by vectors, the
    columns, then. Nothing if it is refused."""
    found = run_loops(gm, number, context) if split_rows(gm.graph, numbered(gm.graph, number)) else []
    return found if all(isinstance(one, Rewrite) for one in found) else []


def _beside(gm: fx.GraphModule, context: PassContext, parts: tuple[LoopFound, ...]) -> list[Rewrite | Refusal]:
    """The loops over the lists of the first that are given something made of all documents: each is rewritten for
    itself. The longest part, say, to which the others are padded."""
    results: list[Rewrite | Refusal] = []
    known = parts
    while (second := follower(gm.graph, as_one(parts), known)) is not None:
        known = (*known, second)
        again = done_again(gm.graph, parts, second)
        if again is None:
            continue
        location = context.locations.get(second.id) or first_line(second)
        result = _run_one(gm.graph, again.loop, location, "loop over rows of sizes")
        if isinstance(result, Rewrite):
            results.append(result)
            context.products.judged_loops.add(second.id)
        else:
            again.undo()
    return results


def run_documents(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Rewrite loops over documents for which there is no whole-row form: what a document makes is worked out slot by
    slot, so that it may have a slot for every two of the document's, say. If that cannot be either, why there is no
    whole-row form."""
    results: list[Rewrite | Refusal] = []
    left, context.products.without_a_row = context.products.without_a_row, {}
    done: set[int] = set()
    for number, refused in left.items():
        loop = next((loop for loop in find(gm.graph) if loop.id == number), None)
        if loop is None or number in done:
            continue  # it went over the lists of another, and is a part of that
        location = context.locations.get(number) or first_line(loop)
        parts: tuple[LoopFound, ...] = (loop,)
        result = _run_one(gm.graph, loop, location, "loop over documents")
        if isinstance(result, Refusal) and len(parts := together(gm, loop)) > 1:
            result = _run_one(gm.graph, as_one(parts), location, "loop over documents")
        results += [result] if isinstance(result, Rewrite) else [_both_ways(one, result) for one in refused]
        done.update(part.id for part in parts if isinstance(result, Rewrite))
    if any(isinstance(result, Rewrite) for result in results):
        gm.graph.lint()
        gm.recompile()
    return results


def _both_ways(refused: Refusal, slotwise: Refusal) -> Refusal:
    """Why there is no whole-row form; also why documents could not be worked out slot by slot, where the former is only
    that there is no rule, and the latter is something else, which a user may be able to change."""
    if refused.code != "no-rule" or slotwise.code in ("no-rule", "not-generic", "not-a-segment", "no-effect"):
        return refused
    return dataclasses.replace(refused, reason=f"{refused.reason}; and, slot by slot: {slotwise.reason}")


def _has_ways(graph: fx.Graph, loop: LoopFound) -> bool:
    """Are documents no rows that are worked on at once, because they go different ways, or end as rows with what is
    behind them?"""
    branches = any(node.target in markers.LOOP_BRANCH for node in loop.iterations[0][1])
    if not branches and not ends_as_rows(loop):
        return False
    try:
        document_loops.decide(graph, loop)
    except Refused:
        return True
    return False


def _run_one(graph: fx.Graph, loop: LoopFound, location: str, what: str) -> Rewrite | Refusal:
    try:
        decided = decide(graph, loop)
        made = rewrite(graph, decided, NAME)
    except Refused as refused:
        reason = str(refused)
        line = location_of_node(refused.node)
        if line and line != location:
            reason += f" (at {line})"
        return Refusal(NAME, refused.code, reason, location)
    after = "index arithmetic on one row of slots"
    return Rewrite(NAME, location, what, after, made, Claims(captured_loop=True))
