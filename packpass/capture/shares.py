"""What the documents add to a total, one share or several of each: ``total = total + a - b``."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass.capture.dynamo import ConstantVariable, TensorVariable
from packpass.semantics import Call, call_of

IN_PLACE_OF = {operator.add: operator.iadd, operator.sub: operator.isub}
IN_PLACE_OF |= {add: add for add in (operator.iadd, operator.isub)}
IN_PLACE = (operator.iadd, operator.isub)
EXTREMES = {torch.maximum: "amax", torch.minimum: "amin"}
"""What keeps the larger or the smaller of two -> the method that does so along a dimension."""


def _adds(call: Call) -> Any:
    """What a total becomes in a call, as a function of it and what is added; None for any other operation."""
    if call.op in ("add", "sub"):
        plain = {"add": (operator.add, operator.iadd), "sub": (operator.sub, operator.isub)}[call.op]
        return plain[call.in_place] if call.get("alpha", default=1) == 1 else None
    larger, smaller = call.op in ("maximum", "max"), call.op in ("minimum", "min")
    if not (larger or smaller) or "other" not in call.arguments or call.in_place:
        return None
    # Of two that are equal each gets half of the gradient, which depends on the order.
    if call.results[0].requires_grad:
        return None
    return torch.maximum if larger else torch.minimum


def tensor_node(value: Any) -> fx.Node | None:
    return value.as_proxy().node if isinstance(value, TensorVariable) else None


def number_in(value: Any) -> Any:
    return value.as_python_constant() if isinstance(value, ConstantVariable) else None


@dataclasses.dataclass(frozen=True)
class Step:
    """``node`` adds ``share``, a node or a number, to what there is: ``add`` says how."""

    node: fx.Node
    add: Any
    share: Any


def added(value: Any, before: Any) -> list[Step] | None:
    """How the tensor ``value`` is made of ``before`` by adding and subtracting others, or numbers; None if it is not.
    All of it in place, or nothing."""
    node, known = tensor_node(value), tensor_node(before)
    known = number_in(before) if known is None else known
    steps = _steps(node, known, _MOST) if node is not None and type(known) in (int, float, fx.Node) else None
    if steps is None:
        return None
    later = steps if type(known) is fx.Node else steps[1:]  # nothing is added to a number in place
    in_place = {step.add in IN_PLACE for step in later}
    extremes = {step.add if step.add in EXTREMES else None for step in steps}
    return steps if len(in_place) <= 1 and len(extremes) == 1 else None


_MOST = 8
"""So many shares of one document are looked for."""


def _steps(node: fx.Node, known: Any, most: int) -> list[Step] | None:
    call = call_of(node) if most else None
    if call is None or call.several or not isinstance(call.results[0], torch.Tensor):
        return None
    add, first, second = _adds(call), call.get("input"), call.get("other")
    sides = [(first, second)] if add in (operator.sub, *IN_PLACE) else [(first, second), (second, first)]
    if add is None:
        return None
    for total, share in sides:
        tensor = isinstance(share, fx.Node) and isinstance(share.meta.get("example_value"), torch.Tensor)
        if not tensor and type(share) not in (int, float):
            continue
        earlier: list[Step] | None = [] if is_same(total, known) else None
        if earlier is None and isinstance(total, fx.Node):
            earlier = _steps(total, known, most - 1)
        if earlier is not None:
            return [*earlier, Step(node, add, share)]
    return None


def is_same(argument: Any, known: Any) -> bool:
    return argument is known or (type(argument) is type(known) and type(known) is not fx.Node and argument == known)
