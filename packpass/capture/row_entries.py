"""Loops that take the rows of a matrix of sizes by their numbers: ``h, w = sizes[i]``."""

from __future__ import annotations

import operator
from typing import Any

import torch

from packpass._compat import hint_of
from packpass.capture import layers, sized
from packpass.capture import watch as vectors
from packpass.capture.code_loops import line_of_loop
from packpass.capture.dynamo import ListVariable, TensorVariable, call, constant, example
from packpass.capture.frame import Mode
from packpass.capture.origins import INDEX_DTYPES
from packpass.capture.state import active, current_frame, restart
from packpass.capture.watch import MOST_COLUMNS, ROWS, enter_loop_mode, loops_are_sought
from packpass.semantics.binding import example as example_of


def watch(tx: Any, scalar: Any) -> None:
    """A number is about to be read from an entry of a row of sizes, in such a loop. The frame is traced again as
    one that goes over rows of sizes."""
    frame = current_frame()
    if frame.row_sizes or frame.in_rows or not loops_are_sought() or not (active.regions or line_of_loop(tx)):
        return
    value = _matrix_of(scalar.as_proxy().node)
    if value is None or not 1 <= (hint_of(value.shape[1]) or 0) <= MOST_COLUMNS or (hint_of(value.shape[0]) or 0) < 2:
        return
    frame.row_sizes = True
    enter_loop_mode(tx, (hint_of(value.shape[0]) or 0,), rank=2)
    if frame.mode is Mode.SYMBOLIC:
        raise restart("entries of a row of sizes are read by its number")
    frame.row_sizes = False


def _matrix_of(node: torch.fx.Node) -> torch.Tensor | None:
    """The one input of the graph that a tensor was made from, if that is a matrix of integers."""
    seen = [node]
    for made in seen:
        inputs = [n for n in made.all_input_nodes if isinstance(example_of(n), torch.Tensor)]
        seen += [n for n in inputs if n not in seen]
    given: list[torch.Tensor] = [example_of(made) for made in seen if made.op == "placeholder"]
    is_matrix = len(given) == 1 and given[0].dim() == 2 and given[0].dtype in INDEX_DTYPES
    return given[0] if is_matrix else None


def watch_item(tx: Any, scalar: Any) -> None:
    """A number is about to be read from a tensor that holds one."""
    watch(tx, scalar)
    vectors.watch_item(tx, scalar)


def watch_items(tx: Any, values: list[Any]) -> None:
    """Values of which some may be such tensors."""
    for value in values:
        value = value.realize()
        if isinstance(value, TensorVariable) and vectors.is_scalar(value):
            watch_item(tx, value)
        elif isinstance(value, TensorVariable):
            vectors.watch_count(tx, value.as_proxy().node)


def listed(tx: Any, row: Any) -> Any:
    """``sizes[i].tolist()`` as a list of the numbers of the document's row; None if it is none of a matrix."""
    node = row.as_proxy().node
    if not active.regions or not current_frame().row_sizes or node.target not in ROWS or node.kwargs:
        return None
    source, size = node.args[0], example(row).shape
    of_matrix = isinstance(source, torch.fx.Node) and example_of(source).dim() == 2
    if not of_matrix or len(size) != 1 or node < active.regions[-1].indices[-1]:
        return None
    layers.watch_numbers(tx)
    columns = int(size[0])  # an input of many lengths has dimensions of any size; a list has one length
    entries = [call(tx, operator.getitem, row, constant(k)).realize() for k in range(columns)]
    numbers = [sized.number(tx, entry) for entry in entries]
    return None if any(number is None for number in numbers) else ListVariable(numbers)
