"""Integers and conditions that are made of floating point numbers: ``int(h * 0.7)``.

Expressions of sizes are those of Dynamo, which puts together and takes apart what Python does one by one:
``(n * 0.7) * 10`` is ``7.0 * n`` there, and ``(e - s) * 0.7`` is ``0.7 * e - 0.7 * s``. Each may be another float, and
round to another integer. One operation on one integer is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import example, op_name
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import DIVIDING
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.ragged_grids.machine import Machine


def rounded(machine: Machine, node: fx.Node) -> None:
    """Refuses a number, no float, that is made of floats of which the expression may be another than Python's."""
    for arg in node.all_input_nodes:
        if _is_float(arg) and not _is_one_operation(machine, arg):
            name = base_name(op_name(node) or node.name)
            reason = f"{name} of a number that several operations on floats have made, or one on several sizes"
            raise Refused("no-rule", reason, node)


def _is_float(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and isinstance(example(arg), (float, torch.SymFloat))


def _is_one_operation(machine: Machine, node: fx.Node) -> bool:
    """Is a float made of integers, or of one and a constant, by one operation?"""
    name, args = base_name(op_name(node) or ""), [_integer(arg) for arg in node.args]
    if node.kwargs or any(_is_float(arg) for arg in args):
        return False
    if name == "sym_float" or (name in DIVIDING and not any(type(arg) is float for arg in args)):
        return True
    numbers = [arg for arg in args if isinstance(arg, fx.Node)]
    if name == "mul":  # a product of a name stays one, whatever the name is known to stand for (`sizes.Scaled`)
        return len(numbers) == 1 and bool(example(numbers[0]).node.expr.is_Symbol)
    return len(numbers) <= 1 and all(machine.expression(number, node).is_Atom for number in numbers)


def _integer(arg: Any) -> Any:
    """What a float is that is an integer of the program."""
    while isinstance(arg, fx.Node) and base_name(op_name(arg) or "") == "sym_float" and not _is_float(arg.args[0]):
        arg = arg.args[0]
    return arg
