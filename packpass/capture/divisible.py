"""Cutting a document into equal parts: ``chunk``, ``split`` and ``reshape`` of lengths that must divide.

Code for context parallelism cuts every document in ``2 * cp`` chunks and writes ``reshape(cp, length // cp, ...)`` or
``split(length // cp)``.
Whether a length of unknown value divides is a question that Dynamo cannot answer, so inside a loop over documents
marker ops stand in for torch's own: `markers.CHUNK` has exactly as many equal parts as asked for, `markers.RESHAPE`
does not count elements. A pass that understands the body puts an op in its place that checks the lengths and names
the document; where none does, the frame is traced again as stock torch would, because ``torch.chunk`` of a length
that does not divide gives other parts than the ones traced.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from packpass import markers
from packpass._compat import statically_known_true
from packpass.capture import spans
from packpass.capture.dynamo import (
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    constant,
    emit,
    example,
)
from packpass.capture.state import active, current_frame
from packpass.capture.watch import is_unknown

FUNCTIONS = {torch.chunk: "chunk", torch.reshape: "reshape", torch.unflatten: "unflatten"}
METHODS = frozenset({*FUNCTIONS.values(), "view"})
EQUAL_PARTS = "a document is cut in equal parts, which not every length allows"
"""What speaks against a replay. Beside a rewritten graph, which checks the lengths, it may run all the same."""


def call(tx: Any, name: str, self: Any = None, *args: Any, **kwargs: Any) -> Any:
    """The call through a marker op; None if stock torch can trace it."""
    tensor = kwargs.pop("input", self)
    tensor = tensor.realize() if tensor is not None else None
    if not active.regions or not isinstance(tensor, TensorVariable):
        return None
    fake = example(tensor)
    if not isinstance(fake, torch.Tensor) or not any(is_unknown(s) for s in fake.shape):
        return None
    if name == "chunk":
        return _chunk(tx, tensor, fake, *args, **kwargs)
    if name == "unflatten":
        return _unflatten(tx, tensor, fake, *args, **kwargs)
    if set(kwargs) - {"shape"}:
        return None
    return _reshape(tx, tensor, fake, args or (kwargs["shape"],))


def _constant(value: Any) -> Any:
    value = value.realize()
    return value.as_python_constant() if value.is_python_constant() else None


def _chunk(tx: Any, tensor: Any, fake: torch.Tensor, chunks: Any = None, dim: Any = None) -> Any:
    count = _constant(chunks) if chunks is not None else None
    at = 0 if dim is None else _constant(dim)
    if type(count) is not int or type(at) is not int or count < 1 or not -fake.dim() <= at < fake.dim():
        return None
    if not is_unknown(fake.shape[at]):
        return None
    _not_replayable()
    args = (tensor.as_proxy(), count, at % fake.dim())
    parts = emit(tx, markers.CHUNK, *args)
    active.trace.chunks[parts] = args
    return parts


def split(tx: Any, tensor: Any, size: Any, dim: Any = None) -> Any:
    """``document.split(length // k)`` into k equal parts; None if it is something else."""
    tensor, size = tensor.realize(), size.realize()
    if not active.regions or not isinstance(tensor, TensorVariable) or not isinstance(size, SymNodeVariable):
        return None
    fake, at = example(tensor), 0 if dim is None else _constant(dim)
    if type(at) is not int or not -fake.dim() <= at < fake.dim() or not is_unknown(fake.shape[at]):
        return None
    count = _times(fake.shape[at], size.sym_num)
    if count is None:
        return None
    _not_replayable()
    parts = emit(tx, markers.CHUNK, tensor.as_proxy(), count, at % fake.dim())
    active.trace.chunks[parts] = None  # one of them alone is another slice than that of chunk, where nothing divides
    return parts


def sections(tx: Any, tensor: Any, count: Any, dim: Any = None) -> Any:
    """``torch.tensor_split(document, k)`` into k equal parts; None if it is something else."""
    parts = call(tx, "chunk", tensor, count, *([] if dim is None else [dim]))
    if parts is not None:
        active.trace.chunks[parts] = None  # as above
    return parts


def _times(whole: Any, part: Any) -> int | None:
    """How often ``part`` goes into ``whole``, where it does: the same number for every length but 0; None otherwise."""
    length, size = whole.node.expr, part.node.expr
    if type(size).__name__ == "FloorDiv" and size.args[0] == length and size.args[1].is_Integer:
        return int(size.args[1])
    quotient = sympy.cancel(length / size)
    return int(quotient) if quotient.is_Integer and quotient > 0 else None


def piece(tx: Any, parts: Any, key: Any) -> Any:
    """``document.chunk(k)[j]``, which fails where a document has fewer pieces; None if it is something else."""
    args = active.trace.chunks.get(parts.realize()) if active.regions else None
    at = None if args is None else _constant(key)
    if args is None or type(at) is not int or not 0 <= at < args[1]:
        return None
    parts = parts.realize()
    if parts not in active.trace.pieces:
        active.trace.pieces[parts] = emit(tx, markers.PIECES, *args)
    return active.trace.pieces[parts].items[at]


def _unflatten(tx: Any, tensor: Any, fake: torch.Tensor, dim: Any = None, sizes: Any = None, **kwargs: Any) -> Any:
    at = _constant(dim) if dim is not None else None
    if type(at) is not int or not isinstance(sizes, (ListVariable, TupleVariable)):
        return None
    at %= fake.dim()
    if not is_unknown(fake.shape[at]):
        return None
    whole = [tensor.call_method(tx, "size", [constant(d)], {}) for d in range(fake.dim())]
    return _reshape(tx, tensor, fake, [*whole[:at], *sizes.items, *whole[at + 1 :]])


def _reshape(tx: Any, tensor: Any, fake: torch.Tensor, sizes: Any) -> Any:
    entries = [s.realize() for s in sizes]
    if len(entries) == 1 and isinstance(entries[0], (ListVariable, TupleVariable)):
        entries = [s.realize() for s in entries[0].items]
    if not all(isinstance(e, SymNodeVariable) or type(_constant(e)) is int for e in entries):
        return None
    values = [e.sym_num if isinstance(e, SymNodeVariable) else _constant(e) for e in entries]
    if _counts_match(fake, values):
        return None
    _not_replayable()
    given = [e.as_proxy() for e in entries]
    left = _left_over(fake, values) or spans.left_over(fake, values)
    if left is not None:
        given = [left if type(v) is int and v == -1 else g for v, g in zip(values, given, strict=True)]
    args = (tensor.as_proxy(), given)
    return emit(tx, markers.RESHAPE, *args)


def _left_over(fake: torch.Tensor, sizes: list[Any]) -> int | None:
    """What -1 stands for, if it is a number: a size that is lost here would be unknown in all that follows."""
    if any(type(size) is int and size == 0 for size in sizes):
        return None
    have, unknown = 1, list[Any]()
    for size in fake.shape:
        if isinstance(size, int):
            have *= size
        else:
            unknown.append(size)
    for size in sizes:
        if isinstance(size, int):
            if size > 0 and have % size:
                return None
            have = have // size if size > 0 else have
        else:
            same = next((i for i, s in enumerate(unknown) if statically_known_true(s == size)), None)
            if same is None:
                return None
            unknown.pop(same)
    return have if not unknown else None


def _counts_match(fake: torch.Tensor, sizes: list[Any]) -> bool:
    """Is it certain that the sizes hold as many elements as the tensor, so that stock torch asks nothing?"""
    elements: Any = 1
    for size in fake.shape:
        elements = elements * size
    wanted: Any = 1
    for size in sizes:
        if not (type(size) is int and size == -1):
            wanted = wanted * size
    if any(type(size) is int and size == -1 for size in sizes):
        return type(wanted) is int and wanted > 0 and bool(statically_known_true(elements % wanted == 0))
    return bool(statically_known_true(elements == wanted))


def _not_replayable() -> None:
    current_frame().not_replayable = current_frame().not_replayable or EQUAL_PARTS
