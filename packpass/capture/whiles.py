"""``while i < n: ...; i += 1`` over documents, traced as ``for i in range(i, n)``.

So are ``i <= n``, ``n > i``, and ``while True: if i >= n: break``. The first time that its test is reached, a ``while``
is asked what the ``range`` between its two sides would be. If that is one over documents, every later test takes the
place of the ``for``: it ends an iteration of the open region, gives the counter the number of the next document, and
goes on twice.

Why it is the same: in both traced iterations, whichever way they go, the counter must have come out one larger than it
was given, and the other side as it was at first, which is compared at every test. A counter that is not counted
up, or counted twice, and a bound that changes refuse the loop; a test that is not reached again leaves the region
open, which refuses it as an early exit. The counter is not known after the loop.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from packpass.capture import code_loops, same_numbers
from packpass.capture.dynamo import SymNodeVariable, attribute, call, constant, expression
from packpass.capture.lists import is_documents
from packpass.capture.origins import made_from
from packpass.capture.plain import entries
from packpass.capture.python_functions import FUNCTIONS
from packpass.capture.sequences import number_of, step
from packpass.capture.state import active, current_frame, leave_to_stock, location_of, refuse
from packpass.capture.watch import is_unknown, loops_are_sought

_NEGATED = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
COUNTED = {"<": 0, "!=": 0, "<=": 1}
"""Comparisons that hold until a counter, counted up by one, reaches a bound that is not below it at first: how much
further than to this bound it goes."""


@dataclasses.dataclass
class Counted:
    """A ``while`` over documents that is being traced."""

    name: str
    documents: Any
    iterator: Any
    bound: Any
    """The other side of its test, as an expression."""
    at: int
    """The side of the test on which the counter stands."""
    given: Any = None
    """The counter that the current iteration was given, as an expression."""


def compare(original: Any, self: Any, instruction: Any) -> None:
    """``i < n``."""
    outcome = _outcome(self, instruction)
    if outcome is None:
        outcome = same_numbers.compared(self, instruction.argval)
    if outcome is None:
        _name(self, instruction)
        original(self, instruction)
    else:
        self.popn(2)
        self.push(outcome)


def _outcome(tx: Any, comparison: Any) -> Any:
    """The outcome of the test of a ``while`` over documents in this trace; None if it is another comparison."""
    if comparison.argval not in _NEGATED or not loops_are_sought():
        return None
    found = code_loops.body_of_test(tx, comparison)
    if found is None:
        return None
    body, goes_on = found
    sides = [side.realize() for side in tx.stack[-2:]]
    if (tx, body) not in active.trace.whiles:
        active.trace.whiles[tx, body] = _counted(tx, comparison, goes_on, sides)
    loop = active.trace.whiles[tx, body]
    if loop is None:
        return None
    if loop.given is not None:
        _check(tx, loop, sides[loop.at], sides[1 - loop.at])
    index = step(tx, loop.iterator, location_of(tx))
    if index.is_python_constant() and index.as_python_constant() is None:
        del active.trace.whiles[tx, body]
        return constant(not goes_on)
    counter = call(tx, attribute(tx, loop.documents, "get"), index)
    loop.given = expression(counter)
    tx.symbolic_locals.give(loop.name, counter)
    return constant(goes_on)


def _name(tx: Any, comparison: Any) -> None:
    """Say so if this is the test of another ``while``, by a number of documents: it ends the graph inside the loop."""
    by_documents = any(_is_of_documents(side.realize()) for side in tx.stack[-2:])
    if by_documents and loops_are_sought() and code_loops.body_of_test(tx, comparison) is not None:
        code_loops.note_unseen(tx)


def _is_of_documents(value: Any) -> bool:
    """Is it a number that is data, made from boundaries only?"""
    unknown = isinstance(value, SymNodeVariable) and is_unknown(value.sym_num)
    return unknown and made_from(value.as_proxy().node) is not None


def _counted(tx: Any, comparison: Any, goes_on: bool, sides: list[Any]) -> Counted | None:
    """The loop, if its counter, on one of the sides, goes through a range over documents up to the other."""
    holds = comparison.argval if goes_on else _NEGATED[comparison.argval]
    for at, name in enumerate(code_loops.counters_of_test(tx, comparison)):
        further = COUNTED.get(_TURNED.get(holds, "") if at else holds)
        counter, bound = sides[at], sides[1 - at]
        if (
            further is None
            or name is None
            or name not in tx.f_code.co_varnames
            or number_of(counter) is None
            or not _is_number(bound)
        ):
            continue
        end = call(tx, operator.add, bound, constant(further)) if further else bound
        documents = FUNCTIONS[range](tx, [counter, end], {})
        if documents is None or not is_documents(documents):
            continue
        if (tx.f_code, comparison.offset) in current_frame().left:
            raise leave_to_stock("a while loop was refused, in front of which no graph can end")
        return Counted(name, documents, call(tx, entries, documents), expression(bound), at)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) or number_of(value) is not None


def _check(tx: Any, loop: Counted, counter: Any, bound: Any) -> None:
    """Has the iteration that ends left the counter one larger, and the bound as it was?"""
    for value, wanted in ((counter, loop.given + 1), (bound, loop.bound)):
        if not _is_number(value) or expression(value) != wanted:
            raise refuse("while-loop", NOT_COUNTED.format(loop.name), location_of(tx))


NOT_COUNTED = (
    "the while loop does not count {} up by one for every document, or changes where it stops; only then is it "
    "the same as a for loop over range()"
)
