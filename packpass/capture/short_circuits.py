"""Branches on a size that only the data says, which come out the same either way, or as what they ask.

::

    is_causal = query.shape[2] > 1 and attention_mask is None and is_causal

Behind a loop over documents that has made the row, nobody knows its length while the frame is traced, and torch ends
the graph at such a branch. But all that is left out where the condition does not hold are questions whose answers are
known: with a mask, ``is_causal`` is False, whatever the length is; and without one it is the condition itself. So what
one way does before both meet is traced, as long as that is to look at things and to ask; if it leaves everything as the
other way does, the program goes on from where they meet.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch

from packpass._compat import asked_of_data, free_unbacked_symbols
from packpass.capture.dynamo import (
    ConstantVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    Unsupported,
    call,
    constant,
)
from packpass.capture.moments import FILLERS, Moment

_LOOKS = ("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_SMALL_INT")
_ASKS = ("IS_OP", "COMPARE_OP", "CONTAINS_OP", "UNARY_NOT", "TO_BOOL")
_STACK = ("POP_TOP", "COPY", "SWAP", "DUP_TOP", "ROT_TWO", "ROT_THREE")
_SUBSCRIPT = 26
"""Of BINARY_OP, which is that of a subscript from Python 3.14 on."""
_LONGEST = 60
"""Instructions of one way."""


def is_unknown_condition(value: Any) -> bool:
    """Is it a condition on sizes that only the data says?"""
    is_bool = isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymBool)
    return is_bool and bool(free_unbacked_symbols(value.sym_num))


def followed(tx: Any, instruction: Any, value: Any, jumps_if: bool) -> bool:
    """Go on where both ways of a branch meet; False, and nothing is changed, if they do not, or leave other things.

    ``value``: the condition, which is on top of the stack."""
    if not is_unknown_condition(value) or instruction.target is None:
        return False
    before, jumped = Moment(tx), list(tx.stack)
    if instruction.opname.startswith("POP"):
        jumped.pop()
    tx.stack.pop()
    found = _walked(tx, tx.indexof[instruction.target])
    if found is not None and found[1] == before.locals:
        joined = [_joined(tx, *pair, value, jumps_if) for pair in zip(jumped, found[0], strict=False)]
        if len(jumped) == len(found[0]) and None not in joined:
            at = tx.indexof[instruction.target]
            before.restore()
            tx.stack[:] = joined
            tx.instruction_pointer = at
            return True
    before.restore()
    return False


def _walked(tx: Any, meet: int) -> tuple[list[Any], dict[Any, Any]] | None:
    """The stack and the locals where a way gets to an instruction; None if it does more than to ask, or does not."""
    for _ in range(_LONGEST):
        at = tx.instruction_pointer
        if at == meet:
            return list(tx.stack), dict(tx.symbolic_locals.items())
        instruction = tx.instructions[at]
        tx.current_instruction, tx.instruction_pointer = instruction, at + 1
        try:
            if instruction.opname not in FILLERS and not _asked(tx, instruction):
                return None
        except Exception as error:  # whatever Dynamo raises where it may not ask; but not a restart of the trace
            if not isinstance(error, Unsupported) and asked_of_data(error) is None:
                raise
            return None
    return None


def _asked(tx: Any, instruction: Any) -> bool:
    """Trace an instruction that does nothing but look at what is there; False for any other."""
    if not _only_asks(tx, instruction):
        return False
    if _is_jump(instruction) and is_unknown_condition(tx.stack[-1].realize()):
        return followed(tx, instruction, tx.stack[-1].realize(), "IF_TRUE" in instruction.opname)
    tx.dispatch_table[instruction.opcode](tx, instruction)
    return True


def _is_jump(instruction: Any) -> bool:
    return "JUMP" in instruction.opname and "IF_" in instruction.opname


def _only_asks(tx: Any, instruction: Any) -> bool:
    """Does an instruction do nothing but look at what is there already?"""
    name = instruction.opname
    if _is_jump(instruction):
        forward = tx.indexof[instruction.target] >= tx.instruction_pointer
        top = tx.stack[-1].realize()
        return forward and ("NONE" in name or isinstance(top, ConstantVariable) or is_unknown_condition(top))
    if name == "JUMP_FORWARD":
        return True
    if name == "LOAD_ATTR":
        if isinstance(tx.stack[-1].realize(), TensorVariable):
            return bool(instruction.argval == "shape")
        return _is_plain_attribute(tx.stack[-1].realize(), instruction.argval)
    if name in ("IS_OP", *_STACK) or name.startswith(_LOOKS):
        return name != "LOAD_FAST_AND_CLEAR"
    operands = [operand.realize() for operand in tx.stack[-1 if name in ("UNARY_NOT", "TO_BOOL") else -2 :]]
    if name == "BINARY_SUBSCR" or (name == "BINARY_OP" and instruction.arg == _SUBSCRIPT):
        return isinstance(operands[0], TupleVariable) and isinstance(operands[1], ConstantVariable)
    return name in _ASKS and all(isinstance(operand, (ConstantVariable, SymNodeVariable)) for operand in operands)


def _is_plain_attribute(value: Any, name: str) -> bool:
    """Is it an attribute of a module, or another object of the user, that runs no code of theirs?"""
    held = getattr(value, "value", None)
    kind = type(held)
    if held is None or isinstance(value, ConstantVariable):
        return False
    own = inspect.getattr_static(kind, name, None)
    looks_up = inspect.getattr_static(kind, "__getattribute__", None) is not object.__getattribute__
    return not looks_up and not hasattr(own, "__get__") and name in getattr(held, "__dict__", {})


def _joined(tx: Any, jumped: Any, fallen: Any, value: Any, jumps_if: bool) -> Any:
    """What is on the stack where two ways meet; None if that is not one value. Behind the jump, the condition is what
    it had to be to jump."""
    if jumped is fallen:
        return jumped
    known, other = jumped.realize(), fallen.realize()
    if known is not value:
        same = isinstance(known, ConstantVariable) and isinstance(other, ConstantVariable)
        return jumped if same and known.value is other.value else None
    if isinstance(other, ConstantVariable) and isinstance(other.value, bool):
        return constant(jumps_if) if other.value is jumps_if else value
    if is_unknown_condition(other):
        return call(tx, operator.or_ if jumps_if else operator.and_, value, other)
    return None
