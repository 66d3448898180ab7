"""Slots that meet those before them: ``logp[:, :-1].gather(-1, ids[:, 1:, None])``, ``h[:, :-1] + emb[:, 1:]``.

At the end of a document, the score of its last slot meets the first token of the next one. A loss has an
``ignore_index`` for such pairs; here is nothing that could be filled in, so it is said and left alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from packpass.layout import Packing
from packpass.layout.axes import Axes, Axis
from packpass.layout.rules import apply
from packpass.semantics import call_of, example, meaning_of, op_name, storage
from packpass.semantics.losses import OF_CLASSES
from packpass.semantics.meaning import Looked
from passes.nodes import needed_for
from passes.pack_shifts.decide import made_from
from passes.pack_shifts.interpret import Interpreter
from passes.pack_shifts.pieces import ZERO
from passes.pack_shifts.values import TOKEN_DTYPES, Left, View, position


def refused_pairs(run: Interpreter) -> Iterator[tuple[fx.Node, Left]]:
    """``(the cut of the later slots, why it is left alone)``, once for each; changes nothing."""
    views = [(n, v) for n, v in run.values.items() if isinstance(v, View)]
    cuts = [(n, v, packed[1]) for n, v in views if (packed := _cut_of_a_row(run, n, v)) is not None]
    if len({view.start > ZERO for _, view, _ in cuts}) < 2:
        return
    axes = Axes()
    for node in run.graph.nodes:
        if op_name(node) not in OF_CLASSES:
            apply(axes, node)
    indices = [(index, axes.find(Axis(index, dim))) for node in run.graph.nodes for index, dim in _indices(node)]
    for at, later, packing in cuts:
        place = axes.find(Axis(at, later.dim or 0))
        beside = [v for n, v, p in cuts if v.start == ZERO and p == packing and axes.find(Axis(n, v.dim or 0)) == place]
        if later.start == ZERO or not beside:
            continue
        if any(row == place and at in needed_for([index]) for index, row in indices) or _of_another(at, later, beside):
            yield at, _why(axes, place, packing)


def _of_another(at: fx.Node, later: View, beside: list[View]) -> bool:
    """Are these slots of another row than those that they meet? Those of one row are compared with their neighbours,
    and integers tell documents apart."""
    if example(at).dtype in TOKEN_DTYPES:
        return False
    memory = storage(later.store.root)
    return any(storage(view.store.root) != memory for view in beside)


def _cut_of_a_row(run: Interpreter, node: fx.Node, view: View) -> tuple[int, Packing] | None:
    """The packing of a row of which a value is all slots but the first few, or all but the last few."""
    if view.dim is None or not view.chain or node is not view.chain[-1]:
        return None
    end = position(example(view.store.root).shape[view.store.dim], view.store.size)
    low, high = view.start, None if end is None else end - view.stop
    if high is None or low.n or high.n or (low == ZERO) == (high == ZERO):
        return None
    return run.layouts.packed_dim(view.base)


def _indices(node: fx.Node) -> Iterator[tuple[fx.Node, int]]:
    """The axes of what a call looks slots up by."""
    call, meaning = call_of(node), meaning_of(call_of(node))
    if call is None or meaning is None:
        return
    for relation in meaning.relations:
        for axes in relation.operands:
            for axis in axes or ():
                for k in axis.how.by if isinstance(axis.how, Looked) else ():
                    for dim in range(call.operands[k].rank):
                        yield call.operands[k].node, dim


def _why(axes: Axes, row: Axis, packing: Packing) -> Left:
    for node in made_from(packing.boundaries):
        if node.graph is packing.boundaries.graph and any(axes.find(axis) == row for axis in axes.of(node)):
            return Left("already-bounded", "the code itself treats the slots at boundaries, by a mask made from them")
    return Left(
        "no-fill",
        "a document's last slots meet the first ones of the next document (x[:, :-1] and y[:, 1:]), and nothing says "
        "what belongs there; pad the later ones with a number (F.pad(y, (0, 1), value=...)[:, 1:]) and mask it, or use "
        "packpass.ops.packed_roll",
    )
