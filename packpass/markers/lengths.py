"""Numbers in a captured graph that were made from the length of a document: read by capture and by the passes alike."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass.markers.loops import SPLIT_GET
from packpass.semantics.effects import mutated_after

STEPS = (operator.floordiv, operator.mul)
Steps = tuple[tuple[Any, int], ...]
"""What is done to each length, by ints, innermost first."""


def unstepped(node: fx.Node) -> tuple[fx.Node, Steps]:
    """What a number or a tensor was made from by `STEPS`, and these."""
    steps: list[tuple[Any, int]] = []
    while node.op == "call_function" and node.target in STEPS:
        source, by = node.args
        if node.target is operator.mul and type(source) is int:
            source, by = by, source
        if not isinstance(source, fx.Node) or type(by) is not int or by < 1:
            break
        steps.append((node.target, by))
        node = source
    return node, tuple(reversed(steps))


def length_of(node: fx.Node, index: fx.Node) -> tuple[str, Steps] | None:
    """``(node name of the lengths, steps)`` if a number was made from entry ``index`` of a list of lengths."""
    entry, steps = unstepped(node)
    lengths = _lengths_read(entry, index)
    # The numbers of a tolist(): a copy that nobody changes.
    if lengths is None or lengths.target != "clone" or mutated_after(lengths.graph, lengths, lengths.next):
        return None
    return lengths.name, steps


def _lengths_read(node: fx.Node, index: fx.Node) -> Any:
    """The tensor of which ``node`` is entry ``index``: read as a number, or the size of a split's piece."""
    made = node.args[0] if node.args else None
    if not isinstance(made, fx.Node):
        return None
    if node.target == "item" and made.target is torch.select and made.args[1:] == (0, index):
        return made.args[0]
    size = made if node.target is operator.getitem and made.target == "size" else node
    wanted = node.args[1] if size is made else node.args[1:]
    piece: Any = size.args[0]
    if size.target == "size" and isinstance(piece, fx.Node) and piece.target is SPLIT_GET:
        _, lengths, at, dim = piece.args
        if at is index and wanted in (dim, (dim,)):
            return lengths
    return None
