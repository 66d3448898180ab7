"""Numbers of a document that are compared with others as lists or tuples: ``(h, w) == (32, 32)``, ``size in SIZES``.

Python compares entry by entry and stops at the first that differs, which is a branch for every entry. Whether all are
the same is one number, and one branch.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from packpass.capture.dynamo import ListVariable, SymNodeVariable, TupleVariable, call, constant
from packpass.capture.state import active
from packpass.capture.watch import is_unknown

_ENTRIES = (ListVariable, TupleVariable)


def compared(tx: Any, comparison: str) -> Any:
    """What ``==`` or ``!=`` gives for the two values on the stack; None for what Dynamo compares itself."""
    if comparison not in ("==", "!=") or not active.regions:
        return None
    same = _same(tx, *(side.realize() for side in tx.stack[-2:]))
    return same if same is None or comparison == "==" else _not(tx, same)


def look(otherwise: Any, original: Any, self: Any, instruction: Any) -> None:
    """``in`` and ``not in``; ``otherwise``: how the instruction is traced where it is about something else."""
    found = contained(self, bool(instruction.arg))
    if found is None:
        otherwise(original, self, instruction)
    else:
        self.popn(2)
        self.push(found)


def contained(tx: Any, inverted: bool) -> Any:
    """What ``in`` or ``not in`` gives for the two values on the stack; None for what Dynamo looks for itself."""
    if not active.regions:
        return None
    value, others = (side.realize() for side in tx.stack[-2:])
    known = _plain(others)
    found = None if not known else [_same(tx, value, other.realize()) for other in known]
    if not found or any(same is None for same in found):
        return None
    some = functools.reduce(lambda a, b: _both(tx, operator.or_, a, b), found)
    return _not(tx, some) if inverted else some


def _plain(value: Any) -> list[Any] | None:
    """The entries of a list or tuple whose entries are known."""
    known = isinstance(value, _ENTRIES) and type(value.items) is list
    return list(value.items) if known else None


def _same(tx: Any, one: Any, other: Any) -> Any:
    """Are all entries of two sequences the same numbers? None for others, and where none of them is unknown."""
    entries = _plain(one), _plain(other)
    if None in entries or isinstance(one, ListVariable) != isinstance(other, ListVariable):
        return None
    pairs = [(a.realize(), b.realize()) for a, b in zip(*entries, strict=False)]  # type: ignore[arg-type]
    numbers = [number for pair in pairs for number in pair]
    if not all(map(_is_number, numbers)) or not any(map(_is_unknown, numbers)):
        return None
    if len(entries[0]) != len(entries[1]):  # type: ignore[arg-type]
        return constant(False)
    return functools.reduce(
        lambda a, b: _both(tx, operator.and_, a, b), [call(tx, operator.eq, a, b) for a, b in pairs]
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) or (
        value.is_python_constant() and type(value.as_python_constant()) is int
    )


def _is_unknown(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) and is_unknown(value.sym_num)


def _both(tx: Any, op: Any, one: Any, other: Any) -> Any:
    """``and`` or ``or`` of two numbers that are true or false, either of which may be known."""
    for known, rest in ((one, other), (other, one)):
        if known.is_python_constant():
            return rest if known.as_python_constant() is (op is operator.and_) else known
    return call(tx, op, one, other)


def _not(tx: Any, value: Any) -> Any:
    return constant(not value.as_python_constant()) if value.is_python_constant() else call(tx, torch.sym_not, value)
