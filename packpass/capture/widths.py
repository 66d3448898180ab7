"""Padding every document to one width: ``F.pad(x[s:e], (0, width - (e - s)))``.

The length of ``x[s:e]`` is a number of its own for Dynamo (a slice stops where the row does), so that the sum of it
and the padding is not known to be ``width``, and documents that are all as wide could not be stacked. `markers.PAD`
takes it for that. The pass that rewrites the loop proves it; where none does, the frame is traced again as stock torch
would.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from packpass import markers
from packpass.capture import sized
from packpass.capture.dynamo import (
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    constant,
    emit,
    example,
)
from packpass.capture.dynamo import call as traced
from packpass.capture.state import active, current_frame
from packpass.capture.watch import is_scalar, is_unknown


def call(tx: Any, tensor: Any = None, pad: Any = None, mode: Any = None, value: Any = None, **kwargs: Any) -> Any:
    """The call through the marker; None if it pads otherwise."""
    given = {"mode": mode, "value": value, **kwargs}
    tensor, pad = kwargs.pop("input", tensor), given.pop("pad", pad)
    if not active.regions or tensor is None or pad is None or set(given) - {"mode", "value", "input"}:
        return None
    tensor, amounts = tensor.realize(), pad.realize()
    if not isinstance(tensor, TensorVariable) or not isinstance(amounts, (ListVariable, TupleVariable)):
        return None
    entries = [as_number(tx, entry.realize()) for entry in amounts.items]
    constants = [_constant(given.get(name)) for name in ("mode", "value")]
    if (
        constants[0] not in ((True, None), (True, "constant"))
        or not constants[1][0]
        or not isinstance(example(tensor), torch.Tensor)
    ):
        return None
    width = _width(entries, example(tensor))
    if width is None:
        # Numbers in the place of tensors that hold them.
        read = any(one is not other.realize() for one, other in zip(entries, amounts.items, strict=True))
        rest = [constant("constant"), constant(constants[1][1])]
        return traced(tx, torch.nn.functional.pad, tensor, TupleVariable(entries), *rest) if read else None
    current_frame().not_replayable = "documents are padded to one width, which is not proven"
    proxies = [entry.as_proxy() for entry in entries]
    return emit(tx, markers.PAD, tensor.as_proxy(), proxies, "constant", constants[1][1], width)


def as_number(tx: Any, entry: Any) -> Any:
    """An integer tensor without dimensions as the number it holds; anything else as it is."""
    is_tensor = isinstance(entry, TensorVariable) and is_scalar(entry)
    return sized.taken(tx, entry) if is_tensor else entry


def as_numbers(tx: Any, row: Any) -> Any:
    """A tuple or list with the integer tensors without dimensions among its entries as the numbers they hold."""
    if not isinstance(row, (ListVariable, TupleVariable)) or type(row.items) is not list:
        return row
    entries = [entry.realize() for entry in row.items]
    if not any(isinstance(entry, TensorVariable) for entry in entries):
        return row
    made = [as_number(tx, entry) for entry in entries]
    if any(isinstance(entry, TensorVariable) for entry in made):
        return row
    return TupleVariable(made) if isinstance(row, TupleVariable) else ListVariable(made)


def _constant(value: Any) -> tuple[bool, Any]:
    """``(is it known, what it is)``; nothing given is None."""
    value = None if value is None else value.realize()
    if value is None or not value.is_python_constant():
        return value is None, None
    return True, value.as_python_constant()


def _width(entries: list[Any], fake: torch.Tensor) -> Any:
    """What one dimension of unknown size is padded to, on one side: the part of the amount that all documents share."""
    numbers = [i for i, entry in enumerate(entries) if isinstance(entry, SymNodeVariable)]
    rest = [entry for i, entry in enumerate(entries) if i not in numbers]
    if len(numbers) != 1 or not all(_constant(entry) == (True, 0) for entry in rest):
        return None
    if numbers[0] // 2 >= fake.dim() or not is_unknown(fake.shape[-1 - numbers[0] // 2]):
        return None
    expression = sympy.sympify(entries[numbers[0]].sym_num.node.expr)
    before = _numbers_before()
    own = [s for s in expression.free_symbols if s not in {known for e in before for known in e.free_symbols}]
    width, lengths = expression.as_independent(*own, as_Add=True)
    if not own or lengths == 0 or (width.is_Integer and width < 1):
        return None
    return int(width) if width.is_Integer else before.get(width)


def _numbers_before() -> dict[Any, Any]:
    """Expression -> proxy of the numbers in the graph before the open loop."""
    region = active.regions[-1]
    begin = region.indices[0]
    found = {}
    for node in begin.graph.nodes:
        if node is begin:
            break
        value = node.meta.get("example_value")
        if isinstance(value, torch.SymInt):
            found[value.node.expr] = region.tx.output.current_tracer.proxy(node)
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                found.setdefault(size.node.expr, None)
    return found
