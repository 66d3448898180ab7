"""One row of a table for each document, with its dimension kept: ``queries[:, i : i + 1]``.

A slice stops where the table does, so that for Dynamo it may have no row at all, and a size that nothing else has. In a
loop over documents that the table is long enough for it is ``select`` and ``unsqueeze``, a view of the same row.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.capture.dynamo import SliceVariable, SymNodeVariable, TupleVariable, constant, example
from packpass.capture.state import active


def single_row(tx: Any, tensor: Any, key: Any) -> Any:
    """The row that an index takes out as a slice of one; None if it does something else."""
    fake = example(tensor)
    if not active.regions or not isinstance(fake, torch.Tensor):
        return None
    entries: list[Any] = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else [key]
    own = [i for i, entry in enumerate(entries) if isinstance(entry, SliceVariable) and _of_one(entry)]
    if len(own) != 1 or not all(isinstance(entry, SliceVariable) for entry in entries[: own[0]]):
        return None
    dim, start = own[0], entries[own[0]].items[0].realize()
    if dim >= fake.dim() or not _has_rows(fake.shape[dim], start):
        return None
    row = tensor.call_method(tx, "select", [constant(dim), start], {})
    kept = row.call_method(tx, "unsqueeze", [constant(dim)], {})
    rest = [SliceVariable([constant(None)] * 3, tx) if i == dim else entry for i, entry in enumerate(entries)]
    if all(isinstance(entry, SliceVariable) and _is_whole(entry) for entry in rest):
        return kept
    return kept.call_method(tx, "__getitem__", [TupleVariable(rest)], {})


def _of_one(entry: Any) -> bool:
    """Is it ``[i + k : i + k + 1]``, where i is the number of the open loop's document?"""
    start, stop, step = (part.realize() for part in entry.items)
    if not isinstance(start, SymNodeVariable) or not isinstance(stop, SymNodeVariable):
        return False
    if not step.is_python_constant() or step.as_python_constant() not in (None, 1):
        return False
    first, last = (sympy.sympify(part.sym_num.node.expr) for part in (start, stop))
    ahead = first - _index()
    return last - first == 1 and bool(ahead.is_Integer) and bool(ahead >= 0)


def _index() -> Any:
    return active.regions[-1].index.sym_num.node.expr


def _has_rows(size: Any, start: Any) -> bool:
    """Has the table a row for every document? Settled by a guard, as adding two tensors of these sizes would."""
    region = active.regions[-1]
    length = region.length.sym_num if isinstance(region.length, SymNodeVariable) else None
    length = region.length.as_python_constant() if length is None else length
    ahead = int(sympy.sympify(start.sym_num.node.expr) - _index())
    enough = length + ahead <= size
    if isinstance(enough, bool) or free_unbacked_symbols(length) or free_unbacked_symbols(size):
        return bool(statically_known_true(enough))
    return bool(enough)


def _is_whole(entry: Any) -> bool:
    return all(part.is_python_constant() and part.as_python_constant() is None for part in entry.items)
