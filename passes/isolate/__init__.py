"""``isolate`` (opt-in): no operation on a packed row lets one document see another.

    x = packpass.packed(x, cu_seqlens, dim=1)               # [1, T, C]
    y = conv1d(x.mT, weight, padding=3, groups=C)[..., :T]  # the first slots of a document see the one before
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    y = y + position_table[:T]                              # positions go on counting

becomes

    y = each_document(conv1d..., x)                         # documents as a batch [N, longest], and back
    y = varlen_attention(q, k, v, cu_seqlens)
    y = y + position_table[:T][position_ids(cu_seqlens, T)]

A loop over tokens whose state goes from step to step stays on the row, and its state begins anew at documents
(`carried`). For everything else one idea covers most of it: wherever tokens are mixed, documents become a batch
around that part of the graph, whatever the part does (convolutions, scans, recurrences, running sums, attention that
is written out). Work on single tokens stays on the packed row. What lies behind a document's end is what changes
nothing (`neutral`). The parts are found by the meaning of operations (`reading`, `regions`); that a document may be
padded there is tried on the numbers of the example, forward and backward, for several lengths (`trial`); and the
rewritten graph is audited with the example before it is kept (`proof`). All or nothing: if one part cannot be made to
stop at documents, the graph stays as it is and every such part is refused by name.

Does not handle: boundaries that are computed inside a subgraph, or padded or sharded ones; two sets of boundaries;
mixing inside a checkpointed part; random numbers inside a part that mixes; states of the whole row that are returned;
values for pairs of tokens that are an input (4-D masks).
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import torch
from torch import fx

from packpass.decisions.document_form import DocumentForm
from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.layout import Layouts, Packing, analyze
from packpass.ops._document_plans import Plan, chunked_rows, fit, one_batch, stretches
from packpass.semantics import example, op_name
from packpass.semantics.effects import effects_of
from packpass.semantics.heads import spell_out_heads
from packpass.semantics.inner_graphs import places_of, result_of
from packpass.semantics.overview import operations as known_operations
from packpass.semantics.unbatched import unbatch
from passes.context import PassContext
from passes.declared import remove_declarations
from passes.isolate import attention, carried, convolution, positions, rewrite
from passes.isolate.boundaries import Boundaries, original
from passes.isolate.build import Body, body_of, counted_body_of
from passes.isolate.by_chunks import check_decisions, in_chunks
from passes.isolate.carried import Carried, carried_of
from passes.isolate.convolution import Taps, taps_of
from passes.isolate.kinds import Aligned, Restart, Row
from passes.isolate.lengths import Lengths, lengths_of
from passes.isolate.proof import leak_of
from passes.isolate.reading import Reading
from passes.isolate.regions import Region, regions
from passes.isolate.steps import Steps
from passes.isolate.trial import FILLS, Example, example_inputs, fill_of
from passes.nodes import copy_of
from passes.prune import erase_unused
from passes.refused import Refused

NAME = "isolate"
log = logging.getLogger(f"packpass.passes.{NAME}")

ATTEMPTS = 12
"""How often a part that cannot be padded is tried again together with what follows it."""


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Make every operation of ``gm`` stop at documents, or leave it as it is."""
    # Dynamo goes on with the inputs of its own graph, which must not get any more.
    work = fx.GraphModule(gm, copy_of(gm.graph))
    try:
        unbatch(work.graph)
        spell_out_heads(work.graph)
        layouts = analyze(work)
        packing = _packing(work, layouts, context)
        results = [] if packing is None else _isolate(work, context, layouts, packing)
        if results and context.products.documents is None:
            _take_over(gm.graph, work.graph)
    except Refused as refused:
        results = [_refusal(refused)]
    except Exception as error:
        log.warning("documents are not kept apart: %s: %s", type(error).__name__, error)
        log.debug("where", exc_info=True)
        results = [Refusal(NAME, "emit", f"{type(error).__name__}: {error}; please report it", "<unknown>")]
    remove_declarations(gm)
    gm.graph.lint()
    gm.recompile()
    return results


def _take_over(graph: fx.Graph, rewritten: fx.Graph) -> None:
    """The calls of the rewritten graph between the inputs that Dynamo made: it keeps notes on those."""
    places = [node for node in graph.nodes if node.op == "placeholder"]
    for node in reversed(graph.nodes):
        if node.op != "placeholder":
            graph.erase_node(node)
    new = [node for node in rewritten.nodes if node.op == "placeholder"]
    graph.output(graph.graph_copy(rewritten, dict(zip(new, places, strict=True))))


def operations() -> frozenset[str]:
    """Every operation with a meaning is either one token's own or taken apart by documents."""
    return frozenset(op.name for op in known_operations())


def _refusal(refused: Refused) -> Refusal:
    where = location_of_node(refused.node) if refused.node is not None else None
    return Refusal(NAME, refused.code, refused.reason, where or "<unknown>")


def _packing(gm: fx.GraphModule, layouts: Layouts, context: PassContext) -> Packing | None:
    """The one way in which the row of a graph is packed; None for a graph without a row."""
    found = list({(p.boundaries, p.padded): p for p in layouts.packings.values()}.values())
    if not found:
        for doubt in layouts.doubts:
            raise Refused(doubt.code, doubt.reason)
        tokens = any(_floats(node) for node in gm.graph.nodes if node.op == "call_function")
        if tokens:
            raise Refused(
                "no-boundaries",
                "nothing says where documents end: declare a tensor with packpass.packed(x, cu_seqlens, dim=...), or "
                "give the compiled function an argument cu_seqlens beside input_ids",
                next((n for n in gm.graph.nodes if n.op == "call_function" and _floats(n)), None),
            )
        return None
    # Another pass has checked the boundaries for its own use: they are the same ones.
    as_given = [p for p in found if original(p.boundaries) is p.boundaries]
    if len({(original(p.boundaries), p.padded) for p in found}) == 1 and as_given:
        found = as_given
    if len(found) > 1:
        names = " and ".join(p.boundaries.name for p in found)
        raise Refused("two-boundaries", f"the graph has rows that are packed by {names}; isolate knows one row")
    packing = found[0]
    if packing.padded is not None or packing.cp_group:
        raise Refused("sharded-row", "rows with padded boundaries, or sharded over ranks, are not isolated yet")
    if context.options.eliminate_padding:
        raise Refused("mixes-documents", "isolate and eliminate_padding are not done to one model; choose one of them")
    return packing


def _floats(node: fx.Node) -> bool:
    value = example(node)
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1


def _length(gm: fx.GraphModule, layouts: Layouts, packing: Packing) -> Any:
    """The number of slots of the row: of the ways to write it the plainest, as guards are about that."""
    sizes = []
    for axis, found in layouts.packings.items():
        if found is packing:
            value = example(axis.node)
            sizes.append((value if axis.item is None else value[axis.item]).shape[axis.dim])
    for node in gm.graph.nodes:
        packed = layouts.packed_dim(node) if isinstance(example(node), torch.Tensor) else None
        if packed is not None and packed[1] is packing:
            sizes.append(example(node).shape[packed[0]])
    return min(sizes, key=lambda size: len(str(size)))


@dataclasses.dataclass
class _Found:
    """What is to be rewritten in a graph, decided before anything is changed."""

    reading: Reading
    attentions: dict[fx.Node, attention.Attention]
    taps: list[Taps]
    loops: list[Carried]
    bodies: list[tuple[Body, float]]
    tables: list[Aligned]
    pads: dict[fx.Node, fx.Node]
    chunks: tuple[int, int] | None = None
    """``(count, slots)`` where the bodies run for rows of so many chunks."""


def _isolate(gm: fx.GraphModule, context: PassContext, layouts: Layouts, packing: Packing) -> list[Rewrite | Refusal]:
    length = _length(gm, layouts, packing)
    found, lengths = _with_lengths(gm, layouts, packing, length)
    if not (found.attentions or found.taps or found.loops or found.bodies or found.tables):
        return []
    boundaries = Boundaries(gm.graph, packing, found.reading)
    boundaries.check()
    inputs = example_inputs(gm)
    # === Transform ===
    results: list[Rewrite | Refusal] = _reports(found, packing)
    positions.rewrite(gm.graph, found.tables, boundaries)
    moved: dict[fx.Node, fx.Node] = {}
    _without_pads(gm.graph, found.pads, moved)
    for node, parts in found.attentions.items():
        attention.rewrite(gm.graph, node, parts, boundaries.whole(), moved)
    for taps in found.taps:
        convolution.rewrite(gm.graph, taps, boundaries, moved)
    for loop in found.loops:
        carried.rewrite(gm.graph, loop, boundaries.starts(), moved)
    form = None
    alone = boundaries.alone(gm)
    if found.bodies:
        rewrite.rewrite(gm, found.bodies, moved, found.chunks is not None)
        form = DocumentForm(gm, alone, packing.kind == "declared", lengths.at_least, lengths.multiple, found.chunks)
    remove_declarations(gm)
    erase_unused(gm.graph, lambda n: n.op != "get_attr" and not effects_of(n).repeatable)
    _prove(gm, found, alone, inputs, moved, lengths)
    context.products.documents = form
    return results


def _without_pads(graph: fx.Graph, pads: dict[fx.Node, fx.Node], moved: dict[fx.Node, fx.Node]) -> None:
    """The row as it is where it would be padded to a multiple: parts that run per document do that themselves."""
    for node, x in pads.items():
        with graph.inserting_before(node):
            new = graph.call_method("contiguous", (moved.get(x, x),))  # as the pad is: code may ask for a view of it
        new.meta = node.meta.copy()
        moved[node] = new
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _with_lengths(gm: fx.GraphModule, layouts: Layouts, packing: Packing, length: Any) -> tuple[_Found, Lengths]:
    """What is found with the first way to choose the length of documents that does."""
    *better, last = lengths_of(length)
    for lengths in better:
        try:
            return _found(gm, layouts, packing, length, lengths), lengths
        except Refused as refused:
            log.debug("not with multiples of %d: %s", lengths.multiple, refused)
    return _found(gm, layouts, packing, length, last), last


def _found(gm: fx.GraphModule, layouts: Layouts, packing: Packing, length: Any, lengths: Lengths) -> _Found:
    """Find what mixes, and try what is to be done about it. Raises `Refused` with everything that cannot be done."""
    inside: frozenset[fx.Node] = frozenset()
    failed: list[Refused] = []
    for _ in range(ATTEMPTS):
        reading, fused, parts = _read(gm, layouts, packing, length, inside)
        loops = [loop for region in parts if (loop := carried_of(reading, region)) is not None]
        proven = [loop.region for loop in loops]
        if not reading.symbols:
            for region in parts:
                if region not in proven:
                    Steps(reading, region).check()
        members = {n for region in parts for n in region.nodes}
        if failed and inside - members:  # what cannot be padded is only put together: a loss of mixed tokens
            raise _together(failed)
        tables = [t for t in reading.aligned if t.user not in members]
        taps = [found for region in parts if (found := taps_of(reading, region)) is not None]
        short = [*proven, *(t.region for t in taps)]
        bodies = [body_of(gm, reading, region) for region in parts if region not in short]
        wanted = positions.plain_inputs(reading, tables)
        wanted |= {n for body in bodies for n in (*body.region.entries, *body.others)}
        values = Example(gm, wanted).values if wanted else {}
        tables = positions.varying(reading, tables, values)
        done, failed, first = [], [], None
        for body in bodies:
            try:
                done.append(_padded(gm, reading, body, values, lengths))
            except Refused as refused:
                failed.append(refused)
                first = first or body.region
        if first is None:
            fused = {n: p for n, p in fused.items() if n not in members}
            pads = {n: x for n, x in reading.no_pads.items() if n not in members}
            done, chunks = in_chunks(gm, layouts, packing, done, values, lengths)
            if lengths.decisions and chunks is None and (fused or taps or loops or done or tables):
                check_decisions(gm, layouts, packing, [body for body, _ in done], lengths)
            return _Found(reading, fused, taps, loops, done, tables, pads, chunks)
        if any(user.op == "output" for n in first.exits for user in n.users):
            break
        inside |= set(first.exits)  # perhaps it can together with what follows it
    raise _together(failed)


def _read(
    gm: fx.GraphModule, layouts: Layouts, packing: Packing, length: Any, inside: frozenset[fx.Node]
) -> tuple[Reading, dict[fx.Node, attention.Attention], list[Region]]:
    """What every value is, the attentions that know documents by themselves, and the parts in which tokens meet."""
    apart: set[fx.Node] = set()
    while True:
        try:
            reading = Reading(gm, layouts, packing, length, inside, apart=apart).run()
            fused = attention.attentions(reading)
            if fused:
                dims = {n: example(n).dim() - 2 for n in fused}
                reading = Reading(gm, layouts, packing, length, inside, dims, apart=apart).run()
            return reading, fused, regions(reading)
        except Restart:
            continue


def _padded(
    gm: fx.GraphModule, reading: Reading, body: Body, values: dict[fx.Node, Any], lengths: Lengths
) -> tuple[Body, float]:
    """How documents can be padded around a part: with one value behind their ends, or with what changes nothing in
    front of every operation."""
    try:
        return body, fill_of(body, values, lengths)
    except Refused as refused:
        for other in FILLS:
            counted = counted_body_of(gm, reading, body, other)
            if counted is None:
                break
            try:
                return counted, fill_of(counted, values, lengths, FILLS[:1])
            except Refused as again:
                log.debug("not with %s behind the end: %s", other, again)
        raise refused from None


def _together(failed: list[Refused]) -> Refused:
    """One refusal that lists every part."""
    reasons = "; ".join(dict.fromkeys(str(refused) for refused in failed))
    return Refused("mixes-documents", reasons, failed[0].node)


def _compared(gm: fx.GraphModule, rows: dict[fx.Node, int], moved: dict[fx.Node, fx.Node]) -> dict[fx.Node, int]:
    """The rows that must not show other documents: those that are returned; of a model that returns none (a loss) what
    was made to stop at documents, and the last row that there is."""
    results = result_of(gm)
    returned = {n: rows[n] for n in (results if isinstance(results, (tuple, list)) else [results]) if n in rows}
    if returned:
        return returned
    last = next((n for n in reversed(gm.graph.nodes) if n in rows and n.op != "placeholder" and _floats(n)), None)
    return {n: rows[n] for n in (*moved.values(), last) if n in rows}


def _prove(
    gm: fx.GraphModule,
    found: _Found,
    alone: fx.GraphModule,
    inputs: list[Any],
    moved: dict[fx.Node, fx.Node],
    lengths: Lengths,
) -> None:
    """Raises `Refused` if a document of the example still sees another."""
    places = places_of(gm)
    cu, total = alone(*inputs)
    if not fit(cu, int(total)):
        return  # the call itself says so
    documents = stretches(cu, int(total))
    reading = found.reading
    plan: Plan = ()
    if found.chunks is not None:
        plan = chunked_rows(documents, int(total), cu.device, *found.chunks)
    elif len(places) > len(inputs):
        plan = one_batch(documents, int(total), cu.device, lengths.at_least, lengths.multiple)
    whole = torch.tensor([*(start for start, _ in documents), int(total)])
    alive = set(gm.graph.nodes)
    rows = {moved.get(n, n): kind.dim for n, kind in reading.kinds.items() if isinstance(kind, Row)}
    rows = {n: dim for n, dim in rows.items() if n in alive}
    gm.recompile()
    leak = leak_of(gm, [*inputs, *plan], rows, _compared(gm, rows, moved), whole)
    if leak:
        raise Refused(
            "mixes-documents",
            f"the rewritten graph was audited and {leak}; please report the program",
        )


def _reports(found: _Found, packing: Packing) -> list[Rewrite | Refusal]:
    out: list[Rewrite | Refusal] = []
    claims = Claims(boundary_source=packing.text)
    for node, parts in found.attentions.items():
        kind = "causal attention" if parts.causal else "attention"
        where = location_of_node(node) or "<unknown>"
        out.append(Rewrite(NAME, where, f"{kind} over the whole row", "varlen_attention", {}, claims))
    for taps in found.taps:
        where = location_of_node(taps.region.nodes[-1]) or "<unknown>"
        before = f"depthwise causal convolution of {taps.left + 1} taps over the whole row"
        out.append(Rewrite(NAME, where, before, "shifted products that stop at documents", {}, claims))
    for loop in found.loops:
        where = location_of_node(loop.region.mixing[0]) or "<unknown>"
        before = f"a loop over {len(loop.gathered[0].results)} tokens of the whole row"
        out.append(Rewrite(NAME, where, before, "the same, whose state begins anew at documents", {}, claims))
    for body, fill in found.bodies:
        mixing = [n for n in body.region.nodes if n in found.reading.mixing]
        where = location_of_node(mixing[0] if mixing else body.region.nodes[0]) or "<unknown>"
        names = ", ".join(dict.fromkeys(op_name(n) for n in mixing))
        details = {"operations": len(body.region.nodes), "fill": fill}
        out.append(
            Rewrite(NAME, where, f"{names} over the whole row", "the same for a batch of documents", details, claims)
        )
    taken = [*(body.region for body, _ in found.bodies), *(loop.region for loop in found.loops)]
    for node in (n for region in taken for n in region.states):
        where = location_of_node(node) or "<unknown>"
        reason = f"{op_name(node)} is returned for the whole row, as a state of its last document; it stays as it is"
        out.append(Refusal(NAME, "whole-row-state", reason, where))
    for table in {t.table: t for t in found.tables}.values():
        where = location_of_node(table.user) or "<unknown>"
        out.append(
            Rewrite(NAME, where, f"positions {table.table.name} of the whole row", "positions in documents", {}, claims)
        )
    return out
