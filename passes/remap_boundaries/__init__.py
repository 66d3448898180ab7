"""Boundaries that count a row's tokens before some of them expand cut the expanded row where they should.

Before (user code; ``cu_seqlens`` was made by a data loader that sees one placeholder per image)::

    widths = torch.where(ids == IMAGE, tokens_per_image, 1)
    at = widths.cumsum(-1) - 1
    x = embeds.new_zeros(1, total, D)
    x[:, at[0]] = embeds                                  # the other slots: image features
    ...
    out = varlen_attention(q, k, v, cu_seqlens)           # documents end where they ended before expansion

Before (FX)::

    setitem(x, (slice(None), at), embeds)
    packpass.varlen_attention(q, k, v, cu_seqlens, cu_seqlens, True, None)

After::

    expanded = packpass.remap_cu_seqlens(cu_seqlens, widths)
    packpass.varlen_attention(q, k, v, expanded, expanded, True, None)

`expansions` finds where a row expands and by which widths, whatever it is written with. `uses` sorts what the graph
does with boundaries into the row before and the one after expansion. `evidence` must show that the boundaries count the
row before it: a declaration (``packpass.packed(ids, cu_seqlens)``), a call that cuts that row by them, or the names of
the inputs. Without a declaration the values have a say as well, see the op `expanded_boundaries`: boundaries that count
the expanded tokens already stay as they are. So do boundaries that are declared for the expanded row. All uses on the
expanded row change together, or none does; lengths of the longest document that a call of attention is given become the
length of the row.

What the code does not cut by boundaries, and `pack_shifts` is about to, is cut by them only if they are beyond doubt:
where this pass refuses, attention on the expanded row says nothing about its layout, and where the values allow two
readings, shifts go over the whole row.

This changes results on purpose: every rewrite is in the report, and ``{"packpass.fix_shifts": "declared"}`` or
``"off"`` limits it as it limits `pack_shifts`, which runs afterwards and sees the new boundaries.

Does not handle (left alone, with a code): boundaries of which nothing says what they count (``collapsed-or-expanded``);
uses on the expanded row that are not understood, in subgraphs that are not, on both sides at once, or by boundaries
that the code scales or mixes with the row's old length (``expansion-use``); calls that know documents from elsewhere as
well, or whose keys are another row (``two-boundaries``); a row that two calls expand by different widths
(``expansion-widths``); several rows (``ambiguous-rows``); boundaries or widths that are written in place
(``boundaries-written``), or are known too late (``boundaries-late``) or on another device (``boundary-device``).
Without a code: expansion in another graph than its use (a graph break in between that is not one of its sizes, which
`packpass.capture.expansions` captures), index arithmetic other than that in
`positions`, and inputs by name whose row has slots behind the last document (nothing but a declaration says what those
boundaries count).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Claims, Refusal, Rewrite
from packpass.layout import analyze
from packpass.layout.attention import is_boundaries
from packpass.layout.axes import Axes, Axis
from packpass.layout.sources import DOUBTFUL, root_of
from packpass.semantics import example, family_of, is_tensor, op_name, storage
from passes.context import PassContext
from passes.mentions import mentions_boundaries
from passes.nodes import copy_of
from passes.refused import Refused
from passes.remap_boundaries.derived import derives, made_of
from passes.remap_boundaries.evidence import (
    Boundaries,
    Evidence,
    all_boundaries,
    declared,
    doubts,
    evidence,
    given,
    informed,
    named,
    stray,
)
from passes.remap_boundaries.expansions import Expansion, expansions
from passes.remap_boundaries.memory import writes_between, written
from passes.remap_boundaries.positions import Reader
from passes.remap_boundaries.rewrite import Remapper, move, needed_early
from passes.remap_boundaries.same import same_row
from passes.remap_boundaries.uses import Rows, Side, Uses, collect, longest_elsewhere

NAME = "remap_boundaries"
log = logging.getLogger(f"packpass.passes.{NAME}")

_EXPANDING = frozenset({"cumsum", "repeat_interleave"})


@dataclasses.dataclass(frozen=True)
class Found:
    """Boundaries that cut an expanded row, the expansion, and all that the graph does with them."""

    boundaries: Boundaries
    expansion: Expansion
    rows: Rows
    uses: Uses


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Remap every set of boundaries of a graph that is used behind an expansion."""
    if context.options.fix_shifts == "off" or not may_expand(gm):
        return []
    memory = written(gm)
    layouts = analyze(gm)
    axes = layouts.axes
    found = list(expansions(gm.graph, axes, Reader(memory)))
    axes.settle()
    if not found:
        return []
    before = copy_of(gm.graph)
    try:
        origins = {expansion.origin for expansion in found}
        results = list[Rewrite | Refusal]()
        replaced, refused = set[fx.Node](), set[fx.Node]()
        for boundaries in all_boundaries(gm, origins):
            if boundaries.cu in replaced:
                continue  # made of others, and again of the new ones
            others = [expansion for expansion in found if not by_documents(expansion, boundaries)]
            for family, rows in rows_of(axes, others, gm.graph, memory):
                result = _remap(gm, boundaries, family, rows, context)
                if result is None:
                    continue
                known = replaced if isinstance(result, Rewrite) else refused
                if known is replaced or boundaries.cu not in refused:  # once for what is made of one another
                    results.append(result)
                known.update(collect(gm, boundaries.roots, rows, NAME).derived)
        gm.graph.lint()
    except Exception as error:  # a model must not fail because its boundaries could not be rewritten
        log.warning("boundaries are left alone: %s: %s", type(error).__name__, error)
        gm.graph = before
        results = [Refusal(NAME, "emit", f"{type(error).__name__}: {error}; please report it", "<unknown>")]
    gm.recompile()
    return results


def may_expand(gm: fx.GraphModule) -> bool:
    """A quick look: are there boundaries, and calls that rows expand by?"""
    return mentions_boundaries(gm) and any(op_name(node) in _EXPANDING for node in gm.graph.nodes)


Family = list[Expansion]
"""Expansions by the same widths, in the order of the graph."""


def rows_of(
    axes: Axes, found: list[Expansion], graph: fx.Graph, memory: frozenset[Any]
) -> Iterator[tuple[Family, Rows]]:
    """Families of expansions, with the rows before and after them."""
    families: list[Family] = []
    for expansion in found:
        for family in families:
            if same_row(family[0].widths, expansion.widths, memory) and family[0].plus == expansion.plus:
                family.append(expansion)
                break
        else:
            families.append([expansion])
    made = [frozenset(axes.find(e.after) for e in family) for family in families]
    for family, after in zip(families, made, strict=True):
        before = frozenset(axes.find(e.before) for e in family)
        if before & after:
            continue  # the code itself takes both rows for one
        others = frozenset(root for m in made if m is not after for root in m)
        first = family[0]
        lengths = first.widths.size, example(first.after.node).shape[first.after.dim]
        contested = bool(others & (after | before))
        yield family, Rows(axes, before, with_shards(graph, axes, after), others, lengths, contested)


def by_documents(expansion: Expansion, boundaries: Boundaries) -> bool:
    """Are the widths the lengths of these boundaries' own documents? They count the row that this makes."""
    widths = {expansion.widths.node, root_of(expansion.widths.node)}
    return any(made_of(node, set(boundaries.roots), derives) for node in widths) or any(
        made_of(root, widths, _adds_up) for root in boundaries.roots
    )


def _adds_up(node: fx.Node) -> bool:
    """Is a tensor one of boundaries or lengths, or of widths that are grouped before they are added up to these?"""
    fake = example(node)
    grouped = is_tensor(node) and not fake.is_floating_point() and family_of(node) == "views"
    return is_boundaries(fake) or grouped


_SHARDING = ("packpass::cp_partition", "packpass::cp_unpartition", "packpass::cp_to_hp", "packpass::hp_to_cp")


def with_shards(graph: fx.Graph, axes: Axes, after: frozenset[Axis]) -> frozenset[Axis]:
    """The rows and what context parallelism makes of them: its calls take the boundaries of the whole row."""
    found = set(after)
    for node in graph.nodes:
        if op_name(node) in _SHARDING and isinstance(node.args[0], fx.Node):
            x = node.args[0]
            at = 3 if op_name(node) in _SHARDING[2:] else 2
            dim = node.args[at] % example(x).dim()
            if axes.find(Axis(x, dim)) in found:
                found.add(axes.find(Axis(node, dim)))
    return frozenset(found)


def _remap(
    gm: fx.GraphModule, boundaries: Boundaries, family: Family, rows: Rows, context: PassContext
) -> Rewrite | Refusal | None:
    uses = collect(gm, boundaries.roots, rows, NAME)
    if not any(use.cuts for use in uses.on(Side.AFTER)):
        declare(gm, Found(boundaries, family[0], rows, uses), family)
        return None
    if any(declared(gm.graph, root, rows, Side.AFTER) for root in boundaries.roots):
        return None  # they count expanded tokens
    if named(gm.graph, boundaries, rows, Side.AFTER) and not named(gm.graph, boundaries, rows, Side.BEFORE):
        return None  # the row of the inputs is the one that is made
    found = Found(boundaries, family[0], rows, uses)
    cut = {use.node for use in uses.on(Side.AFTER)}
    anchor = min(cut)
    try:
        proof = check(gm, found, context)
        if proof is None:
            return None
        early = needed_early(gm, found.expansion.widths.node, anchor, cut)
        early += needed_early(gm, found.expansion.after.node, anchor, cut)
    except Refused as refused:
        doubt(uses)
        where = location_of_node(refused.node or found.expansion.origin) or "<unknown>"
        return Refusal(NAME, refused.code, refused.reason, where)
    # === Transform ===
    move(sorted(set(early)), anchor)
    remapper = Remapper(gm.graph, anchor, found.expansion, NAME)
    new = remapper.remap(boundaries, proof)
    if proof.kind == "declared":
        Remapper(gm.graph, found.expansion.origin, found.expansion, NAME).check()
    made = {rows.axes.find(e.after): e.after for e in family}
    remapper.mark(new, boundaries, proof, made.values())
    remapper.substitute(new, uses)
    return _reported(found, proof)


def declare(gm: fx.GraphModule, found: Found, family: Family) -> None:
    """The code cuts nothing by boundaries behind the expansion: what is declared in front of it holds there as well, by
    remapped boundaries, for shifts that `pack_shifts` finds. Nothing is left of it if it finds none."""
    boundaries, expansion, rows = found.boundaries, found.expansion, found.rows
    sides = [[declared(gm.graph, root, rows, side) for root in boundaries.roots] for side in (Side.BEFORE, Side.AFTER)]
    if not any(sides[0]) or any(sides[1]) or expansion.several_rows or rows.contested or found.uses.unclear:
        return
    memory = written(gm)
    nodes = (*boundaries.roots, expansion.widths.node, expansion.after.node)
    if any(storage(node) in memory for node in nodes) or len({example(node).device for node in nodes}) > 1:
        return
    proof = Evidence("declared", "packpass.packed")
    anchor = max(*nodes, *(e.after.node for e in family)).next
    remapper = Remapper(gm.graph, anchor, expansion, NAME)
    new = remapper.remap(boundaries, proof, checked=False)
    remapper.mark(new, boundaries, proof, {rows.axes.find(e.after): e.after for e in family}.values())


def doubt(uses: Uses) -> None:
    """What boundaries that may be stale cut is no proof that the row is cut so, to `pack_shifts` for one."""
    for node in [use.node for use in uses.on(Side.AFTER)] + [node for node, _ in uses.attentions]:
        node.meta[DOUBTFUL] = True


def check(gm: fx.GraphModule, found: Found, context: PassContext) -> Evidence | None:
    """The proof that these boundaries are stale; None if the code itself takes care of them.

    Raises:
        Refused: they may be stale, but are left alone.
    """
    boundaries, expansion, uses = found.boundaries, found.expansion, found.uses
    first = min(use.node for use in uses.on(Side.AFTER))
    if expansion.several_rows:
        raise Refused(
            "ambiguous-rows", "several rows expand at once, and boundaries can cut only one", expansion.origin
        )
    proof = evidence(gm.graph, boundaries, found.rows, uses, declared_only=context.options.fix_shifts == "declared")
    if proof is None and any(informed(root, found.rows) for root in boundaries.roots):
        return None
    if proof is None:
        raise Refused("collapsed-or-expanded", _how_to_declare(gm, boundaries), first)
    if uses.unclear:
        raise uses.unclear[0]
    for use in uses.on(Side.AFTER):
        if any(cu not in uses.derived for pair in given(gm, use.node) for cu in pair if cu is not None):
            raise Refused("two-boundaries", "one call cuts the expanded row by other boundaries as well", use.node)
    if found.rows.contested:
        raise Refused("expansion-widths", "other calls expand one of these rows by other widths", expansion.origin)
    longest_elsewhere(gm, uses, found.rows)
    other = next((user for root in boundaries.roots if (user := stray(root)) is not None), None)
    if other is not None:
        raise Refused("expansion-use", "what the boundaries are computed from is used on its own", other)
    memory = written(gm)
    if any(storage(node) in memory for node in uses.derived):
        raise Refused("boundaries-written", "the boundaries are written in place", first)
    if first < expansion.read and storage(expansion.widths.node) in memory:
        raise Refused("boundaries-late", "the widths are written after the boundaries are used", first)
    last = max(use.node for use in uses.on(Side.AFTER))
    if writes_between(gm, storage(expansion.widths.node), expansion.read, last):
        raise Refused("boundaries-written", "the widths are written in place after tokens were placed by them", first)
    devices = {example(node).device for node in (*boundaries.roots, expansion.widths.node)}
    if len(devices) > 1:
        raise Refused("boundary-device", "the boundaries and the widths are on different devices", first)
    return proof


def _how_to_declare(gm: fx.GraphModule, boundaries: Boundaries) -> str:
    doubt = doubts(gm.graph)
    return (
        f"{boundaries.cu.name} cuts a row that tokens were expanded into, and nothing says whether it counts tokens "
        f"before or after that{f' ({doubt})' if doubt else ''}; say packpass.packed(ids, cu_seqlens) for the row "
        "before expansion, or packpass.packed(x, cu_seqlens, dim) for the row after it"
    )


def _reported(found: Found, proof: Evidence) -> Rewrite:
    cutting = [use.node for use in found.uses.on(Side.AFTER) if use.cuts]
    places = list(dict.fromkeys(location_of_node(node) or "<unknown>" for node in cutting))
    expansion, boundaries = found.expansion, found.boundaries
    details = {
        "source": proof.text,
        "evidence": proof.kind,
        "boundaries": boundaries.cu.name,
        "padded": boundaries.padded.name if boundaries.padded is not None else None,
        "widths": expansion.widths.node.name,
        "expansion": location_of_node(expansion.origin),
        "uses": places,
    }
    return Rewrite(
        NAME,
        places[0],
        f"{boundaries.cu.name}, which counts tokens before expansion, cuts the expanded row in {len(cutting)} call(s)",
        f"remap_cu_seqlens({boundaries.cu.name}, {expansion.widths.node.name})",
        {key: value for key, value in details.items() if value is not None},
        Claims(boundary_source=proof.text),
    )
