"""Lists of the numbers of some documents: ``[n for n in lengths.tolist() if n > 0]``, ``sum(1 for n in lengths if n)``.

Which documents leave a number is known from the branch that decides it (`packpass.capture.by_way`): the list is what
all of them would leave, picked by that. How many these are is data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packpass.capture import by_way
from packpass.capture.dynamo import call, constant
from packpass.capture.state import current_frame, restart

if TYPE_CHECKING:
    from packpass.capture.lists import CollectedItems


def watch(items: CollectedItems) -> None:
    """Some documents are skipped that leave no number: trace the frame again, with both ways."""
    frame, region = current_frame(), items.region
    if region.skips and region.may_follow_skips(frame) and _are_numbers(items) and frame.data_sizes is not None:
        frame.both_ways.add(region.key)
        raise restart("numbers of some documents are listed")


def numbers(items: CollectedItems) -> Any:
    """The vector of the numbers in a list that lacks those of some documents; None if they are not known."""
    frame, region = current_frame(), items.region
    if not items.lacking or not _are_numbers(items) or frame.data_sizes is None:
        return None
    every = by_way.vector(region, [values[0] if values else constant(0) for values in items.values])
    present = by_way.vector(region, [constant(bool(values)) for values in items.values])
    if every is None or present is None:
        return None
    if not frame.data_sizes:
        frame.data_sizes = True
        raise restart("numbers of some documents are listed, and how many these are is data")
    return call(region.tx, _picked, every, present)


def _picked(every: Any, present: Any) -> Any:
    return every[present]


def _are_numbers(items: CollectedItems) -> bool:
    """Does each document leave one integer, or none?"""
    kinds = {by_way.kind(value) for values in items.values for value in values}
    return kinds == {int} and all(len(values) < 2 for values in items.values) and not (items.before or items.after)
