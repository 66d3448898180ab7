"""Where the parts begin and end that a row is split into by a list of numbers."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import sympy
import torch

from packpass.capture import plain_parts
from packpass.capture.dynamo import call, emit, expression
from packpass.capture.state import active

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase as Translator
    from packpass.capture.dynamo import VariableTracker as Value


def ends_of_part(tx: Translator, lengths: Value, x: Value, dim: Value, i: Value) -> Value:
    """`plain_parts.ends_of_part`; torch splits a tensor only where the lengths add up to its size."""
    region, node = active.regions[-1], lengths.as_proxy().node

    def made() -> Any:
        ends = emit(tx, torch.cumsum, lengths.as_proxy(), 0)
        size = x.call_method(tx, "size", [dim], {})
        fits = emit(tx, operator.eq, emit(tx, torch.sum, lengths.as_proxy()).as_proxy(), size.as_proxy())
        tx.output.create_proxy("call_function", torch._assert_async, (fits.as_proxy(), NOT_SPLIT), {})
        return ends

    ends = region.in_front(("ends", node, x.as_proxy().node, dim.as_python_constant()), made)
    if not counts_up(sympy.sympify(expression(i)), expression(region.index)):
        return call(tx, plain_parts.part_by_length, ends, lengths, i)
    pad = torch.nn.functional.pad
    boundaries = region.in_front(("boundaries", node), lambda: emit(tx, pad, ends.as_proxy(), (1, 0)))
    return call(tx, plain_parts.part_by_boundaries, boundaries, i)


def counts_up(number: Any, index: Any) -> bool:
    """Is a number made of the loop's index, and of constants that are not negative?"""
    coefficients = sympy.Poly(number, index).all_coeffs() if number.is_polynomial(index) else [None]
    return all(c is not None and c.is_Integer and c >= 0 for c in coefficients)


NOT_SPLIT = "packpass: the lengths that a tensor is split by do not add up to its size"
