"""Targets that are cut from a row by the shift that their scores are cut short by: boundaries of the scores cut them.

``cross_entropy(logits[:, :-1], labels[:, 1:])`` pairs score ``p`` with label ``p + 1``, the next token of the same row,
although no call takes the whole of both. The other way round proves nothing: scores may stand in any order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import fx

from packpass.layout.axes import Axes, Axis
from packpass.semantics import argument, example, op_name
from packpass.semantics.losses import OF_CLASSES


def shifted_targets(axes: Axes, graph: fx.Graph) -> list[tuple[Axis, Axis]]:
    """``(row of the scores, row of the targets)`` for the rows that the losses of a graph compare with a shift."""
    losses = [node for node in graph.nodes if op_name(node) in OF_CLASSES]
    pairs: list[tuple[Axis, Axis]] = []
    if not losses:
        return pairs
    heads: dict[Axis, list[tuple[int, Axis]]] = defaultdict(list)
    tails: dict[Axis, list[tuple[int, Axis]]] = defaultdict(list)
    for node in graph.nodes:
        found = _cut(node) if op_name(node) == "getitem" else None
        if found is not None:
            by, before, after = found
            (heads if by < 0 else tails)[axes.find(after)].append((abs(by), before))
    for loss in losses:
        target = argument(loss, 1, "target")
        for axis in axes.of(target) if isinstance(target, fx.Node) else ():
            root = axes.find(axis)
            cuts = heads.get(root, []) + tails.get(root, [])
            if root in heads and len({k for k, _ in cuts}) == 1:
                pairs += [(a, b) for _, a in heads[root] for _, b in tails.get(root, ()) if axes.fit(a, b)]
    return pairs


def _cut(node: fx.Node) -> tuple[int, Axis, Axis] | None:
    """``(k, axis, axis of the result)`` for ``x[k:]``, with a negative k for ``x[:-k]``, along one dimension."""
    base, index = node.args
    if not isinstance(base, fx.Node) or not isinstance(example(base), torch.Tensor):
        return None
    entries: list[Any] = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (example(base).dim() - len(entries) + 1)
    cuts = [(d, e) for d, e in enumerate(entries) if e != slice(None)]
    if len(cuts) != 1 or not isinstance(cuts[0][1], slice):
        return None
    dim, cut = cuts[0]
    if cut.step not in (None, 1):
        return None
    if isinstance(cut.start, int) and cut.start > 0 and cut.stop is None:
        return cut.start, Axis(base, dim), Axis(node, dim)
    if cut.start in (None, 0) and isinstance(cut.stop, int) and cut.stop < 0:
        return cut.stop, Axis(base, dim), Axis(node, dim)
    return None
