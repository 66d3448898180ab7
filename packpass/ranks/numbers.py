"""Sizes and boundaries of one call, and where those of two ranks differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import zip_longest

SHOWN = 4096
"""Of more boundaries than this the last number stands for the rest."""

ABSENT = "no entry"


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Sizes or boundaries of one call: ``what`` says of what; an entry that is not known is None."""

    what: str
    entries: list[int | None] | None


def first_number(entries: dict[int, list[int | None] | None]) -> tuple[str, dict[int, str]]:
    """At which entry lists differ, and what each rank has there, or nothing; what is not known is like any other."""
    known = {rank: numbers for rank, numbers in entries.items() if numbers is not None}
    for i, at in enumerate(zip_longest(*known.values(), fillvalue=ABSENT)):
        if len({value for value in at if value is not None}) > 1:
            place = f", entry {i}" if i < SHOWN else f", beyond entry {SHOWN}"
            pairs = zip(known.items(), at, strict=True)
            return place, {rank: f"{value} in {_shown(numbers, i)}" for (rank, numbers), value in pairs}
    return "", {}


def _shown(numbers: Sequence[int | None], i: int) -> str:
    """The neighbourhood of entry i."""
    first, last = max(0, i - 4), min(len(numbers), i + 5)
    inside = ", ".join("*" if number is None else str(number) for number in numbers[first:last])
    return f"[{'..., ' if first else ''}{inside}{', ...' if last < len(numbers) else ''}]"
