"""Loops over the rows of a matrix of sizes: ``for t, h, w in grid_thw``, or over its ``tolist()``.

Each row is a few numbers that only the data knows. What their products, quotients and remainders are for a document
does not matter to the tracer; the pass `ragged_grids` reads it off the captured loop. A matrix with one row is one,
too: torch takes its number of rows for a constant, and the loop is captured with that number.
"""

from __future__ import annotations

from typing import Any

from packpass.capture import plain
from packpass.capture.counts import numbered
from packpass.capture.dynamo import TensorVariable, call, constant
from packpass.capture.frame import Mode
from packpass.capture.hooks import group_is_on
from packpass.capture.origins import made_from
from packpass.capture.state import active, current_frame, restart
from packpass.capture.watch import enter_loop_mode, is_matrix, is_vector, loop_mode_for_symint
from packpass.capture.widths import as_number


def rows_of(tx: Any, matrix: Any) -> Any:
    """The rows of a matrix of integers as a sequence over documents; None if they are not known to be that."""
    if not _is_over_documents(tx, matrix):
        return None
    return call(tx, plain.of_tensor, matrix)


def numbers_of_rows(tx: Any, matrix: Any) -> Any:
    """``matrix.tolist()``: a list of numbers per document."""
    if not _is_over_documents(tx, matrix):
        return None
    # An input of many lengths has dimensions of any size; a program that names the columns goes for one number of them.
    columns = int(matrix.as_proxy().node.meta["example_value"].shape[1])
    return call(tx, plain.of_rows, matrix, constant(columns))


def is_column(vector: Any) -> bool:
    """Is a vector of integers made from one matrix of them, with an entry for each row?"""
    if not is_vector(vector):
        return False
    node = vector.as_proxy().node
    matrix = made_from(node, rank=2)
    return matrix is not None and has_size(node.meta["example_value"], matrix.meta["example_value"].shape[0])


def has_size(vector: Any, size: Any) -> bool:
    """Is a vector as long, without asking what would be a guard?"""
    have = vector.shape[0]
    return type(have) is type(size) and bool(
        have == size if isinstance(have, int) else have.node.expr == size.node.expr
    )


def is_single(tx: Any, vector: Any) -> bool:
    """Has a vector one entry, and the frame a matrix of one row? Then it goes along with that."""
    if not current_frame().single_rows or not is_vector(vector):
        return False
    size = vector.as_proxy().node.meta["example_value"].shape[0]
    return isinstance(size, int) and size == 1


def _is_over_documents(tx: Any, matrix: Any) -> bool:
    return isinstance(matrix, TensorVariable) and is_matrix(matrix) and goes_over_rows(tx, matrix)


def goes_over_rows(tx: Any, rows: Any) -> bool:
    """May a loop over the first dimension of a tensor be captured? The frame is traced again to prepare that."""
    frame = current_frame()
    if frame.mode is Mode.STOCK:
        return False
    if not frame.options.symbolic_loops or not group_is_on("symbolic-loops"):
        return False
    size = rows.as_proxy().node.meta["example_value"].shape[0]
    before = frame.row_sizes
    frame.row_sizes = True  # whatever restarts the trace now
    if isinstance(size, int) or size.node.expr.is_number:
        enter_loop_mode(tx, (int(size),), rank=2)
        found = frame.mode is Mode.SYMBOLIC and int(size) == 1
        frame.single_rows = frame.single_rows or found
    else:
        found = loop_mode_for_symint(tx, size.node.expr)
    if found and not before:
        raise restart("a loop over rows of sizes")
    frame.row_sizes = before or found
    return found


# === Entries of a row as sizes ===============================================================================


def with_numbers(tx: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """The arguments of such a call with ``h`` of ``for t, h, w in grid``, a tensor, as the number it holds; None if
    there is none."""
    if not active.regions or not current_frame().row_sizes:
        return None
    before = [arg.realize() for arg in (*args, *kwargs.values())]
    after = [numbered(arg, lambda entry: as_number(tx, entry)) for arg in before]
    if all(a is b for a, b in zip(after, before, strict=True)):
        return None
    return after[: len(args)], dict(zip(kwargs, after[len(args) :], strict=True))
