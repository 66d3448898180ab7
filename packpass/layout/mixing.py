"""Operations that let documents of a packed row see each other, as far as a graph can tell.

Only what the layout proves is said: the dimension is packed, and by its meaning the operation computes a slot of it
from other slots. Whether that reaches an output is another question (`packpass.audit` runs the model to answer it).
Left out are sums over the row, which losses are; integers, which positions and numbers of documents are counted in;
attention that is given a mask or boundaries; and softmax over scores, whose mask may be in the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Finding
from packpass.layout import Layouts, analyze
from packpass.layout.sources import LayoutError, Packing
from packpass.semantics import Call, call_of, meaning_of
from packpass.semantics.meaning import Axis, Flipped, Mixed, Relation, Rolled, Scanned
from packpass.semantics.mixing_by_name import has_mask, mixing_kind

_WORDS = {
    "convolution": "reads its neighbours, across the ends of documents as well",
    "attention": "has no mask and no boundaries, so that every document sees the others",
    "cumulative": "goes on across the ends of documents",
    "shift": "moves tokens across the ends of documents",
    "order": "orders tokens of all documents together",
    "pooling": "puts neighbours together, across the ends of documents as well",
}


def mixing_operations(gm: Any, boundaries: fx.Node | None = None) -> list[Finding]:
    """What mixes documents along a packed dimension in a graph and the graphs inside it, each line once.

    ``boundaries`` stands in for boundaries that are an argument of the call but no input of the graph.
    """
    try:
        layouts = analyze(gm, boundaries=boundaries)
    except LayoutError:
        return []
    if not layouts.packings:
        return []
    found = (finding for graph in layouts.graphs for node in graph.nodes for finding in _of_node(layouts, node))
    return list(dict.fromkeys(found))


def _of_node(layouts: Layouts, node: fx.Node) -> Iterator[Finding]:
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        return
    for relation in meaning.relations:
        for operand, axes in zip(call.operands, relation.operands, strict=True):
            if axes is None or not operand.value.is_floating_point():
                continue
            for dim, axis in enumerate(axes):
                packing = layouts.packing(operand.node, dim)
                if packing is not None and _mixes(call, relation, axis, layouts.packed_dim(operand.node) is not None):
                    yield _finding(call, operand.value, dim, packing, node)
                    return


def _mixes(call: Call, relation: Relation, axis: Axis, alone: bool) -> bool:
    """Does a call compute slots along an axis from others? ``alone``: no other axis of the operand is packed."""
    kind = mixing_kind(call.op)
    if isinstance(axis.how, (Rolled, Flipped)):
        return True
    roles = [relation.roles[loop] for loop in axis.loops if loop in relation.roles]
    if any(isinstance(role, Scanned) for role in roles):
        return True
    if not any(isinstance(role, Mixed) for role in roles):
        return False
    if any(isinstance(role, Mixed) and role.together for role in roles):
        return kind == "attention" and not has_mask(call)
    return alone and kind in _WORDS and kind != "shift"


def _finding(call: Call, value: Any, dim: int, packing: Packing, node: fx.Node) -> Finding:
    words = _WORDS.get(mixing_kind(call.op), "computes tokens from those of other documents")
    return Finding(
        "mixes-documents",
        call.op,
        f"{call.op} along dimension {dim} of {value.dim()}, which is packed ({packing.text}), {words}; "
        "packpass.audit(model)(...) says whether that reaches an output",
        location_of_node(node) or "<unknown>",
    )
