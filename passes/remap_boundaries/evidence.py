"""What says whether boundaries count the tokens of a row before or after expansion."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator
from typing import Any

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.layout.attention import attention, is_boundaries, named_arguments
from packpass.layout.axes import Axis
from packpass.layout.sources import (
    BOUNDARY_NAMES,
    DOUBTFUL,
    PADDED_NAMES,
    Packing,
    last_name,
    root_of,
    source_name,
    well_known,
)
from packpass.semantics import argument, example, op_name
from packpass.semantics.inner_graphs import subgraphs
from passes.refused import Refused
from passes.remap_boundaries.derived import boundaries_behind, compared, repeated
from passes.remap_boundaries.uses import Rows, Side, Uses

_KEYS = ("cu_seqlens_kv", "cu_seqlens_k", "cu_seq_lens_k")
_KEYS_PADDED = ("cu_seqlens_kv_padded", "cu_seqlens_k_padded", "cu_seqlens_padded")


@dataclasses.dataclass(frozen=True)
class Boundaries:
    """One set of boundaries of a graph: logical ones, and those of the slots where documents are padded. ``keys``: a
    second input with the boundaries of the keys of the same rows; ``keys_padded``: the slots of these."""

    cu: fx.Node
    padded: fx.Node | None = None
    keys: fx.Node | None = None
    keys_padded: fx.Node | None = None

    @property
    def roots(self) -> list[fx.Node]:
        return [node for node in (self.cu, self.padded, self.keys, self.keys_padded) if node is not None]


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Boundaries count tokens before expansion. ``kind``: "declared", "use" (a call cuts the row before expansion by
    them) or "input" (their name, and that of the tokens)."""

    kind: str
    text: str


def all_boundaries(gm: Any, ignored: Container[fx.Node]) -> list[Boundaries]:
    """The sets of boundaries that calls of a graph cut rows by; ``ignored`` calls look up other things."""
    graph: fx.Graph = gm.graph
    pairs: dict[fx.Node, fx.Node | None] = {}
    keys: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in ignored and repeated(node) is None:
            continue
        for cu, padded in given(gm, node):
            known = pairs.setdefault(cu, padded)
            if known is None:
                pairs[cu] = padded
        call = attention(node)
        if call is not None and call.other_boundaries is not None:
            q, k = root_of(call.boundaries), root_of(call.other_boundaries)
            if k is not q and last_name(source_name(k) or "") in _KEYS:
                keys[q] = k
    for node in graph.nodes:  # padded boundaries that only have the name
        if node.op == "placeholder" and last_name(source_name(node) or "") in PADDED_NAMES and len(pairs) == 1:
            (cu,) = pairs
            plain = any(declared_padding(n) == (cu, None) for n in graph.nodes)
            if pairs[cu] is None and node is not cu and is_boundaries(example(node)) and not plain:
                pairs[cu] = node
    others = {n for n in (*pairs.values(), *keys.values()) if n is not None}
    return [
        Boundaries(cu, pairs[cu], keys.get(cu), pairs.get(keys[cu]) if cu in keys else None)
        for cu in sorted(pairs)
        if cu not in others
    ]


def declared_padding(node: fx.Node) -> tuple[fx.Node, fx.Node | None] | None:
    """``(boundaries, padded boundaries)`` of a declaration."""
    return next(_of_call(node), None) if op_name(node) == "packpass::packed" else None


def given(gm: Any, node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node | None]]:
    """``(boundaries, padded boundaries)`` of one call."""
    found = attention(node)
    if found is not None:
        arguments = named_arguments(node)
        for cu, names in ((found.boundaries, PADDED_NAMES), (found.other_boundaries, _KEYS_PADDED)):
            if cu is not None:
                yield _pair(cu, next((p for n in names if isinstance(p := arguments.get(n), fx.Node)), None))
    elif op_name(node) in ("bucketize", "searchsorted"):
        cu = argument(node, 1 if op_name(node) == "bucketize" else 0, "boundaries", node.kwargs.get("sorted_sequence"))
        if isinstance(cu, fx.Node) and is_boundaries(example(cu)):
            yield boundaries_behind(cu) or root_of(cu), None
    elif (copies := repeated(node)) is not None:
        yield copies[1], None
    elif (passed := compared(node)) is not None:
        if last_name(source_name(passed[1]) or "") in BOUNDARY_NAMES:  # any other numbers are compared with slots, too
            yield passed[1], None
    elif op_name(node).startswith("packpass::"):
        yield from _of_call(node)
    else:
        for sub, inputs, _ in subgraphs(gm, node) if op_name(node).startswith("higher_order::") else ():
            places = {inner: outer for outer, inner in inputs}
            for cu, padded in (pair for inner in sub.graph.nodes for pair in given(sub, inner)):
                if cu in places:
                    yield root_of(places[cu]), root_of(places[padded]) if padded in places else None


def _of_call(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node | None]]:
    """`given` of a call of our own."""
    arguments = named_arguments(node)
    cu, padded = arguments.get("cu_seqlens"), arguments.get("cu_seqlens_padded")
    if isinstance(cu, fx.Node):
        yield _pair(cu, padded)


def _pair(cu: fx.Node, padded: Any) -> tuple[fx.Node, fx.Node | None]:
    """Documents whose slots are given by the same boundaries are not padded."""
    cu, padded = root_of(cu), root_of(padded) if isinstance(padded, fx.Node) else None
    return cu, padded if padded is not cu else None


def declared(graph: fx.Graph, cu: fx.Node, rows: Rows, side: Side) -> fx.Node | None:
    """A declaration that these boundaries cut the row on one side of the expansion."""
    for node in graph.nodes:
        if op_name(node) == "packpass::packed":
            x, by, dim = node.args[:3]
            axis = Axis(x, int(example(dim)) % example(x).dim())
            if root_of(by) is cu and rows.side(axis) is side:
                return node
    return None


def evidence(
    graph: fx.Graph, boundaries: Boundaries, rows: Rows, uses: Uses, *, declared_only: bool
) -> Evidence | None:
    """The strongest proof that boundaries count tokens before expansion, or None."""
    cu = boundaries.cu
    mark = declared(graph, cu, rows, Side.BEFORE)
    if mark is not None:
        if declared_padding(mark) != (cu, boundaries.padded):
            reason = (
                "the declaration and the calls disagree about the padding of documents; name cu_seqlens_padded in both"
            )
            raise Refused("two-boundaries", reason, mark)
        return Evidence("declared", f"packpass.packed at {location_of_node(mark) or '<unknown>'}")
    if declared_only:
        return None
    for use in uses.on(Side.BEFORE):
        if use.cuts and not use.node.meta.get(DOUBTFUL):
            name = op_name(use.node).removeprefix("packpass::") or use.node.name
            return Evidence("use", f"{name} at {location_of_node(use.node) or '<unknown>'}")
    packing = named(graph, boundaries, rows, Side.BEFORE)
    if packing is None or boundaries.padded not in (None, packing.padded):
        return None
    return Evidence("input", packing.text)


def named(graph: fx.Graph, boundaries: Boundaries, rows: Rows, side: Side) -> Packing | None:
    """Do the names of inputs say that these boundaries cut the row on one side of the expansion?"""
    marks = well_known(graph).marks
    return next((p for axis, p in marks if p.boundaries is boundaries.cu and rows.side(axis) is side), None)


def stray(cu: fx.Node) -> fx.Node | None:
    """A call that uses what the boundaries were computed from (lengths, say), past the boundaries themselves."""
    cone, stack = {cu}, [cu]
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in cone and is_boundaries(example(node)):
                cone.add(node)
                stack.append(node)
    return next((user for node in cone - {cu} for user in node.users if user not in cone), None)


def informed(cu: fx.Node, rows: Rows) -> bool:
    """Were these boundaries computed from the rows themselves? Then the code knows what it counts."""
    seen, stack = {cu}, [cu]
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return bool(rows.sides((node, None) for node in seen - {cu}))


def doubts(graph: fx.Graph) -> str:
    """Why names say nothing, in words; "" if they do."""
    return "; ".join(doubt.reason for doubt in well_known(graph).doubts)
