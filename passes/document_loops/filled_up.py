"""A branch in front of slots that fill a document up: ``if pad > 0: part = torch.cat((part, zeros(pad)))``.

Documents that go the other way need as many slots as none. Where that is what the branch says, both ways are the one
that fills up, and what it leaves is looked at as if there was no branch.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass import markers
from passes.document_loops import uneven
from passes.document_loops.integers import Affine
from passes.document_loops.machine import Document, Machine, Segment
from passes.document_loops.padded import TOO_LONG, PaddedTo, none_left
from passes.document_loops.parts import Pieces
from passes.document_loops.terms import Term
from passes.document_loops.uneven_row import Open, Uneven
from passes.loops import LoopFound, is_unused

Interpreted = tuple[Machine, dict[fx.Node, Any]]


def filled_up(loop: LoopFound, both: list[Interpreted]) -> Interpreted | None:
    """The iteration that fills up, if the other one is what it is where there is nothing to fill; else None."""
    branches = [node for _, body, _ in loop.iterations for node in body if node.target in markers.LOOP_BRANCH]
    if any(node.args[2] for node in branches):
        return None  # which way these go is not known of every document
    for this, that in ((0, 1), (1, 0)):
        (machine, appended), (other, without) = both[this], both[that]
        if not alike(machine, other, reach=bool(machine.reach), width=False):
            continue
        nothing = none_left(loop.iterations[that][1], other)
        used = [collect for collect in appended if not is_unused(collect)]
        if all(_same(machine, collect, appended[collect], without[collect], nothing) for collect in used):
            machine.checks += [check for check in other.checks if check not in machine.checks]
            return machine, appended
    return None


def alike(one: Machine, other: Machine, reach: bool = True, width: bool = True) -> bool:
    """Do two iterations do the same, but for what they append? ``reach``: and are they ones of the same documents?
    ``width``: and do they check alike that documents are not longer than what they are padded to?"""
    stores = [[(key, s.term, s.version, s.point_fills) for key, s in m.outer.items()] for m in (one, other)]
    cells = [[(key, c.term, c.version) for key, c in m.rows.items()] for m in (one, other)]
    checks = [[check for check in m.checks if width or check.message != TOO_LONG] for m in (one, other)]
    rest = [(m.boundaries, m.skips_empty, m.skip, m.split_of, reach and m.reach) for m in (one, other)]
    return checks[0] == checks[1] and stores[0] == stores[1] and cells[0] == cells[1] and rest[0] == rest[1]


def _same(machine: Machine, collect: fx.Node, value: Any, other: Any, nothing: list[Affine]) -> bool:
    """Are both the same, but for slots that fill up, of which the other has none to fill?"""
    if isinstance(value, Document) and isinstance(other, Document):
        return value.cell.term is other.cell.term or _fills_up(value.cell.term, other.cell.term)
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


def _fills_up(term: Term, as_wide: Term) -> bool:
    """Is this a document padded to a width, and ``as_wide`` the same document where it is found to be as wide?"""
    if not isinstance(term, PaddedTo) or not isinstance(as_wide, PaddedTo) or as_wide.fill is not None:
        return False
    return (term.of, term.along, term.width) == (as_wide.of, as_wide.along, as_wide.width)
