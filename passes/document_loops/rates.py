"""Whole numbers that are a share of a number of the document: ``int(n * 0.8)``, ``math.ceil(n / 3)``; and functions of
Python on real numbers, ``math.log(n)``.

Python multiplies and divides in 64 bits of floating point and rounds then; so does every entry of a vector. Shares are
not negative, and nothing is added to them before they are rounded: a device may do both at once, with more bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.markers.reals import REAL
from packpass.semantics import example, op_name
from packpass.semantics.integers import ROUNDING, SMALL
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import DIVIDING
from passes.document_loops.documents import as_tensor_dtype, as_term, cast, is_per_document, number
from passes.document_loops.integers import Affine, Derived, Share
from passes.document_loops.machine import OPAQUE, Number
from passes.document_loops.terms import Apply

if TYPE_CHECKING:
    from passes.document_loops.machine import Machine


def share(machine: Machine, node: fx.Node) -> Affine | None:
    """The number that a call makes by rounding a share of one; None for any other call."""
    how = ROUNDING.get(str(node.target) if node.op == "call_method" else op_name(node) or "")
    if how is None or len(node.args) != 1 or node.kwargs or not isinstance(example(node), (int, torch.SymInt)):
        return None
    steps: list[tuple[bool, float]] = []
    arg: Any = node.args[0]
    while isinstance(arg, fx.Node) and not isinstance(example(arg), (int, torch.SymInt)):
        step = _step(arg)
        if step is None:
            return None
        arg, more = step
        steps = [*more, *steps]
    found = machine.affine(arg)
    if found is None or found.is_shared or math.prod(1 / by if divides else by for divides, by in steps) > SMALL:
        return None
    return Affine.of(Derived(Share(how, tuple(steps)), (found,))) if steps else found


def _step(arg: Any) -> tuple[Any, list[tuple[bool, float]]] | None:
    """``(operand, what is done to it)`` of one call of Python's arithmetic."""
    if not isinstance(arg, fx.Node) or arg.kwargs:
        return None
    name = base_name(op_name(arg) or "")
    if name == "sym_float" and len(arg.args) == 1:
        return arg.args[0], []
    divides = name in DIVIDING and isinstance(example(arg), (float, torch.SymFloat)) and name == "div"
    if len(arg.args) != 2 or not (divides or name == "mul"):
        return None
    operand, by = arg.args if divides or type(arg.args[1]) in (int, float) else arg.args[::-1]
    if type(by) not in (int, float) or not 0 < by < math.inf or not isinstance(operand, fx.Node):  # type: ignore[operator]
        return None
    return operand, [(divides, float(by))]  # type: ignore[arg-type]


def _real(machine: Machine, node: fx.Node) -> Any:
    """A function of Python on a real number: capture checks what it is defined for."""
    arg, name = node.args
    value = machine.value(arg)
    if not isinstance(arg, fx.Node) or not is_per_document(value) or not isinstance(value, (Affine, Number)):
        return OPAQUE
    term = cast(machine, as_term(machine, arg, node), as_tensor_dtype(example(arg)), torch.float64)
    return Number(machine.intern(Apply(getattr(torch, str(name)), False, (term,), (), 0)))


def of_numbers(machine: Machine, node: fx.Node, name: str) -> Any:
    """What a call makes of numbers of the document."""
    if node.target is REAL:
        return _real(machine, node)
    found = share(machine, node)
    return number(machine, node, name) if found is None else found
