"""Between which whole numbers lies what an operation makes, whatever its operands hold."""

from __future__ import annotations

import torch

from packpass.semantics.binding import example
from packpass.semantics.call import Call
from packpass.semantics.pointwise import COPIES

Limits = tuple[int | None, int | None]
"""The least and the largest, both included; None where nothing is known."""
NO_LIMITS: Limits = (None, None)


def limits_of(call: Call, operand: Limits) -> Limits:
    """Of the integers that a call makes; ``operand``: the limits of its first operand."""
    first = call.operands[0].value if call.operands else None
    if len(call.operands) != 1 or first is None or not _is_whole(first) or not _is_whole(call.results[0]):
        return NO_LIMITS
    if call.op in COPIES:
        return operand if call.results[0].dtype is torch.int64 else NO_LIMITS
    if call.op == "remainder":
        by = example(call.get("other"))
        return (0, by - 1) if type(by) is int and by > 0 else NO_LIMITS
    if call.op.startswith("clamp"):
        return _clamped(operand, example(call.get("min")), example(call.get("max")))
    return NO_LIMITS


def _clamped(operand: Limits, low: object, high: object) -> Limits:
    """Where the bounds cross, it is the upper one that counts."""
    least, most = operand
    if type(low) is int:
        least = low if least is None else max(least, low)
        most = None if most is None else max(most, low)
    elif low is not None:
        least, most = NO_LIMITS
    if type(high) is int:
        least = None if least is None else min(least, high)
        most = high if most is None else min(most, high)
    elif high is not None:
        least = None
    return least, most


def _is_whole(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and not value.dtype.is_complex
