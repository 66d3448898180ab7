"""A branch in front of a cut: ``if over > 0: part = part[over:]``, ``if rest: part = part[:-rest]``.

Documents that go the other way have nothing to cut off. Where both ways are the same for those, what is cut off is the
number, or nothing where it is none, and there is no branch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from packpass import markers
from packpass.semantics import op_name
from packpass.semantics.names import base_name
from passes.document_loops import moved, uneven
from passes.document_loops.filled_up import Interpreted, alike
from passes.document_loops.inequalities import at_most
from passes.document_loops.integers import Affine, Derived, place
from passes.document_loops.machine import Machine
from passes.document_loops.parts import Pieces
from passes.document_loops.uneven_row import Part, Uneven
from passes.loops import LoopFound


def cut_off(loop: LoopFound, both: list[Interpreted]) -> Interpreted | None:
    """The iteration that cuts, with cuts of nothing where the other one goes; else None."""
    branches = [[node for node in body if node.target in markers.LOOP_BRANCH] for _, body, _ in loop.iterations]
    if any(len(found) != 1 or found[0].args[2] for found in branches):
        return None
    for this, that in ((0, 1), (1, 0)):
        (machine, appended), (other, without) = both[this], both[that]
        number = _is_more(branches[this][0], machine)
        if number is None or not alike(machine, other, reach=False) or other.reach:
            continue
        made = {key: _joined(machine, key, (value, without[key]), other, number) for key, value in appended.items()}
        if all(value is not None for value in made.values()):
            return other, made
    return None


def _is_more(branch: fx.Node, machine: Machine) -> Affine | None:
    """The number of the document that is more than 0 in this iteration, and 0 or less in the other one."""
    condition, outcome = branch.args[0], branch.args[1]
    if not isinstance(condition, fx.Node) or len(condition.args) != 2 or machine.boundaries is None:
        return None
    sides = [machine.affine(arg) for arg in condition.args]
    if sides[0] is None or sides[1] is None:
        return None
    name, number = base_name(op_name(condition) or ""), sides[0].plus(sides[1], -1)
    if (name, outcome) in {("gt", True), ("le", False)}:
        return number
    if (name, outcome) in {("lt", True), ("ge", False)}:
        return number.times(-1)
    length = moved.own_length(machine.boundaries)
    never_less = at_most(Affine(), number, length)
    return number if (name, outcome) in {("ne", True), ("eq", False)} and never_less else None


def _joined(machine: Machine, collect: fx.Node, values: tuple[Any, Any], short: Machine, number: Affine) -> Any:
    """What both ways append, as one; None if it is not the same where there is nothing to cut."""
    value, other = values
    slots = uneven.slots_of(value)
    if value is other or slots is None or slots != uneven.slots_of(other):
        return value if value is other else None
    one = uneven.sequence(machine, collect, [value], *slots)
    rest = uneven.sequence(short, collect, [other], *slots)
    cutting, whole = (pieces.term if pieces is not None else None for pieces in (one, rest))
    if not isinstance(cutting, Uneven) or not isinstance(whole, Uneven):
        return None
    if (cutting.of, cutting.dim, cutting.dtype) != (whole.of, whole.dim, whole.dtype) or cutting.some or whole.some:
        return None
    length = moved.own_length(machine.boundaries)
    nothing, some = Affine(), Affine.of(Derived(max, (Affine(), number)))
    if tuple(_cut_by(part, number, nothing, length) for part in cutting.parts) != whole.parts:
        return None
    parts = tuple(_cut_by(part, number, some, length) for part in cutting.parts)
    return Pieces(machine.intern(dataclasses.replace(cutting, parts=parts, reach=whole.reach)), slots[0])


def _cut_by(part: Part, number: Affine, by: Affine, length: Affine) -> Part:
    """A part that a number cuts, cut by another one, which is not negative."""
    start, stop = (_instead(end, number, by, length) for end in (part.start, part.stop))
    return dataclasses.replace(part, start=start, stop=stop)


def _instead(value: Affine, number: Affine, by: Affine, length: Affine) -> Affine:
    total = Affine(const=value.const)
    for atom, count in value.atoms:
        made = Affine.of(atom)
        if isinstance(atom, Derived) and atom.function is place and atom.args[1] == length:
            if atom.args[0] == number:
                made = Affine.of(Derived(place, (by, length))) if by.atoms else Affine()
            elif atom.args[0] == number.times(-1):
                made = Affine.of(Derived(max, (Affine(), length.plus(by, -1)))) if by.atoms else length
        total = total.plus(made.times(count))
    return total
