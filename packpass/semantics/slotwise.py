"""The fake value of a call that treats whole numbers slot by slot: worked out for one slot.

Torch works out what ``a // b`` of two rows of symbolic length is by taking the operation to pieces, of which each asks
for sizes: hundreds of questions for one answer that is known beforehand. A row has the sizes of its operands, lies in
memory without gaps, and its dtype is that of the operation on a single slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from packpass._compat import fake_mode_of
from packpass.semantics.call import invoke
from packpass.semantics.meaning import is_one
from packpass.semantics.names import op_name
from packpass.semantics.pointwise import NEGATIONS, PROMOTING

_ALONG_A_ROW = frozenset({"cumsum"})
"""What gives a vector as many numbers as it has."""
_KNOWN = (PROMOTING | NEGATIONS | _ALONG_A_ROW | {"neg", "abs"}) - {"div", "float_power"}
_NUMBERS = (bool, int, torch.SymInt)


def of_one_slot(node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The fake value of a call, made in the fake mode that is on; None if the call has to be run for it.

    Only of integers and booleans, which have no gradient, whose sizes are the same or plainly 1, and of ``logsumexp``.
    ``args`` and ``kwargs``: the fake values of the node's arguments.
    """
    name = op_name(node)
    if name == "logsumexp" and args[0].dtype.is_floating_point:  # whose definition asks whether there is a slot
        return torch.sum(*args, **kwargs)
    if name not in _KNOWN or kwargs.keys() - {"min", "max", "dim"}:
        return None
    given = [*args, *kwargs.values()]
    rows = [value for value in given if isinstance(value, torch.Tensor)]
    if not all(isinstance(value, (torch.Tensor, *_NUMBERS)) for value in given) or not all(map(_is_whole, rows)):
        return None
    if name == "where" and len(given) != 3:  # of a condition alone it is where that holds
        return None
    if name in _ALONG_A_ROW and [row.dim() for row in rows] != [1]:
        return None
    sizes = _broadcast([row.shape for row in rows])
    if sizes is None or not any(isinstance(size, torch.SymInt) for size in sizes):
        return None
    if len(sizes) > 1 and not all(map(_is_dense, rows)):  # a vector is made without gaps, whatever it is made of
        return None
    dtype, devices = _dtype(node, name, args, kwargs), {row.device for row in rows}
    if dtype is None or len(devices) != 1:
        return None
    with fake_mode_of(rows[0]):
        return torch.empty(sizes, dtype=dtype, device=devices.pop())


_dtypes: dict[Any, torch.dtype | None] = {}
"""What has been worked out: it goes by the operation, by dtypes and ranks (numbers without dimensions count less), and
by which of its operands are numbers, whatever these are."""


def _dtype(node: fx.Node, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of the result; None if it has another rank than the widest operand."""
    given = [*args, *kwargs.values()]
    key = name, len(args), tuple(kwargs), tuple(map(_kind, given))
    if key not in _dtypes:
        small = [_one_slot(value) for value in given]
        made = invoke(node, small[: len(args)], dict(zip(kwargs, small[len(args) :], strict=True)))
        rank = max(value.dim() for value in given if isinstance(value, torch.Tensor))
        _dtypes[key] = made.dtype if isinstance(made, torch.Tensor) and made.dim() == rank else None
    return _dtypes[key]


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim(), value.device.type
    return int if isinstance(value, torch.SymInt) else type(value)


def _is_whole(row: torch.Tensor) -> bool:
    if fake_mode_of(row) is None:  # a kind of its own, such as a nested tensor, whose results are of that kind
        return False
    return not (row.dtype.is_floating_point or row.dtype.is_complex or row.requires_grad)


def _is_dense(row: torch.Tensor) -> bool:
    """Are these numbers in row-major order without gaps, as far as sizes say so at a glance?"""
    expected: Any = 1
    for size, stride in zip(reversed(row.shape), reversed(row.stride()), strict=True):
        if is_one(size):
            continue
        if not isinstance(stride, int) or stride != expected:
            return False
        expected = expected * size if isinstance(size, int) else None
    return True


def _broadcast(shapes: list[Any]) -> list[Any] | None:
    """The sizes of the result; None if that is a question."""
    rank = max((len(shape) for shape in shapes), default=0)
    sizes: list[Any] = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if is_one(sizes[d]):
                sizes[d] = size
            elif not is_one(size) and not _same(size, sizes[d]):
                return None
    return sizes


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return type(a) is type(b) and bool(a == b)
    return bool(a.node.expr == b.node.expr)


def _one_slot(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.new_empty((1,) * value.dim())
    return 1 if isinstance(value, torch.SymInt) else value
