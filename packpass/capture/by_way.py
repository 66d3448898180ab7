"""A local that counts on by numbers that a branch on the documents' numbers decides about.

::

    start, number = 0, 1
    for n in lengths.tolist():
        if n <= 0:                   # padding
            continue
        ids[start : start + n] = number
        start += n
        number += 1

Each way through the body (`packpass.capture.ways`) adds a number of its own, which is made of entries of vectors as the
conditions are that lead to it. So what a document adds is known in front of the loop: the sum over the ways of what
each adds, where its conditions hold. The local of document i is what it begins with plus what the documents before add.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any

import torch

from packpass import markers
from packpass.capture.again import Latest, times_before
from packpass.capture.dynamo import ConstantVariable, SymNodeVariable, emit
from packpass.capture.entries import COMPARISONS, divides, made_of, numbers_made
from packpass.capture.offsets import Offset, Running, added, is_unchanged, step_made
from packpass.capture.origins import needed_for
from packpass.capture.stops import condition_made
from packpass.capture.tallies import number
from packpass.capture.totals import is_sum

if TYPE_CHECKING:
    from packpass.capture.region import Region


@dataclasses.dataclass(frozen=True)
class ByWay:
    """``first``: what the local begins with. ``steps``: what each way adds, and how (`packpass.capture.entries`), after
    the conditions that lead to it, with their outcomes."""

    first: Any
    steps: tuple[tuple[tuple[tuple[Any, bool], ...], Any], ...]

    def made(self) -> Any:
        """What a document adds; None if that is nothing, or not to be worked out for documents that go another way."""
        total: Any = None
        if any(divides(number) for way, step in self.steps for number in (step, *(asked for asked, _ in way))):
            return None
        for conditions, step in self.steps:
            if step == 0:
                continue
            term: Any = None
            for condition, outcome in conditions:
                holds = condition if outcome else (operator.eq, condition, 0)
                term = holds if term is None else (operator.mul, term, holds)
            term = (operator.mul, term, step)
            total = term if total is None else (operator.add, total, term)
        return total

    def asks_for_slots(self) -> bool:
        """Is what a document adds, where it adds something, the number that its one condition is about, and does the
        condition tell 0 from it as it tells the others? Then it may ask for what is added: ``if n <= 0: continue``."""
        for conditions, step in self.steps:
            ((asked, outcome), *others) = conditions
            if others or not isinstance(asked, tuple) or asked[0] not in COMPARISONS or type(asked[2]) is not int:
                return False
            compare, about, bound = asked
            if step != about and (step != 0 or compare(0, bound) is not outcome):
                return False
        return True


def learn_by_way(before: Any, after: list[Any], region: Region) -> ByWay | None:
    """How a local grew in each traced iteration, if by what the way says that it took."""
    first = number(before)
    if first is None or not region.ways:
        return None
    steps = []
    for iteration, value in enumerate(after):
        way, step = way_of(region, iteration), _step(value, before, region, iteration)
        if not way or step is None:
            return None
        steps.append((way, step))
        before = value
    learned = ByWay(first, tuple(steps))
    return learned if len({step for _, step in steps}) > 1 and learned.made() is not None else None


def way_of(region: Region, iteration: int) -> tuple[tuple[Any, bool], ...] | None:
    """The conditions that a traced iteration has met, how each is made, and its outcome; None if one of them is another
    than one on entries of vectors."""
    node, conditions = region.indices[iteration], list[Any]()
    ends = [user for user in node.users if user.target is markers.LOOP_END]
    while node.op != "root" and node not in ends:
        if node.target in markers.LOOP_BRANCH:
            made = condition_made(node.args[0], region, iteration)
            if made is None:
                return None
            conditions.append((made, bool(node.args[1])))
        node = node.next
    return tuple(conditions)


def _step(value: Any, before: Any, region: Region, iteration: int) -> Any:
    """How what was added in an iteration is made; None if something else was done."""
    if is_unchanged(value, before):
        return 0
    known, last = number(value), number(before)
    if known is not None:
        return None if last is None else known - last
    grown = added(value, before)
    return None if grown is None else step_made(grown, region.indices[iteration], region.indices[0])


def vector(region: Region, values: list[Any]) -> Any:
    """All documents' numbers, or truth values, where each way leaves one that is known or made of entries: ``h > 0 and
    w > 0``, ``1 if n > 2 else n``. None for other values."""
    ways = [way_of(region, iteration) for iteration in range(len(values))]
    kinds = {kind(value) for value in values}
    if not region.ways or not all(ways) or len(kinds) != 1 or kinds == {None}:
        return None
    held = [_held(value, region, iteration) for iteration, value in enumerate(values)]
    made = None if None in held else ByWay(0, tuple(zip(ways, held, strict=True))).made()  # type: ignore[arg-type]
    numbers = None if made is None else numbers_made(region.tx, made, region.length)
    if numbers is None:
        return None
    return (
        emit(region.tx, operator.ne, numbers, 0) if kinds == {bool} else emit(region.tx, "long", numbers, method=True)
    )


def kind(value: Any) -> type | None:
    """``bool`` or ``int``, of truth values and integers, known or not."""
    if isinstance(value, ConstantVariable):
        known = type(value.as_python_constant())
        return known if known in (bool, int) else None
    if not isinstance(value, SymNodeVariable):
        return None
    return {torch.SymBool: bool, torch.SymInt: int}.get(type(value.sym_num))


def _held(value: Any, region: Region, iteration: int) -> Any:
    """How the value that a way leaves is made."""
    if isinstance(value, ConstantVariable):
        return int(value.as_python_constant())
    node = value.as_proxy().node
    if isinstance(value.sym_num, torch.SymBool):
        return condition_made(node, region, iteration)
    return made_of(node, region.indices[iteration], region.indices[0])


class GoingByWay(Running):
    """Such a local while the loop is traced again."""

    def __init__(self, region: Region, by_way: ByWay) -> None:
        if times_before(region.key, region.id):
            latest = Latest(region.tx.output.current_tracer.graph)
            by_way = dataclasses.replace(by_way, steps=latest.of(by_way.steps))
        self.by_way = by_way
        super().__init__(region, Offset(by_way.first, "", (), by_way.made()))
        self.is_length = any(isinstance(step, tuple) for _, step in by_way.steps)

    def follow(self, value: Any) -> None:
        """The conditions say which tensors this loop reads."""

    def note_way(self) -> None:
        """The iteration ends: what it has asked, before anything is put in place of numbers that it asked about."""
        self._way = way_of(self.region, self.region.iteration)

    def has_grown(self, values: list[Any]) -> bool:
        """Have all locals been increased by what this way adds?"""
        step = next((step for known, step in self.by_way.steps if known == self._way), None)
        if step is None:
            return False
        if self.by_way.asks_for_slots():
            self._ask_for_slots()
        if type(step) is int:
            return all(is_sum(value, self.start, step) for value in values)
        grown = [added(value, self.start) for value in values]
        index, begin = self.region.indices[-1], self.region.indices[0]
        if not all(node is not None and step_made(node, index, begin) == step for node in grown):
            return False
        for node in dict.fromkeys(grown):
            self._is_the_length(node)
        for value in values:
            value.as_proxy().node.target = operator.add
        return True

    def _ask_for_slots(self) -> None:
        """Put what the document adds into the condition: whether a document has slots is known of its boundaries."""
        begin, node = self.region.indices[-1], self.length.as_proxy().node
        (((_, about, _), _),) = self.by_way.steps[0][0]
        for branch in [n for n in node.graph.nodes if n.target in markers.LOOP_BRANCH and n > begin]:
            asked = branch.args[0]
            made = [made_of(number, begin, self.region.indices[0]) for number in asked.args]
            asked.args = tuple(node if how == about else arg for how, arg in zip(made, asked.args, strict=True))

    def _is_the_length(self, node: Any) -> None:
        """For documents that go this way. The conditions ask for the number that was there."""
        length, begin = self.length.as_proxy().node, self.region.indices[-1]
        conditions = [n.args[0] for n in node.graph.nodes if n.target in markers.LOOP_BRANCH and n > begin]
        asked = needed_for(conditions, lambda n: n > begin)
        if node is not length:
            node.replace_all_uses_with(length, lambda user: user not in asked)
