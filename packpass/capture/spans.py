"""How many slots a part of a row has that is cut by sizes of its document, if the row has as many.

::

    for h, w in sizes.tolist():
        part = x[start : start + h * w].view(h, w, -1)     # -1: the width of the row
    for part, (h, w) in zip(x.split(sizes.prod(-1).tolist()), sizes.tolist()):
        part = part.view(h, w, -1)

Torch makes a number up for the length of either, as a slice stops where the row does, and a split says nothing of where
its numbers are from. What is left for -1 would be unknown, too, in all that follows. The passes check that the
documents fit the row.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass import markers
from packpass.capture.origins import expression_of
from packpass.capture.state import active
from packpass.capture.watch import ROWS
from packpass.semantics import example as example_of
from packpass.semantics import op_name
from packpass.semantics.memory import copied


def left_over(fake: torch.Tensor, sizes: list[Any]) -> int | None:
    """What -1 stands for among ``sizes``, which a part of a row is given the form of; None if that is not certain."""
    have: Any = sympy.Integer(1)
    for size in fake.shape:
        known = expression_of(size)
        have *= _span(known) if known.is_Symbol else known
    given = [expression_of(size) for size in sizes if not (isinstance(size, int) and size == -1)]
    if len(given) != len(sizes) - 1:
        return None
    left = sympy.cancel(have / sympy.Mul(*given)) if 0 not in given else None
    return int(left) if isinstance(left, sympy.Integer) and left > 0 else None


def _span(size: Any) -> Any:
    """The number of slots that is meant by the size of a part, from one bound to the other; that itself if it is not
    known to be one."""
    node: Any = active.regions[-1].indices[-1]
    while node.op != "root":
        value = example_of(node)
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        at = next((d for d, s in enumerate(shape) if isinstance(s, torch.SymInt) and s.node.expr == size), None)
        if at is not None:
            found = _of_slice(node, at) if node.target is operator.getitem else _of_split(node, at)
            return size if found is None else found
        node = node.next
    return size


def _of_slice(node: fx.Node, at: int) -> Any:
    """``stop - start`` of a slice along a dimension, in front of which there is nothing but slices."""
    keys: Any = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if len(keys) <= at or not all(isinstance(key, slice) and key.step in (None, 1) for key in keys[: at + 1]):
        return None
    start, stop = (example_of(end) if isinstance(end, fx.Node) else end for end in (keys[at].start, keys[at].stop))
    if not isinstance(stop, torch.SymInt) or not isinstance(start, (int, torch.SymInt, type(None))):
        return None
    return sympy.expand(expression_of(stop) - expression_of(0 if start is None else start))


def _of_split(node: fx.Node, at: int) -> Any:
    """The number of this part among the lengths of a split: a product of sizes of the document."""
    if node.target is not markers.SPLIT_GET or node.args[3] != at:
        return None
    columns, index = _factors(node.args[1]), active.regions[-1].indices[-1]
    numbers = None if columns is None else [_entry(*column, index) for column in columns]
    return None if numbers is None or None in numbers else sympy.Mul(*numbers)


def _factors(vector: Any) -> list[tuple[fx.Node, int]] | None:
    """The columns of matrices of which a vector is the product, each as the matrix and the number of the column."""
    vector = _source(vector)
    if op_name(vector) == "prod" and tuple(vector.args[1:]) in ((-1,), (1,)) and not vector.kwargs:
        width, matrix = expression_of(example_of(vector.args[0]).shape[-1]), _source(vector.args[0])
        return [(matrix, i) for i in range(int(width))] if width.is_Integer else None
    if op_name(vector) == "mul" and all(isinstance(arg, fx.Node) for arg in vector.args):
        sides = [_factors(arg) for arg in vector.args]
        return None if None in sides else [column for side in sides for column in side or ()]
    return _column(vector)


def _column(vector: fx.Node) -> list[tuple[fx.Node, int]] | None:
    """``matrix[:, i]``"""
    at = None
    if vector.target is operator.getitem and isinstance(vector.args[1], tuple) and len(vector.args[1]) == 2:
        rows, at = vector.args[1]
        at = at if rows == slice(None) else None
    elif vector.target in ROWS and vector.args[1:2] == (1,) and len(vector.args) == 3:
        at = vector.args[2]
    return [(_source(vector.args[0]), at)] if type(at) is int and at >= 0 else None


def _source(node: Any) -> Any:
    """What a tensor is a copy of."""
    while isinstance(node, fx.Node) and (before := copied(node)) is not None and before is not node:
        node = before
    return node


def _entry(matrix: fx.Node, column: int, index: fx.Node) -> Any:
    """The number in that column of the document's row, as far as the iteration has read it."""
    node = index
    while node.op != "root":
        read: Any = node.args[0] if node.target == "item" else None
        if isinstance(read, fx.Node) and read.target is operator.getitem and read.args[1] == column:
            row: Any = read.args[0]
            if row.target in ROWS and row.args[-1] is index and _source(row.args[0]) is matrix:
                return example_of(node).node.expr
        node = node.next
    return None
