"""A branch in front of slots that fill a document up: ``if pad > 0: part = torch.cat((part, zeros(pad)))``.

Documents that go the other way need as many slots as none. Where that is what the branch says, both ways are the one
that fills up, and what it leaves is looked at as if there was no branch.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass import markers
from packpass.semantics import op_name
from packpass.semantics.names import base_name
from passes.document_loops import uneven
from passes.document_loops.integers import Affine
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.parts import Pieces
from passes.document_loops.uneven_row import Open, Uneven
from passes.loops import LoopFound

Interpreted = tuple[Machine, dict[fx.Node, Any]]

_AT_MOST = {("gt", False), ("le", True), ("ne", False), ("eq", True)}
"""Of ``difference <op> 0``, and which way it goes: then the difference is 0 or less."""


def filled_up(loop: LoopFound, both: list[Interpreted]) -> Interpreted | None:
    """The iteration that fills up, if the other one is what it is where there is nothing to fill; else None."""
    branches = [node for _, body, _ in loop.iterations for node in body if node.target in markers.LOOP_BRANCH]
    if any(node.args[2] for node in branches):
        return None  # which way these go is not known of every document
    for this, that in ((0, 1), (1, 0)):
        (machine, appended), (other, without) = both[this], both[that]
        if not alike(machine, other):
            continue
        nothing = _nothing(loop.iterations[that][1], other)
        if all(_same(machine, collect, value, without[collect], nothing) for collect, value in appended.items()):
            return machine, appended
    return None


def alike(one: Machine, other: Machine, reach: bool = True) -> bool:
    """Do two iterations do the same, but for what they append? ``reach``: and are they ones of the same documents?"""
    stores = [[(key, s.term, s.version, s.point_fills) for key, s in m.outer.items()] for m in (one, other)]
    cells = [[(key, c.term, c.version) for key, c in m.rows.items()] for m in (one, other)]
    rest = [(m.boundaries, m.checks, m.skips_empty, m.skip, m.split_of, reach and m.reach) for m in (one, other)]
    return stores[0] == stores[1] and cells[0] == cells[1] and rest[0] == rest[1]


def _nothing(body: tuple[fx.Node, ...], machine: Machine) -> list[Affine]:
    """Numbers of the document that are 0 or less in an iteration, as its branches say."""
    found = []
    for node in body:
        condition = node.args[0] if node.target in markers.LOOP_BRANCH else None
        if not isinstance(condition, fx.Node) or len(condition.args) != 2:
            continue
        sides = [machine.affine(arg) for arg in condition.args]
        name, outcome = base_name(op_name(condition) or ""), node.args[1]
        if None in sides:
            continue
        difference = sides[0].plus(sides[1], -1)  # type: ignore[union-attr, arg-type]
        if (name, outcome) in _AT_MOST:
            found.append(difference)
        if (name, outcome) in {("lt", False), ("ge", True), ("ne", False), ("eq", True)}:
            found.append(difference.times(-1))
    return found


def _same(machine: Machine, collect: fx.Node, value: Any, other: Any, nothing: list[Affine]) -> bool:
    """Are both the same, but for slots that fill up, of which the other has none to fill?"""
    if not isinstance(value, Pieces) or not isinstance(value.term, Uneven):
        return value is other or (
            isinstance(value, Segment)
            and isinstance(other, Segment)
            and (value.store.term, value.window, value.rank) == (other.store.term, other.window, other.rank)
        )
    term = value.term
    if isinstance(other, Segment):
        other = uneven.sequence(machine, collect, [other], value.rank, term.dim)
    if not isinstance(other, Pieces) or not isinstance(other.term, Uneven) or other.rank != value.rank:
        return False
    kept = [
        (of, part)
        for of, part in zip(term.of, term.parts, strict=True)
        if not isinstance(of, Open) or part.stop.plus(part.start, -1) not in nothing
    ]
    same = kept == list(zip(other.term.of, other.term.parts, strict=True))
    return same and (term.dim, term.reach, term.dtype) == (other.term.dim, other.term.reach, other.term.dtype)
