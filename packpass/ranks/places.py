"""How far ranks are in the calls of a group, as they say in its store if something is amiss.

Keys, beside those of `packpass.ranks.meeting`::

    lost                        how often a rank said that a call of its ended in an error
    lost/<rank>                 the last such call of this rank (`Lost`); "" if it has come back
    inside/<rank>               the call that this rank has been in for longer than a moment (`Standing`), or ""
    process/<rank>              the process of this rank
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packpass.ranks.meeting import Board

RAISED, LEFT, CUT = "raised", "left", "cut"


@dataclasses.dataclass(frozen=True)
class Lost:
    """What a rank says of a call that ended in an error.

    Attributes:
        state: RAISED an error of its own, LEFT because ranks do not agree, or was CUT off from the others.
        done: how many of its calls in this group went well before.
        errors: how many did not since, this one included.
        text: the error.
    """

    state: str
    done: int
    errors: int
    text: str


@dataclasses.dataclass(frozen=True)
class Standing:
    """A call that has not ended: how far its rank was, and the list of its graph (digest and entries)."""

    done: int
    errors: int
    digest: str
    entries: list[list[str]]


@dataclasses.dataclass
class Place:
    """Calls of this rank in one group.

    Attributes:
        done: how many went well, of graphs on which the ranks of the group have agreed.
        errors: how many ended in an error since.
        said: has this rank said in the store that one did?
    """

    done: int = 0
    errors: int = 0
    said: bool = False


_places: dict[str, Place] = {}


def place_in(group: str) -> Place:
    """By the name of the group."""
    return _places.setdefault(group, Place())


def lost(board: Board, rank: int) -> Lost | None:
    """What another rank has said last, unless it has come back."""
    text = board.get(f"lost/{rank}")
    return Lost(**json.loads(text)) if text else None


def concerns(found: Lost, place: Place) -> bool:
    """Is it about a call that a rank at this place is in, or was in without an error?"""
    return found.done < place.done or (found.done == place.done and found.errors > place.errors)


def inside_with(board: Board, rank: int) -> Standing | None:
    """The call that another rank is in, if this rank is about to enter the same."""
    text = board.get(f"inside/{rank}")
    standing = Standing(**json.loads(text)) if text else None
    place = place_in(board.group.group_name)
    there = standing is not None and (standing.done, standing.errors) == (place.done, place.errors)
    return standing if there else None
