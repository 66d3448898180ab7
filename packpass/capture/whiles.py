"""``while i < n: ...; i += 1`` over documents, traced as ``for i in range(i, n)``.

The first time that its test is reached, a ``while`` is asked what the ``range`` between its two sides would be. If that
is one over documents, every later test takes the place of the ``for``: it ends an iteration of the open region, gives
the counter the number of the next document, and holds twice.

Why it is the same: in both traced iterations, whichever way they go, the counter must have come out one larger than it
was given, and the other side as it was at first, which is compared at every test. A counter that is not counted
up, or counted twice, a bound that changes and ``<`` turned round refuse the loop; a test that is not reached again
leaves the region open, which refuses it as an early exit. The counter is not known after the loop.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from packpass.capture import code_loops
from packpass.capture.dynamo import SymNodeVariable, attribute, call, constant
from packpass.capture.lists import is_documents
from packpass.capture.plain import entries
from packpass.capture.python_functions import FUNCTIONS
from packpass.capture.sequences import expression, number_of, step
from packpass.capture.state import active, current_frame, leave_to_stock, location_of, refuse
from packpass.capture.watch import is_unknown, loops_are_sought, made_from

COUNTED = ("<", "!=")
"""Comparisons that hold until a counter, counted up by one, reaches a bound that is not below it at first."""


@dataclasses.dataclass
class Counted:
    """A ``while`` over documents that is being traced."""

    name: str
    documents: Any
    iterator: Any
    bound: Any
    """The other side of its test, as an expression."""
    given: Any = None
    """The counter that the current iteration was given, as an expression."""


def compare(original: Any, self: Any, instruction: Any) -> None:
    """``i < n``."""
    outcome = _outcome(self, instruction)
    if outcome is None:
        _name(self, instruction)
        original(self, instruction)
    else:
        self.popn(2)
        self.push(outcome)


def _outcome(tx: Any, comparison: Any) -> Any:
    """The outcome of the test of a ``while`` over documents in this trace; None if it is another comparison."""
    if comparison.argval not in COUNTED or not loops_are_sought():
        return None
    body = code_loops.body_of_test(tx, comparison)
    if body is None:
        return None
    left, right = (side.realize() for side in tx.stack[-2:])
    if (tx, body) not in active.trace.whiles:
        active.trace.whiles[tx, body] = _counted(tx, comparison, left, right)
    loop = active.trace.whiles[tx, body]
    if loop is None:
        return None
    if loop.given is not None:
        _check(tx, loop, left, right)
    index = step(tx, loop.iterator, location_of(tx))
    if index.is_python_constant() and index.as_python_constant() is None:
        del active.trace.whiles[tx, body]
        return constant(False)
    counter = call(tx, attribute(tx, loop.documents, "get"), index)
    loop.given = expression(counter)
    tx.symbolic_locals.give(loop.name, counter)
    return constant(True)


def _name(tx: Any, comparison: Any) -> None:
    """Say so if this is the test of another ``while``, by a number of documents: it ends the graph inside the loop."""
    by_documents = any(_is_of_documents(side.realize()) for side in tx.stack[-2:])
    if by_documents and loops_are_sought() and code_loops.body_of_test(tx, comparison) is not None:
        code_loops.note_unseen(tx)


def _is_of_documents(value: Any) -> bool:
    """Is it a number that is data, made from boundaries only?"""
    unknown = isinstance(value, SymNodeVariable) and is_unknown(value.sym_num)
    return unknown and made_from(value.as_proxy().node) is not None


def _counted(tx: Any, comparison: Any, left: Any, right: Any) -> Counted | None:
    """The loop, if its counter goes through a range over documents."""
    name = code_loops.counter_of_test(tx, comparison)
    if name is None or name not in tx.f_code.co_varnames or number_of(left) is None or not _is_number(right):
        return None
    documents = FUNCTIONS[range](tx, [left, right], {})
    if documents is None or not is_documents(documents):
        return None
    if (tx.f_code, comparison.offset) in current_frame().left:
        raise leave_to_stock("a while loop was refused, in front of which no graph can end")
    return Counted(name, documents, call(tx, entries, documents), expression(right))


def _is_number(value: Any) -> bool:
    return isinstance(value, SymNodeVariable) or number_of(value) is not None


def _check(tx: Any, loop: Counted, left: Any, right: Any) -> None:
    """Has the iteration that ends left the counter one larger, and the bound as it was?"""
    for value, wanted in ((left, loop.given + 1), (right, loop.bound)):
        if not _is_number(value) or expression(value) != wanted:
            raise refuse("while-loop", NOT_COUNTED.format(loop.name), location_of(tx))


NOT_COUNTED = (
    "the while loop does not count {} up by one for every document, or changes where it stops; only then is it "
    "the same as a for loop over range()"
)
