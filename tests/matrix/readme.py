"""The table of tested versions in README.md, written from the results of the matrix and from nothing else."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from tabulate import tabulate

from tests.matrix.cells import CELLS
from tests.matrix.judge import Judgement, of, states

BEGIN = "<!-- versions: written by `python -m tests.matrix --readme` -->"
END = "<!-- end of versions -->"
HEADERS = (
    "torch", "Python", "loops rewritten", "shifts rewritten", "wrong results", "canaries", "Triton code", "whole suite",
)  # fmt: skip


def versions(judgements: Sequence[Judgement], missing: dict[str, str]) -> str:
    """The table as Markdown. ``missing``: cell -> why it was not run."""
    rows = []
    by_cell = {one.result.cell: one for one in judgements}
    for cell in CELLS:
        one = by_cell.get(str(cell))
        if one is None:
            rows.append([cell.torch, cell.python, f"not run: {missing.get(str(cell), 'no result')}"])
            continue
        result = one.result
        wrong = sum(v.outcome in ("wrong", "raised") for v in result.verdicts)
        code, suite = result.codegen, result.suite
        rows.append([
            cell.torch, cell.python, of(one.rewritten.get("loops")), of(one.rewritten.get("shifts")), str(wrong),
            states(result.canaries, "ok"), f"{code.passed} of {code.passed + len(code.failed)}",
            f"{suite.passed} passed, {len(suite.failed)} failed" if suite else "",
        ])  # fmt: skip
    return tabulate(rows, HEADERS, tablefmt="github", disable_numparse=True)


def write(path: pathlib.Path, text: str) -> bool:
    """Put ``text`` between the markers and say whether the file changed; ``ValueError`` where it has no markers."""
    before = path.read_text(encoding="utf-8")
    head, begin, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no line {BEGIN!r} followed by {END!r}")
    after = f"{head}{BEGIN}\n{text}\n{END}{tail}"
    path.write_text(after, encoding="utf-8")
    return after != before
