"""Which way each traced iteration of a loop takes at the branches on data that are followed.

A body without such a branch is traced twice. One with a branch is traced once for each way through it: the iteration
that meets a branch nobody has answered takes it as true, and a later one goes the same way up to there and takes it as
false. What a branch has said answers others of the same iteration: the condition itself, its opposite, and one on the
same number where that number is a length (`packpass.capture.questions`). So three branches that have nothing to do with
each other are eight ways, and an ``elif`` is one more.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.capture.questions import question

MOST = 8
"""Ways through one body that are followed: the body is traced, and compiled, once for each."""


class TooMany(Exception):
    """There are more ways through the body than are followed."""


class Ways:
    """The ways through the body of one loop, as far as they are known."""

    def __init__(self) -> None:
        self.asked: dict[int, list[tuple[Any, bool]]] = {}
        """Iteration -> every condition that it has met, in turn, and which way it went."""
        self.of_contents = False
        """Is one of the branches on what documents hold?"""
        self._open: list[list[bool]] = []
        """Ways that are still to be taken: the outcomes of their first branches."""
        self._plan: list[bool] = []
        self._taken: list[bool] = []

    def __bool__(self) -> bool:
        """Has any iteration met a branch?"""
        return bool(self.asked)

    def begin(self) -> None:
        """An iteration begins: it takes a way that none has taken."""
        self._plan = self._open.pop() if self._open else []
        self._taken = []

    def left(self) -> bool:
        """Is there a way that no iteration has taken?"""
        return bool(self._open)

    def outcome(self, iteration: int, condition: Any, lengths: bool = True) -> tuple[bool, bool]:
        """Which way the iteration goes, and whether it does so because both numbers are lengths; raises `TooMany`.
        ``lengths``: may they be?"""
        asked = self.asked.setdefault(iteration, [])
        for known, outcome in asked:
            found = _answer(known, outcome, condition, lengths)
            if found is not None:
                if not any(condition == other for other, _ in asked):
                    asked.append((condition, found[0]))
                return found
        made = self._plan[len(self._taken)] if len(self._taken) < len(self._plan) else True
        if len(self._taken) >= len(self._plan):
            if iteration + len(self._open) + 2 > MOST:
                raise TooMany
            self._open.append([*self._taken, False])
        self._taken.append(made)
        asked.append((condition, made))
        return made, False


def _answer(known: Any, outcome: bool, condition: Any, lengths: bool) -> tuple[bool, bool] | None:
    """What the outcome of one condition says about another one, and whether only lengths say so."""
    if known == condition:
        return outcome, False
    if isinstance(known, fx.Node) or isinstance(condition, fx.Node):
        return None
    if known == ~condition:
        return not outcome, False
    one, other = question(known), question(condition)
    if one is None or other is None or not (lengths or one.is_sure(outcome, other)):
        return None
    answer = one.answered(outcome, other)
    return None if answer is None else (answer, True)
