"""How a node of a loop body is run on fake tensors, where torch's own way asks for sizes that only the data knows.

Before torch 2.12, two slices with the same data-dependent bounds have sizes of their own, where later torch writes the
size down as an expression of the bounds; before 2.13, writing to a slice asks whether sizes are equal, where later
torch takes it for granted and checks at run time. Without both, no two segments of a document could be added to or
written over each other. Whether a torch needs either is tried out (`packpass.capture.dynamo`).
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from typing import Any

import torch

from packpass import markers
from packpass._compat import (
    asked_of_data,
    current_shape_env,
    either,
    fake_mode_of,
    free_unbacked_symbols,
    guard_or_false,
    hint_of,
    nothing_is_known,
    statically_known_true,
    without_fake_cache,
)
from packpass.capture import assumed
from packpass.capture.dynamo import (
    fake_slice_table,
    fake_slices_are_expressions,
    fake_writes_assume_sizes,
    settled_within,
)
from packpass.capture.frame import LOOP_MODES
from packpass.capture.origins import has_integers
from packpass.capture.questions import question
from packpass.capture.state import active
from packpass.markers.sizes import note_copy
from packpass.semantics import AUTOGRAD_FUNCTION, op_name
from packpass.semantics.sizes import DISTINCT
from packpass.semantics.slotwise import of_one_slot

_SLICE = torch.ops.aten.slice.Tensor
_LOSSES = (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss)


def problem() -> str | None:
    """Why this torch does not fit, or None."""
    if fake_slices_are_expressions() or _SLICE in fake_slice_table():
        return None
    return "slices of documents have unknown sizes, and there is no table of fakes to change that"


def install() -> None:
    """Replace the fake of a slice, for the time that a frame with a captured loop is traced."""
    table = fake_slice_table()
    stock = table.get(_SLICE)
    if stock is None:
        return
    ours = functools.partial(_remembered, stock) if fake_slices_are_expressions() else _slice

    def fake(mode: Any, func: Any, x: Any, *bounds: Any, **kwargs: Any) -> Any:
        if not _tracing_a_loop():
            return stock(mode, func, x, *bounds, **kwargs)
        _settle(x, *bounds, **kwargs)
        return ours(mode, func, x, *bounds, **kwargs)

    table[_SLICE] = fake


def run_node(original: Any, tracer: Any, node: Any, args: Any, kwargs: Any, nnmodule: Any) -> Any:
    """``utils.run_node`` in a frame with a loop."""
    if not fake_writes_assume_sizes():
        if node.target is operator.setitem and _write(*args):
            return None
        if node.op == "call_method" and node.target == "copy_" and _write(args[0], ..., args[1]):
            return args[0]
        if node.target in _LOSSES:
            _rows_match(*args, **kwargs)
    for again in (False, True):
        try:
            with contextlib.suppress(Exception):  # torch says it better
                known = of_one_slot(node, args, kwargs)
                if known is not None:
                    return known
            with without_fake_cache(_mode_of_documents((*args, *kwargs.values()))):
                out = original(tracer, node, args, kwargs, nnmodule)
            _something_is_left(node, args, out)
            if op_name(node) == "clone" and has_integers(args[0], 1):
                note_copy(out, args[0])
            return out
        except Exception as error:
            asked = asked_of_data(error)
            if asked is None:
                raise
            if not again and not active.regions and _some_slots(node, asked, (*args, *kwargs.values())):
                continue
            value = assumed.run(node, args, kwargs) if active.regions else None
            if value is None:
                raise
            return value
    raise AssertionError("the second try returns or raises")


def _some_slots(node: Any, asked: Any, values: Any) -> bool:
    """Where an op asks whether a row that a loop has made is empty, it is taken that nothing is that it is given, and
    checked when the program runs: calls without a slot run as they are written (`packpass.engine.unfit`). False if that
    is known, or something else is asked."""
    wanted = question(asked)
    rows = [row.meta["example_value"] for row in node.graph.find_nodes(op="call_function", target=markers.RAGGED_CAT)]
    joined = {symbol for row in rows for symbol in free_unbacked_symbols(row)}
    if wanted is None or wanted.least != 1 or not wanted.of.free_symbols <= joined:
        return False
    sizes = [size for x in values if isinstance(x, torch.Tensor) for size in x.shape if free_unbacked_symbols(size)]
    open_ = [size for size in sizes if free_unbacked_symbols(size) <= joined and not statically_known_true(size >= 1)]
    for size in open_:
        torch._check(size >= 1)
        torch._check(size != 0)  # torch does not infer it where the size is no symbol of its own
    return bool(open_)


def _mode_of_documents(values: Any) -> Any:
    """The fake mode of the tensors among these, if sizes or bounds among them are numbers that only the data knows."""
    tensors, numbers, queue = list[Any](), list[Any](), list(values)
    while queue:
        value = queue.pop()
        if isinstance(value, (tuple, list)):
            queue += value
        elif isinstance(value, slice):
            queue += (value.start, value.stop)
        elif isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, torch.SymInt):
            numbers.append(value)
    if any(map(free_unbacked_symbols, (*numbers, *tensors))):
        return next((mode for tensor in tensors if (mode := fake_mode_of(tensor)) is not None), None)
    return None


def _something_is_left(node: Any, args: Any, out: Any) -> None:
    """The distinct values of something are at least one. Without that, boundaries without repetitions may have no
    entry at all, and a loop over the documents between them is not known to be over all of them."""
    if op_name(node) not in DISTINCT or not args or not isinstance(args[0], torch.Tensor):
        return
    values = out[0] if isinstance(out, tuple) else out
    if isinstance(values, torch.Tensor) and values.dim() == 1 and _unknown(values.shape[0]):
        if statically_known_true(args[0].numel() >= 1):
            torch._check(values.shape[0] >= 1)


def set_example_value(original: Any, node: Any, value: Any) -> None:
    """The fake results of a node. An autograd.Function may make up sizes for itself, of parts that it puts together
    again: no result has them, and nobody refers to them."""
    if op_name(node) == AUTOGRAD_FUNCTION and active.regions:
        env, results = current_shape_env(), value if isinstance(value, (tuple, list)) else (value,)
        seen = {symbol for result in results for symbol in free_unbacked_symbols(result)}
        pending = env.pending_fresh_unbacked_symbols
        env.ignorable_fresh_unbacked_symbols.extend(symbol for symbol in pending if symbol not in seen)
    original(node, value)


def ignore_views(tracer: Any, node: Any, *rest: Any) -> None:
    """Writing in place to a segment makes autograd compute its view again, with sizes that belong to no result:
    nobody refers to them."""
    if active.regions:
        env = current_shape_env()
        env.ignorable_fresh_unbacked_symbols.extend(env.pending_fresh_unbacked_symbols)


def _tracing_a_loop() -> bool:
    return active.frame is not None and active.frame.mode in LOOP_MODES


def _row(x: Any, at: int, start: Any, end: Any) -> str:
    """The row that is cut, by its length. Rows that are cut into documents, and are as long as each other now, are that
    in this graph, and another graph is made where they are not: torch has a symbol for each, and parts of one document
    would have sizes of their own."""
    size = x.shape[at]
    unknown = any(isinstance(bound, torch.SymInt) and free_unbacked_symbols(bound) for bound in (start, end))
    if not unknown or not isinstance(size, torch.SymInt) or free_unbacked_symbols(size):
        return str(size)
    rows = active.trace.rows
    for number, row in enumerate(rows):
        if str(row) == str(size) or (hint_of(row) == hint_of(size) and size == row):
            return f"row {number}"
    rows.append(size)
    return f"row {len(rows) - 1}"


def _settle(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> None:
    """``cu[:n]``, by a number that the model is given: that it lies in the vector is settled by a guard, or else there
    would be a size of its own for what is cut. Loops over as many documents as there are sizes for need no more."""
    if not has_integers(x, 1) or not isinstance(step, int) or step != 1:
        return
    for bound in (start, end):
        if isinstance(bound, torch.SymInt):
            settled_within(bound, x.shape[0])
    if isinstance(start, torch.SymInt) and isinstance(end, torch.SymInt):
        first, last = hint_of(start), hint_of(end)
        if first is not None and last is not None and first <= last:
            bool(start <= end)


def _remembered(
    stock: Any, mode: Any, func: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    """``aten.slice``, one size for the same bounds: torch makes up another each time where signs are unknown. When a
    graph is traced again, in another epoch, its node must make up its size anew, which is given the old name then."""
    at = dim % x.dim() if x.dim() else 0
    size = (mode.epoch, _row(x, at, start, end), str(start), str(end), str(step)) if x.dim() else ()
    offset = (*size, str(x.storage_offset()), str(x.stride(at))) if x.dim() else ()
    known = active.trace.slices
    if size in known and offset in known:
        sizes, strides = list(x.shape), list(x.stride())
        sizes[at], strides[at] = known[size], strides[at] * step
        return x.as_strided(sizes, strides, known[offset])
    if x.dim() and not x.is_quantized and step == 1 and nothing_is_known(start) and nothing_is_known(end):
        # A dozen questions of torch about signs, of which each takes milliseconds and none has an answer.
        out = _cut_anywhere(mode, x, at)
    else:
        out = stock(mode, func, x, dim, start, end, step)
    if x.dim() and _unknown(out.shape[at]):
        known.setdefault(size, out.shape[at])
        known.setdefault(offset, out.storage_offset())
        if known[size] is not out.shape[at]:
            sizes = list(out.shape)
            sizes[at] = known[size]
            return x.as_strided(sizes, out.stride(), out.storage_offset())
    return out


def _cut_anywhere(mode: Any, x: Any, dim: int) -> Any:
    """A slice of x of which only data knows where it begins and ends, as torch makes it up."""
    size, offset = (mode.shape_env.create_unbacked_symint() for _ in range(2))
    torch._check(size >= 0)
    torch._check(size <= x.shape[dim])
    torch._check(offset >= 0)
    sizes = list(x.shape)
    sizes[dim] = size
    return x.as_strided(sizes, x.stride(), offset)


# === Older torch =============================================================================================


def _unknown(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def _position(size: Any, index: Any) -> Any:
    """Where a slice of ``size`` slots begins or ends that is written with ``index``; None if that depends on data."""
    if guard_or_false(index >= 0):
        return index if guard_or_false(index <= size) else torch.sym_min(index, size)
    if guard_or_false(index < -size):
        return 0
    if guard_or_false(index < 0):
        return index + size if guard_or_false(index >= -size) else torch.sym_max(index + size, 0)
    return None


def _length(first: Any, last: Any, step: int) -> Any:
    if guard_or_false(last >= first):
        return (last - first + step - 1) // step
    if guard_or_false(first >= last):
        return 0
    return (torch.sym_max(last - first, 0) + step - 1) // step


def _slice(mode: Any, func: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """``aten.slice``, its size an expression of the bounds."""
    if x.dim() == 0:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    if not -x.dim() <= dim < x.dim():
        raise IndexError(f"Dimension out of range (got {dim}, the tensor has {x.dim()})")
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    dim %= x.dim()
    _row(x, dim, start, end)
    sizes, strides = list(x.size()), list(x.stride())
    whole = sizes[dim]
    first = 0 if start is None else _position(whole, start)
    last = whole if end is None or statically_known_true(end == sys.maxsize) else _position(whole, end)
    offset: Any = None
    if first is not None and last is not None:
        sizes[dim] = _length(first, last, step)
        offset = x.storage_offset() + first * strides[dim]
    else:
        sizes[dim], offset = (mode.shape_env.create_unbacked_symint() for _ in range(2))
        torch._check(sizes[dim] >= 0)
        torch._check(sizes[dim] <= whole)
        torch._check(offset >= 0)
    strides[dim] = strides[dim] * step
    return x.as_strided(sizes, strides, offset)


def _write(x: Any, key: Any, value: Any) -> bool:
    """``x[key] = value``, taking sizes that may differ to be equal or 1; False if nothing is unknown."""
    if not isinstance(value, torch.Tensor) or not isinstance(x, torch.Tensor) or not value.dim():
        return False
    view = x[key]
    if view.dim() < value.dim() or not any(_unknown(s) for s in (*view.shape, *value.shape)):
        return False
    if view._base is None and view is not x:
        return False  # not a view: an index_put
    for have, want in zip(reversed(value.shape), reversed(view.shape), strict=False):
        torch._check(either(have == 1, have == want))
        if _unknown(have) and not _unknown(want):
            torch._check(have == want)  # as later torch takes for granted
    view.copy_(value.sum().to(view.dtype).expand(view.shape))
    return True


def _rows_match(input: Any, target: Any, *args: Any, **kwargs: Any) -> None:
    """What the losses check, as a check at run time."""
    if input.dim() == 2 and target.dim() >= 1 and any(_unknown(s) for s in (*input.shape, *target.shape)):
        torch._check(input.shape[0] == target.shape[0])
