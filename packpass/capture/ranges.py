"""Numbers of a document that Python counts through: ``[i for s, e in spans for i in range(s, e, 16)]``,
``positions.extend(range(n))``, ``positions += list(range(n))``, ``ids += [i] * n``,
``[i for i, n in enumerate(lengths) for _ in range(n)]``.

Nobody knows how many there are, and the code does nothing but to list them, or numbers that it works out from each. So
the range is gone through once, with all of its numbers in place of the one: what every document adds is a vector
(``arange``), and the list as a whole is their row. Between other numbers it may be made a tensor, nothing else.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import sympy
import torch

from packpass._compat import statically_known_true
from packpass.capture import code_loops, sized
from packpass.capture.dynamo import (
    GetAttrVariable,
    ListVariable,
    NullVariable,
    SymNodeVariable,
    TensorVariable,
    ValueMutationNew,
    callee,
    constant,
    emit,
    is_side_effect_safe,
    size_of,
)
from packpass.capture.state import active, location_of, refuse
from packpass.capture.tallies import Every, number
from packpass.capture.watch import ROWS, is_scalar, is_unknown
from packpass.semantics.memory import copied

_FILLERS = ("NOP", "RESUME", "CACHE", "PRECALL")
_NUMBERS = {0: operator.add, 2: operator.floordiv, 5: operator.mul, 6: operator.mod, 10: operator.sub}
"""What is worked out alike of one number and of a vector of them: of BINARY_OP, by the number in its table."""
BINARY = {
    "BINARY_ADD": operator.add,
    "BINARY_SUBTRACT": operator.sub,
    "BINARY_MULTIPLY": operator.mul,
    "BINARY_FLOOR_DIVIDE": operator.floordiv,
    "BINARY_MODULO": operator.mod,
}
"""The same before Python 3.11."""
_LOADS = ("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_DEREF")


def of_document(tx: Any, args: list[Any]) -> Any:
    """``range(start, stop, step)`` of a document, where nothing is done but to list its numbers; None if it is
    another."""
    step = number(args[2]) if len(args) == 3 else 1
    if not active.regions or step is None or step < 1:
        return None
    append = _listed_by(tx)
    active.regions[-1].ranges.pop(append, None)
    if append is None and not _are_added(tx):
        return None
    ends = [_asked(tx, end) for end in ([constant(0), args[0]] if len(args) == 1 else args[:2])]
    if not any(isinstance(end, SymNodeVariable) and is_unknown(end.sym_num) for end in ends):
        return None
    if _may_be_negative(*ends):
        return None
    vector = emit(tx, torch.arange, *(end.as_proxy() for end in ends), step)
    if append is not None:
        active.regions[-1].ranges[append] = vector
    return ListVariable([Every(vector)], mutation_type=ValueMutationNew())


def entry(tx: Any, append: Any, value: Any) -> Any:
    """What a comprehension lists of every number of a range, if that is such numbers, or the same one as often: what it
    adds to the list instead. None if it lists something else; refuses what else it lists as often."""
    vector = active.regions[-1].ranges.get(append) if active.regions else None
    if vector is None:
        return None
    value = value.realize()
    if isinstance(value, Every):
        return None
    if not _is_number(value):
        raise _refuse_tokens(tx)
    return Every(emit(tx, torch.full_like, vector.as_proxy(), value.as_proxy()))


def worked_out(tx: Any, instruction: Any, one: Any, other: Any) -> Any:
    """``start + i`` of every number of a range; None if it is something else."""
    sides = [one.realize(), other.realize()]
    op = _operation(instruction)
    if op is None or not any(isinstance(side, Every) for side in sides):
        return None
    divides = op in (operator.floordiv, operator.mod)
    if divides and (not isinstance(sides[0], Every) or (number(sides[1]) or 0) <= 0):
        return None
    if not all(isinstance(side, Every) or _is_number(side) for side in sides):
        return None
    vectors = [side.vector if isinstance(side, Every) else side for side in sides]
    return Every(emit(tx, op, *(side.as_proxy() for side in vectors)))


def _operation(instruction: Any) -> Any:
    if instruction.opname == "BINARY_OP":
        return _NUMBERS.get(instruction.arg)
    return BINARY.get(instruction.opname)


def _is_number(value: Any) -> bool:
    return number(value) is not None or (isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymInt))


def repeated(tx: Any, one: Any, other: Any) -> Any:
    """``[number] * length`` of a document, where nothing is done but to add it to a list; None if it is another."""
    sides = [one.realize(), other.realize()]
    items, length = sides if type(sides[0]) is ListVariable else reversed(sides)
    if not active.regions or type(items) is not ListVariable or type(items.items) is not list or len(items.items) != 1:
        return None
    value = items.items[0].realize()
    if not _is_number(value) or not _are_added(tx, operands=2):
        return None
    length = _asked(tx, length) if items is sides[0] else length  # a tensor in front of a list is no number of entries
    if not isinstance(length, SymNodeVariable) or not is_unknown(length.sym_num):
        return None
    if _may_be_negative(constant(0), length):
        return None
    vector = emit(tx, torch.full, (length.as_proxy(),), value.as_proxy())
    return ListVariable([Every(vector)], mutation_type=ValueMutationNew())


def _asked(tx: Any, value: Any) -> Any:
    """A number, or the one that a tensor of one integer holds, for which Python asks it."""
    value = value.realize()
    if not isinstance(value, TensorVariable) or not is_scalar(value):
        return value
    return sized.made_again(tx, value.as_proxy().node)


def may_be_less(stop: Any, start: Any) -> bool:
    """``range(len(boundaries) - 1)``, where how many boundaries there are is data: may there be none?"""
    last, first = size_of(stop), size_of(start)
    return (is_unknown(last) or is_unknown(first)) and not statically_known_true(last >= first)


def _may_be_negative(start: Any, stop: Any) -> bool:
    """``range(n - 1)`` of an empty document has no numbers; ``arange`` raises there."""
    ends = [end.sym_num.node.expr if isinstance(end, SymNodeVariable) else number(end) for end in (start, stop)]
    if any(end is None for end in ends):
        return True
    least, rest = sympy.expand(sympy.sympify(ends[1]) - sympy.sympify(ends[0])).as_coeff_Add()
    if least < 0 or not any(part.as_coeff_Mul()[0] < 0 for part in sympy.Add.make_args(rest)):
        return bool(least < 0)
    vectors = {part: _vector_of(part, (start, stop)) for part in rest.free_symbols}
    parts = [part.as_coeff_Mul() for part in sympy.Add.make_args(rest)]
    entries = [(count, vectors.get(symbol)) for count, symbol in parts]
    neighbours = sorted(count for count, _ in entries) == [-1, 1] and None not in {vector for _, vector in entries}
    return not neighbours or entries[0][1] is not entries[1][1]


def _vector_of(symbol: Any, ends: tuple[Any, ...]) -> Any:
    """The vector of integers that a number is an entry of: of one vector, two are boundaries, which do not decrease.
    None if it is no entry of a vector."""
    seen = [end.as_proxy().node for end in ends if isinstance(end, SymNodeVariable)]
    for node in seen:
        value = node.meta.get("example_value")
        if node.target == "item" and getattr(getattr(value, "node", None), "expr", None) == symbol:
            return _root(node)
        seen += [n for n in node.all_input_nodes if n not in seen]
    return None


def _root(node: Any) -> Any:
    """What an entry is selected from, in front of copies and slices."""
    while node.all_input_nodes and (node.target == "item" or node.target in ROWS or copied(node) is not None):
        node = node.all_input_nodes[0]
    return node


def refuse_tokens(tx: Any, ends: list[Any]) -> None:
    """Say so where the body goes over a document's tokens one after the other."""
    ends = [end.realize() for end in ends]
    numbers = any(isinstance(end, SymNodeVariable) and is_unknown(end.sym_num) for end in ends)
    if active.regions and (numbers or any(isinstance(end, TensorVariable) and is_scalar(end) for end in ends)):
        raise _refuse_tokens(tx)


def _refuse_tokens(tx: Any) -> Exception:
    reason = f"the body goes over the tokens of a document one by one, by range() at {location_of(tx)}"
    return refuse(
        "body-not-traceable", f"{reason}; there is no form of that for whole rows", active.regions[-1].location
    )


def _ahead(tx: Any, count: int) -> list[Any]:
    """The instructions that follow the one which is traced, without those that do nothing."""
    rest = itertools.islice(tx.instructions, tx.instruction_pointer or 0, None)
    return list(itertools.islice((i for i in rest if i.opname not in _FILLERS), count))


def _listed_by(tx: Any) -> Any:
    """The instruction that appends to the list of a comprehension what the code works out of every number; None if it
    goes on to do anything else, or each document has a list of its own."""
    ahead = _ahead(tx, 3)
    if [instruction.opname for instruction in ahead] != ["GET_ITER", "FOR_ITER", "STORE_FAST"]:
        return None
    rest = _ahead(tx, len(tx.instructions))[3:]
    made = list(itertools.takewhile(lambda i: i.opname in _LOADS or _operation(i) is not None, rest))
    append = rest[len(made)] if len(rest) > len(made) else None
    if not made or append is None or append.opname != "LIST_APPEND":
        return None
    lists = [value for value in tx.stack if isinstance(value, ListVariable)]
    return append if lists and _is_from_outside(lists[-1]) else None


def _are_added(tx: Any, operands: int = 0) -> bool:
    """Does the code go on to add all numbers to a list, as they are or by ``list(range(n))``? ``operands``: of the
    instruction that makes them, which are on the stack still."""
    ahead = _ahead(tx, 3)
    stack = tx.stack[: len(tx.stack) - operands]
    waiting = [value.realize() for value in stack[-5:] if not isinstance(value, NullVariable)]
    a_call = bool(waiting) and not isinstance(waiting[-1], ListVariable) and _calls_it(ahead[0])
    if a_call and callee(waiting[-1]) is list:
        ahead, waiting = ahead[1:], waiting[:-1]
    if code_loops.adds_in_place(ahead[0]):
        return bool(waiting) and _is_from_outside(waiting[-1])
    method: Any = waiting[-1] if waiting else None
    name = method.name if isinstance(method, GetAttrVariable) else getattr(method, "method_name", "")  # torch 2.15
    extends = name == "extend" and _is_from_outside(method.obj.realize())
    return extends and _calls_it(ahead[0]) and ahead[1].opname == "POP_TOP"


def _is_from_outside(items: Any) -> bool:
    """Is it a list that the loop adds to? One that a document makes for itself may be asked how long it is."""
    known = isinstance(items, ListVariable) and items.mutation_type is not None
    return known and not is_side_effect_safe(items.mutation_type)


def _calls_it(instruction: Any) -> bool:
    """Is something called with this one argument?"""
    return instruction.opname in ("CALL", "CALL_FUNCTION", "CALL_METHOD") and instruction.argval == 1
