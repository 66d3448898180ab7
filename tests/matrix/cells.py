"""The environments of the matrix: which torch on which Python. The one place to add a version to."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Cell:
    """One version of torch on one version of Python."""

    torch: str
    python: str

    def __str__(self) -> str:
        return f"{self.torch}-py{self.python}"

    @staticmethod
    def parse(text: str) -> Cell:
        """``2.15.0-py3.12``, also of a version that is in no table here."""
        found = re.fullmatch(r"(\d+\.\d+\.\d+[\w.]*)-py(3\.\d+)", text)
        if found is None:
            raise ValueError(f"{text!r} is not a cell; cells are written TORCH-pyPYTHON, such as {CELLS[0]}")
        return Cell(found[1], found[2])


REFERENCE = Cell("2.13.0", "3.11")
"""The everyday environment, whose programs all others are compared with."""

CELLS = (
    *(Cell(torch, "3.12") for torch in ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")),
    *(Cell(REFERENCE.torch, python) for python in ("3.10", "3.11", "3.13")),
)

FULL = (Cell("2.15.0", "3.12"), Cell("2.11.0", "3.12"))
"""Where ``make test-matrix FULL=1`` runs the whole suite."""


def extras(cell: Cell) -> tuple[str, ...]:
    """The extras of the project that the tests to be run there need."""
    return ("test", "perf", "clients") if cell in FULL else ("test",)
