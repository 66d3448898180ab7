"""Lists with a place for every document, which a loop fills: ``parts = [None] * n``, ``parts[i] = f(x[s:e])``."""

from __future__ import annotations

from typing import Any

from packpass.capture.dynamo import ConstantVariable, ListVariable, SymNodeVariable, ValueMutationNew, expression
from packpass.capture.frame import LOOP_MODES
from packpass.capture.lists import CollectedItems, items_of
from packpass.capture.state import Restart, active, current_frame, location_of, refuse
from packpass.capture.watch import loop_mode_for_symint


class Slots(CollectedItems):
    """Stands in for the entries of such a list, before a loop begins to fill it and while it does."""

    def __init__(self, length: Any, location: str) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # not of a loop yet
        self.length, self.location = length, location

    def fill(self, at: Any, value: Any) -> None:
        """``parts[at] = value``: each document has to fill its own place."""
        region = active.regions[-1]
        if self.region is None and len(active.regions) == 1 and expression(region.length) == self.length:
            self.region = region
            region.lists.append(self)
        if self.region is not region or not isinstance(at, SymNodeVariable):
            raise self.refusal()
        if expression(at) != expression(region.index) or self.holds(region.iteration):
            raise self.refusal()
        super().append(value)

    def append(self, value: Any) -> None:
        if self.region is None or not self.region.closed:
            raise self.refusal()
        super().append(value)

    def check_filled(self) -> None:
        """Refuses the loop if there are places without an entry."""
        if self.region is None or self.lacking or self.region.skips:
            raise self.refusal()

    def refusal(self) -> Restart:
        """For uses that need to know which place is meant."""
        reason = (
            "a list made with a place for each document may only be filled by one loop, each document its own place"
        )
        return refuse("list-use", reason, self.location, self.region.key if self.region is not None else None)


def repeated(tx: Any, one: Any, other: Any) -> Any:
    """``[None] * n`` with a number that changes from batch to batch; None if it is something else."""
    if active.frame is None or active.regions:
        return None
    sides = [one.realize(), other.realize()]
    items, length = sides if type(sides[0]) is ListVariable else reversed(sides)
    if type(items) is not ListVariable or not isinstance(length, SymNodeVariable) or items_of(items) is not None:
        return None
    if len(items.items) != 1 or not isinstance(items.items[0].realize(), ConstantVariable):
        return None
    if not loop_mode_for_symint(tx, expression(length)) or current_frame().mode not in LOOP_MODES:
        return None  # Dynamo takes the number for a constant
    made = ListVariable([], mutation_type=ValueMutationNew())
    made.items = Slots(expression(length), location_of(tx))
    return made


def fill(items: Any, at: Any, value: Any) -> bool:
    """``parts[at] = value`` of such a list; False if it is something else."""
    known = items_of(items)
    if not isinstance(known, Slots) or not active.regions:
        return False
    known.fill(at.realize(), value)
    return True
