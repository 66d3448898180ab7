"""What a loop carries from one document to the next, where every document can do without it.

Offsets (`packpass.capture.offsets`), the last document's end (`packpass.capture.behind`), counters and totals
(`packpass.capture.totals`), rows and lists that get longer (`packpass.capture.grown`). The first trace of a frame
learns how each such local changes; in the next trace its value for document i is made from i, each iteration must leave
what was learned, and what the local holds after the loop is made from the number of documents.

Code that is called for every layer, or stands in a loop over rows, has the same loop several times, each with a
beginning of its own, and over other tensors perhaps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from packpass.capture.behind import Behind, Last, begins_alike, learn_behind
from packpass.capture.by_way import ByWay, GoingByWay, learn_by_way
from packpass.capture.dynamo import SymNodeVariable
from packpass.capture.extremes import Extreme, Finding, learn_extreme
from packpass.capture.float_tallies import Summed, Summing, learn_summed
from packpass.capture.grown import Grown, Lengthening, Relisting, growing, learn_grown
from packpass.capture.offsets import Offset, Running, is_looked_at
from packpass.capture.offsets import learn as learn_offset
from packpass.capture.state import active
from packpass.capture.tallies import Tally, end_of, learn_tally, number
from packpass.capture.totals import Adding, Count, Counting, Total, learn_count, learn_total
from packpass.capture.watched import Poison

if TYPE_CHECKING:
    from packpass.capture.region import Region

Learned = Offset | ByWay | Extreme | Behind | Count | Total | Summed | Grown | int | SymNodeVariable
"""An int, or what an earlier loop has counted up to: the first value of a number that a branch decides about
(`packpass.capture.tallies`)."""


def learn(before: dict[str, Any], after: list[dict[str, Any]], region: Region, names: set[str]) -> dict[str, Any]:
    """Name -> how that local changed from ``before`` the loop through ``after`` each traced iteration, None if it
    cannot be done without."""

    def of(name: str) -> Learned | None:
        values = [before.get(name), *(local.get(name) for local in after)]
        first, *later = [value.realize() if value is not None else None for value in values]
        empty = [region.without_slots(iteration) for iteration in range(len(later))]
        known: Learned | None = learn_count(first, later) or learn_by_way(first, later, region)
        if is_looked_at(later):  # no sum, which nobody may look at before the end
            known = known or learn_offset(first, later, region.indices, empty)
        known = known or learn_total(first, later) or learn_grown(first, later)
        known = known or learn_offset(first, later, region.indices, empty)
        known = known or learn_behind(first, later, region.indices) or learn_extreme(first, later, region)
        known = known or learn_summed(first, later)
        return learn_tally(first, later) if known is None else known

    return {name: of(name) for name in names}


def _as_it_begins(how: Learned, before: Any) -> Learned | None:
    """What was learned, for a loop that begins with another value: code that is run several times, in a loop over
    layers say, has a loop over documents each time. None if nothing is known for that value."""
    value = None if before is None else before.realize()
    first = value if isinstance(value, SymNodeVariable) else number(value)
    if isinstance(how, (Offset, ByWay, Count, Extreme)):
        return None if first is None else dataclasses.replace(how, first=first)
    if isinstance(how, Behind):
        return how if begins_alike(how, value) else None
    return first if isinstance(how, int) else how


class _Otherwise:
    """In place of what is known of a local that begins with a value of which nothing is known."""

    ready = False


WHOLES = (Adding, Lengthening, Relisting)
"""What makes a value that the program has, whether or not somebody asks for it."""


class Carried:
    """The locals of one frame that are known to change in these ways, while the loop is traced again.

    The frame is that of the loop, or the one that goes over a generator with the loop in it.
    """

    def __init__(self, region: Region, frame: Any, learned: dict[str, Learned], before: dict[str, Any]) -> None:
        self.region, self.frame = region, frame
        self.names: list[tuple[list[str], Any]] = []
        """Locals, and what makes their value; offsets that grow alike are one."""
        offsets: dict[Offset, list[str]] = {}
        for name in learned.keys() & before.keys():
            held = before[name]
            if isinstance(held, Poison) and held.make is not None:
                before[name] = held = held.made()  # what an earlier loop has left, made as somebody asks for it
            # A number that was learned as what a local begins with is guarded only where somebody looks at it.
            held.realize()
        for name, learned_how in learned.items():
            how = _as_it_begins(learned_how, before.get(name))
            if how is None:
                self.names.append(([name], _Otherwise()))
            elif isinstance(how, Offset) and how in offsets:
                offsets[how].append(name)
            elif isinstance(how, Offset):
                offsets[how] = [name]
                self.names.append((offsets[how], Running(region, how)))
            elif isinstance(how, Extreme):
                self.names.append(([name], Finding(region, how)))
            elif isinstance(how, ByWay):
                self.names.append(([name], GoingByWay(region, how)))
            elif isinstance(how, Behind):
                self.names.append(([name], Last(region, how)))
            elif isinstance(how, Count):
                self.names.append(([name], Counting(region, how)))
            elif isinstance(how, (int, SymNodeVariable)):
                self.names.append(([name], Tally(region, how)))
            elif isinstance(how, Summed):
                self.names.append(([name], Summing(region, before[name].realize())))
            elif isinstance(how, Grown):
                self.names.append(([name], growing(region, how, before[name].realize())))
            else:
                self.names.append(([name], Adding(region, how, before[name].realize())))

    def _written_by_another(self, made: Any) -> bool:
        """Does another total add in place to the memory that this one is made of after the loop?"""
        others = (other for _, other in self.names if isinstance(other, Adding) and other is not made)
        return any(made.reads is not None and other.writes == made.reads for other in others)

    def begin(self) -> list[str]:
        """Give every local its value for the document that begins; names of those for which there is none."""
        for names, made in self.names:
            if not made.ready or (isinstance(made, (Adding, Lengthening)) and self._written_by_another(made)):
                return names
            made.begin(self.region.index)
            for name in names:
                self.frame.symbolic_locals.give(name, made.start)
        return []

    def follow(self) -> None:
        """The first iteration says which tensors this loop reads; what was learned may name those of another time."""
        for names, made in self.names:
            value = dict.get(self.frame.symbolic_locals, names[0])
            if isinstance(made, (Running, Last)) and value is not None:
                made.follow(value.realize())

    def offset_at(self, value: Any) -> Running | None:
        """The offset that a number is, counted on by the document's length."""
        runs = [made for _, made in self.names if isinstance(made, Running)]
        return next((made for made in runs if made.offset.made is None and made.has_grown([value])), None)

    def end(self) -> list[str]:
        """Names of locals that have not changed as was learned."""
        for _, made in self.names:
            if isinstance(made, GoingByWay):
                made.note_way()
        for names, made in self.names:
            held = [dict.get(self.frame.symbolic_locals, name) for name in names]
            values = [None if value is None else value.realize() for value in held]
            if self.region.skips or not made.has_grown(values):
                return names
        return []

    def changed(self) -> bool:
        """Has a local that is known to change done so already, in this iteration?"""
        locals_of = self.frame.symbolic_locals
        return any(dict.get(locals_of, name) is not made.start for names, made in self.names for name in names)

    def totals(self) -> dict[str, Any]:
        """Name of every total, row and list -> its value after the loop; a total may have been added to in place."""
        return {names[0]: made.after() for names, made in self.names if isinstance(made, WHOLES)}

    def numbers(self) -> dict[str, Callable[[], Any]]:
        """Name of every other local -> what makes its value after the loop, where somebody asks for it."""
        numbers = [(names, made) for names, made in self.names if not isinstance(made, WHOLES)]
        return {name: functools.partial(self._made, made.after) for names, made in numbers for name in names}

    def _made(self, after: Callable[[], Any]) -> Any:
        """Such a value, made in front of the loop in whose body it is asked for first: it is the same for all of its
        documents."""
        end = end_of(self.region, -1)
        for region in active.regions:
            begin = region.indices[0]
            if end.graph is begin.graph and end < begin:
                with begin.graph.inserting_before(begin):
                    return after()
        return after()
