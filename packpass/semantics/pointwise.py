"""Operations on every slot by itself: those that torch tags as such, and what it does not tag."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics.call import Call, call_of
from packpass.semantics.meaning import Entry, Meaning, Relating, Traits, is_one, meaning
from packpass.semantics.names import base_name, op_name

FAMILY = "pointwise"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Tagged as pointwise, and not: one result for all slots; random numbers; a dropped channel.
_NOT = frozenset(_words("equal rrelu rrelu_with_noise native_dropout_backward"))
# Pointwise, and not tagged: composites, casts, copies that may be views.
_UNTAGGED = _words(
    """
    to clone detach alias contiguous conj resolve_conj resolve_neg real imag isclose isreal log_sigmoid hardswish
    softsign tanhshrink floor_divide masked_fill where requires_grad_ complex polar special_ndtr rsub dropout
    alpha_dropout
    _to_copy logical_and alias_copy unravel_index
    """
)
# Their gradient at a slot that nobody reads is 0 whatever the slot holds: they copy, add, or choose.
LINEAR = frozenset(
    _words("add sub rsub neg positive clone detach alias contiguous to conj resolve_conj resolve_neg real imag copy")
)
COPIES = frozenset(_words("clone detach alias contiguous to _to_copy lift_fresh positive"))
"""The values of their input, perhaps as another dtype, on another device, or in another memory."""
ORDERINGS = frozenset(_words("lt le gt ge"))
"""Comparisons that ask which of two is larger."""
COMPARISONS = ORDERINGS | {"eq", "ne"}
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
"""``a < b`` is ``b > a``."""
NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
"""``a < b`` is not ``a >= b``."""
EXTREMES: dict[str, Any] = {"minimum": min, "maximum": max}
WHOLE_SUMS: dict[str, Any] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
"""Sums and products of two integers -> Python's functions."""
OF_INTEGERS: dict[str, Any] = {"floor_divide": operator.floordiv, "remainder": operator.mod}
"""Operations of two integers that are not sums -> Python's functions."""
ON_POSITIONS = {
    **{"add": "total", "sub": "difference", "remainder": "rounded down", "fmod": "rounded to 0"},
    **{"minimum": "least", "maximum": "most", "clamp_max": "least", "clamp_min": "most"},
}
"""What operations make of two whole numbers of which it is known how large they are."""
ARITHMETIC = frozenset(_words("add sub mul div floor_divide remainder neg pow sqrt maximum minimum"))
"""What Python and torch do in the same way on numbers and on tensors of them."""
WHOLE_ARITHMETIC = frozenset(_words("add sub mul maximum minimum"))
"""Of these, what makes whole numbers of whole numbers, no larger than their sum or product."""
DIFFERENCES = frozenset(_words("sub rsub bitwise_xor logical_xor"))
"""0, or False, where two operands are the same."""
NEGATIONS = frozenset(_words("bitwise_not logical_not"))
SCALING = frozenset(_words("mul div floor_divide remainder fmod pow bitwise_left_shift bitwise_right_shift"))
"""What makes k numbers, or one in k, of one."""
PROMOTING = COMPARISONS.union(
    _words(
        """
        add sub rsub mul div floor_divide remainder fmod pow float_power minimum maximum fmin fmax atan2 hypot copysign
        logaddexp clamp clamp_min clamp_max bitwise_and bitwise_or bitwise_xor logical_and logical_or logical_xor where
        """
    )
)
"""Operations that compute in the dtype to which their operands (but for a condition) are promoted."""
_CHOOSING = {"where": ("input", "other"), "masked_fill": ("input", "value")}
DIVIDING = frozenset(_words("div floor_divide remainder fmod"))


@functools.cache
def is_pointwise(op: str) -> bool:
    """Does torch, or this file, say that an operation treats every slot by itself?"""
    return op in _UNTAGGED or (op not in _NOT and any(torch.Tag.pointwise in tags for tags in _tags(op)))


@functools.cache
def broadcasts(op: str, argument: str) -> bool:
    """May a tensor of any shape stand for this argument of a pointwise operation?"""
    if argument == "input":
        return True
    if (op, argument) == ("masked_fill", "value"):
        return False  # a tensor without axes
    packet = getattr(torch.ops.aten, op, None)
    schemas = [] if packet is None else [getattr(packet, name)._schema for name in packet.overloads()]
    return any(a.name == argument and "Tensor" in str(a.type) for schema in schemas for a in schema.arguments)


def whole_divisor(node: fx.Node, second: Any, rounds_down: bool = False) -> int | None:
    """By what a node divides a whole number of 0 or more, rounding down, if its second operand is the number
    ``second``: ``x // n``, ``div(x, n, rounding_mode=...)``, ``x >> n``. None if it does something else.

    ``rounds_down``: of numbers below 0 as well, which ``rounding_mode="trunc"`` does not."""
    if type(second) is not int:
        return None
    op = op_name(node)
    if op == "bitwise_right_shift":
        return 2**second if 0 <= second < 32 else None
    modes = ("floor",) if rounds_down else ("floor", "trunc")
    rounds = op == "floor_divide" or (op == "div" and node.kwargs.get("rounding_mode") in modes)
    return second if rounds and second > 0 else None


def slot_by_slot(node: fx.Node) -> bool:
    """Does a node do the same to every slot of its operands, in place or not, or give memory of their form?"""
    op = base_name(op_name(node))
    call = call_of(node)
    return is_pointwise(op if call is None else call.op) or op.endswith("_like")


@functools.cache
def _tags(op: str) -> tuple[frozenset[torch.Tag], ...]:
    packet = getattr(torch.ops.aten, op, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return ()
    return tuple(frozenset(getattr(packet, name).tags) for name in packet.overloads())


def tagged(call: Call) -> bool:
    """Is this very overload pointwise? (``max`` of two tensors is, ``max`` along a dimension is not.)"""
    if call.op in _NOT:
        return False
    if call.op == "where":  # with numbers it is not tagged; with a condition alone it says where that is
        return "other" in call.arguments
    if call.op in _UNTAGGED:
        return True
    if call.overload is not None and call.overload._schema.name == f"aten::{call.op}":
        return torch.Tag.pointwise in call.overload.tags
    return is_pointwise(call.op)


def pointwise(call: Call) -> Meaning | None:
    """Operands line up from the right; those of one slot meet all."""
    if call.op == "where" and "other" not in call.arguments:
        return None  # the places where it holds
    if not tagged(call) or not call.operands or any(not hasattr(r, "shape") for r in call.results):
        return None
    relations = []
    for item in range(len(call.results)):
        relating = Relating(call, item)
        relating.from_result()
        for k, operand in enumerate(call.operands):
            if operand.argument not in call.unread:
                relating.aligned(k)
        relations.append(relating.done())
    return meaning(FAMILY, relations, traits(call))


def traits(call: Call) -> Traits:
    """What copies, adds or chooses has no gradient of its own; integer division and shifts look at what they get."""
    read = frozenset(o.argument for o in call.operands if o.argument not in call.unread)
    zero: frozenset[str] = frozenset()
    if call.op in LINEAR:
        zero = read
    elif call.op in _CHOOSING:
        zero = read & frozenset(_CHOOSING[call.op])
    elif call.op in ("mul", "div") and read == {"input"} and not isinstance(call.get("other"), fx.Node):
        zero = read  # by a constant: a product of two tensors is 0 * inf in slots that hold garbage
    divides = call.op in DIVIDING and isinstance(call.get("other"), fx.Node) and _integral(call)
    raises = frozenset({"other"} if divides else ())
    random = call.op in ("dropout", "alpha_dropout") and bool(call.get("training", "train", default=True))
    return Traits(random=random, raises=raises, zero_gradient=zero)


def _integral(call: Call) -> bool:
    return not any(r.is_floating_point() or r.is_complex() for r in call.results)


def _prelu(call: Call) -> Meaning | None:
    """``weight`` has one slot, or one for every slot of axis 1."""
    relating = Relating(call)
    relating.from_result()
    relating.aligned(0)
    weight = call.operands[1].value
    if weight.dim() > 1:
        return None
    along = relating.result[1] if len(relating.result) > 1 else ()
    relating.axes[1] = tuple(relating.along(size, () if is_one(size) else along) for size in weight.shape)
    return meaning(FAMILY, relating.done())


ENTRIES: dict[str, Entry] = {**dict.fromkeys(_UNTAGGED, pointwise), "prelu": _prelu}
"""What is not here and `is_pointwise` has `pointwise` for its entry."""
