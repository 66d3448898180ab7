"""``python -m tests.matrix.compare REFERENCE CELL``: two runs of ``tests.matrix.programs``, program by program."""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
from collections.abc import Sequence

from tabulate import tabulate

from tests.matrix.verdicts import Verdict, differences, read


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if a program is lost in the cell."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.compare", description=__doc__)
    parser.add_argument("reference", type=pathlib.Path)
    parser.add_argument("cell", type=pathlib.Path)
    arguments = parser.parse_args(argv)
    reference, cell = (read(path.read_text().splitlines())[1] for path in (arguments.reference, arguments.cell))
    print(f"reference: {summary(reference)}\ncell:      {summary(cell)}")
    found = differences(reference, cell)
    if found:
        rows = [[d.key, d.was, d.now, "LOST" if d.lost else ""] for d in found]
        print(tabulate(rows, ["program", "reference", "here", ""], maxcolwidths=[None, 40, 80, None]))
    lost = sum(d.lost for d in found)
    print(f"{len(found)} differences, {lost} lost")
    return 1 if lost else 0


def summary(verdicts: Sequence[Verdict]) -> str:
    """Counts per corpus."""
    parts = []
    for corpus in ("loops", "shifts"):
        here = [v for v in verdicts if v.corpus == corpus]
        demanded = [v for v in here if v.demanded]
        counts = collections.Counter(v.outcome for v in here)
        parts.append(
            f"{corpus} {sum(v.rewrites > 0 for v in demanded)} of {len(demanded)} rewritten, "
            + ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        )
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
