"""Loops with documents inside of them that are no loops over documents: over the rows of a batch, each with documents
of its own, over layers, or over depths.

::

    for row in range(lengths.size(0)):
        start = 0
        for length in lengths[row].tolist():
            out[row, start : start + length] = f(x[row, start : start + length])
            start += length

Where such a loop runs as often as there are documents, or goes over rows, it is taken for a loop over these first. If
that is refused, or its body goes over the numbers of a row, the frame is traced again, and now the loop as it is
written, once for each row. The columns of the matrix then are the documents of a row: each of its rows is a vector of
integers like any other, and how many columns there are is dynamic.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass._compat import hint_of
from packpass.capture import code_loops
from packpass.capture.dynamo import (
    ConstantVariable,
    ListVariable,
    TupleVariable,
    ValueMutationNew,
    call,
    constant,
    emit,
    example,
    size_of,
)
from packpass.capture.frame import Mode
from packpass.capture.origins import has_integers
from packpass.capture.region import MOST_LAYERS
from packpass.capture.state import active, as_layers, current_frame, location_of
from packpass.capture.watch import MOST_COLUMNS, ROWS, UNROLL_LIMIT, loops_are_sought, vectors


def is_one(tx: Any) -> bool:
    """Is the loop at this line traced as it is written? If not, note that it is taken for a loop over documents."""
    frame, where = current_frame(), location_of(tx)
    if frame.layers and where in frame.layers:
        return True
    frame.assumed.add(where)
    return False


def watch_numbers(tx: Any) -> None:
    """In a loop over the rows of a matrix, the numbers of one of them, or as many as it has, are about to be gone over
    or listed. If another loop does so, these are documents."""
    frame, region = current_frame(), active.regions[0]
    if not code_loops.is_gone_over(tx):
        return
    region.has_inner = True
    if region.location in frame.assumed and region.may_be_layers():
        again = as_layers(frame, region.location, "a loop goes over the numbers of a row")
        if again is not None:
            raise again


def watch_count(tx: Any, start: Any, stop: Any) -> None:
    """``range(start, stop)``: are there as many numbers in a row of a matrix, lengths or boundaries, and of nothing
    else that may be documents?"""
    frame = current_frame()
    hints = [hint_of(end) if isinstance(end, (int, torch.SymInt)) else None for end in map(size_of, (start, stop))]
    if hints[0] is None or hints[1] is None or not 1 < hints[1] - hints[0] <= UNROLL_LIMIT:
        return
    count, sizes = hints[1] - hints[0], [tuple(map(hint_of, matrix.shape)) for matrix in matrices(tx)]
    if not any(columns in (count, count + 1) for _, columns in sizes):
        return
    if active.regions:
        watch_numbers(tx)
    elif frame.mode is Mode.PROBE and frame.layers is not None and loops_are_sought():
        others = {hint_of(size) for size in vectors(tx).values()} | {rows for rows, _ in sizes}
        frame.in_rows = frame.in_rows or not others & {count, count + 1}


def watch_vector(tx: Any, vector: Any) -> None:
    """A vector is about to be gone over, or is asked whether it is one of documents: it may be a row of a matrix."""
    frame, node = current_frame(), _unsliced(vector.as_proxy().node)
    source: Any = _unsliced(node.args[0]) if node.target in ROWS and not node.kwargs else None
    value = source.meta.get("example_value") if isinstance(source, fx.Node) and source.op == "placeholder" else None
    if not isinstance(value, torch.Tensor) or value.dim() != 2 or frame.mode is Mode.STOCK:
        return
    if node.target is not operator.getitem and node.args[1] != 0:
        return  # a column
    if active.regions:
        watch_numbers(tx)
    elif all(type(at) is int for at in node.args[1:]) and frame.layers is not None and loops_are_sought():
        frame.in_rows = True


def _unsliced(node: Any) -> Any:
    """What a part of a tensor was sliced from."""
    while isinstance(node, fx.Node) and node.target is operator.getitem:
        key = node.args[1] if isinstance(node.args[1], tuple) else node.args[1:]
        if not all(isinstance(entry, slice) for entry in key):
            break
        node = node.args[0]
    return node


def matrices(tx: Any) -> list[torch.Tensor]:
    """The matrices of integers that the frame is given."""
    nodes = tx.output.root_tracer.graph.find_nodes(op="placeholder")
    return [value for value in (node.meta.get("example_value") for node in nodes) if has_integers(value, 2)]


def listed(tx: Any, matrix: Any) -> Any:
    """``lengths.tolist()``: a list of numbers for each row; None if rows are not traced one by one."""
    frame, value = current_frame(), example(matrix)
    if active.regions or not has_integers(value, 2) or frame.layers is None or frame.mode is Mode.STOCK:
        return None
    columns, few = hint_of(value.shape[1]) or 0, 1 < (hint_of(value.shape[0]) or 0) <= MOST_LAYERS
    if not frame.in_rows and columns > MOST_COLUMNS and few and code_loops.is_gone_over(tx):
        again = as_layers(frame, location_of(tx), "a loop goes over the rows of many numbers")
        if again is not None:
            raise again
    if not is_one(tx):
        return None
    rows = [call(tx, _numbers_of_row, matrix, constant(i)) for i in range(int(value.shape[0]))]
    return ListVariable(rows, mutation_type=ValueMutationNew())


def _numbers_of_row(matrix: Any, i: int) -> Any:
    return matrix[i].tolist()


def picked_first(tx: Any, matrix: Any, key: Any) -> Any:
    """``boundaries[row, i]`` and ``boundaries[row]`` where the documents are those of a row: it is one and the same for
    all uses, and in a loop over its documents it is taken in front of the loop."""
    frame = current_frame()
    if not frame.in_rows or frame.mode is not Mode.SYMBOLIC or not has_integers(example(matrix), 2):
        return None
    row, *rest = (entry.realize() for entry in (key.items if isinstance(key, TupleVariable) else [key]))
    node = matrix.as_proxy().node
    known = row.as_python_constant() if isinstance(row, ConstantVariable) else None
    if type(known) is not int or len(rest) > 1:
        return None

    def pick() -> Any:
        return emit(tx, torch.select, matrix.as_proxy(), 0, known)

    if active.regions:
        region = active.regions[-1]
        vector = region.in_front(("row", node, known), pick) if node < region.indices[0] else None
    else:
        place = (tx.output.current_tracer, node, known)
        vector = active.trace.picked[place] = active.trace.picked.get(place) or pick()
    return vector if vector is None or not rest else vector.call_method(tx, "__getitem__", rest, {})
