"""What one program did in one environment, and how two environments compare."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterable
from typing import Any

RIGHT, WRONG, RAISED = "right", "wrong", "raised"
EAGER = "eager fails"
"""The program itself does not run on this torch, packpass or not: nothing that could be lost."""
STOCK = "stock fails"
"""What stock ``torch.compile`` makes of the program fails in the same way, because packpass left it alone."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One program in one environment; written as one JSON line."""

    corpus: str
    name: str
    demanded: bool  # the corpus says that it must be rewritten
    outcome: str
    detail: str = ""
    rewrites: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    refusals: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.corpus}/{self.name}"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Verdict:
        return Verdict(**{**data, "refusals": tuple(data["refusals"])})


@dataclasses.dataclass(frozen=True)
class Share:
    """Which programs are run: one of every so many. The name alone decides, so that a program that is added or taken
    away changes nothing for the others."""

    number: int = 0
    of: int = 1

    def has(self, key: str) -> bool:
        return zlib.crc32(key.encode()) % self.of == self.number

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Share()


@dataclasses.dataclass(frozen=True)
class Difference:
    """A program that does not fare as in the reference. ``lost``: it is worse, and fails the command."""

    key: str
    was: str
    now: str
    lost: bool


def read(lines: Iterable[str]) -> tuple[list[str], list[Verdict]]:
    """What ``python -m tests.matrix.programs`` wrote: the programs it was going to run, and what came of them."""
    promised: list[str] = []
    found = []
    for line in lines:
        data = json.loads(line)
        if "programs" in data:
            promised += data["programs"]
        else:
            found.append(Verdict.from_json(data))
    return promised, found


def describe(verdict: Verdict) -> str:
    """The verdict in a few words: what came out, what was rewritten, and the refusals where nothing was."""
    what = f"{verdict.rewrites} rewritten" if verdict.rewrites else "left alone"
    if verdict.outcome != RIGHT:
        what = f"{verdict.outcome}: {verdict.detail}" if verdict.detail else verdict.outcome
    elif verdict.graph_breaks:
        what += f", {verdict.graph_breaks} graph breaks"
    return what + (f" ({', '.join(verdict.refusals)})" if verdict.refusals else "")


def differences(reference: Iterable[Verdict], cell: Iterable[Verdict]) -> list[Difference]:
    """Every program that was right and rewritten in one and not in the other, in the order of the reference. One that
    is right, and whose rewrite is welcome only (the corpus does not demand it), is not lost."""
    there = {verdict.key: verdict for verdict in cell}
    found = []
    for was in reference:
        now = there.get(was.key)
        if now is None:
            found.append(Difference(was.key, describe(was), "did not run", True))
        elif _grade(was) != _grade(now):
            worse = _grade(now) < _grade(was) and now.outcome != EAGER
            lost = worse and (was.demanded or not _grade(now)[0])
            found.append(Difference(was.key, describe(was), describe(now), lost))
    return found


def wanted(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """What to hold a cell against: these, of the reference, but with everything rewritten that the corpora demand."""
    return [dataclasses.replace(v, rewrites=1) if v.demanded and not v.rewrites else v for v in verdicts]


def demanded_of(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The same where there is no reference: of these, of the cell itself, only what is demanded."""
    return wanted(Verdict(v.corpus, v.name, True, RIGHT) for v in verdicts if v.demanded)


def _grade(verdict: Verdict) -> tuple[bool, int, int]:
    """Larger is better: right, number of rewrites, and graph breaks where something was rewritten."""
    right = verdict.outcome in (RIGHT, EAGER, STOCK)
    return right, verdict.rewrites, -verdict.graph_breaks if verdict.rewrites else 0
