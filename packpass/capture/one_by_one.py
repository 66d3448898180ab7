"""``while (entry := next(entries, None)) is not None``: documents that are taken one by one, traced as a ``for`` loop.

Every call begins an iteration, and the one behind the last document gives None. Why it is the same: what a call leads
to depends on nothing but whether there was an entry. With one, the code that was traced goes on to the next call, as it
does for all documents; None leads from every call to one and the same place, also where there are no documents at all.
"""

from __future__ import annotations

from typing import Any

from packpass.capture import code_loops
from packpass.capture.dynamo import attribute, call, constant
from packpass.capture.lists import is_documents
from packpass.capture.plain import Entries, entries
from packpass.capture.sequences import is_once, step, take
from packpass.capture.state import active, current_frame, leave_to_stock, location_of, refuse


def following(tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``next(entries, None)``; None if it is another call."""
    if kwargs or len(args) != 2 or not args[1].is_python_constant() or args[1].as_python_constant() is not None:
        return None
    iterator = _iterator(tx, args[0])
    if iterator is None:
        return None
    exits = active.trace.exits
    exit_of_none = code_loops.way_of_none(tx)
    if exit_of_none is None or exits.setdefault(iterator, (tx, exit_of_none)) != (tx, exit_of_none):
        raise refuse("iterator-use", UNLIKE, location_of(tx))
    if (tx.f_code, tx.current_instruction.offset) in current_frame().left:
        raise leave_to_stock("documents that are taken one by one were refused, in front of which no graph can end")
    index = step(tx, iterator, location_of(tx))
    if index.is_python_constant() and index.as_python_constant() is None:
        return constant(None)
    return call(tx, attribute(tx, attribute(tx, iterator, "documents"), "get"), index)


def _iterator(tx: Any, value: Any) -> Any:
    """What ``iter`` has made of a sequence over documents; None if it is another iterator."""
    if value.python_type() is Entries:
        return value
    if not is_documents(value) or not is_once(value):
        return None
    if value not in active.trace.iterators:
        take(tx, value)
        active.trace.iterators[value] = call(tx, entries, value)
    return active.trace.iterators[value]


UNLIKE = (
    "documents are taken by next(), and it is not seen that None, which it gives behind the last one, ends the loop in "
    "the line that follows; write `while (document := next(documents, None)) is not None:`, or a for loop"
)
