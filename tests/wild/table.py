"""The table that ``make test-wild`` ends with; ``python -m tests.wild.table`` prints it again."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping

from tabulate import tabulate

from tests.wild import groups
from tests.wild.case import Case
from tests.wild.measure import Outcome


def text(outcomes: Mapping[str, Outcome]) -> str:
    """A line per case, then one of totals."""
    cases = [case for case in groups.cases() if case.name in outcomes]
    rows = [_row(case, outcomes[case.name]) for case in sorted(cases, key=lambda c: (c.package, c.name))]
    head = ["package", "case", "loops", "refused as", "graphs", "breaks", "stock: graphs", "breaks", "first call"]
    return f"{tabulate(rows, head, disable_numparse=True)}\n\n{totals(cases, outcomes)}"


def _row(case: Case, outcome: Outcome) -> list[str]:
    said = "WRONG" if outcome.error else outcome.verdict
    if not case.loops:
        said += " (has none)"
    stock = ["fails", ""] if outcome.stock_error else [str(outcome.stock_graphs), str(outcome.stock_breaks)]
    counts = [str(outcome.graphs), str(outcome.breaks), *stock]
    return [case.package, case.name, said, ", ".join(sorted(outcome.codes)), *counts, _ratio(outcome)]


def _ratio(outcome: Outcome) -> str:
    if not outcome.seconds or not outcome.stock_seconds or outcome.stock_error:
        return ""
    return f"{outcome.seconds / outcome.stock_seconds:.2f}x"


def totals(cases: list[Case], outcomes: Mapping[str, Outcome]) -> str:
    """How many cases of how many packages fared how."""
    counts = collections.Counter(outcomes[case.name].verdict for case in cases if case.loops)
    wrong = sum(bool(outcomes[case.name].error) for case in cases)
    looping = sum(case.loops for case in cases)
    packages = {case.package.partition("==")[0] for case in cases}
    ran = [outcomes[case.name] for case in cases]
    ratios = [o.seconds / o.stock_seconds for o in ran if o.seconds and o.stock_seconds and not o.stock_error]
    more = sum(o.graphs > o.stock_graphs for o in ran if not o.stock_error)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("rewritten", "in part", "refused", "untouched"))
    first = f"; first call {statistics.median(ratios):.2f}x of stock's in the median" if ratios else ""
    return (
        f"{len(cases)} cases of {len(packages)} packages, {wrong} wrong; of {looping} with loops over documents "
        f"{said}; "
        f"{more} with more graphs than stock{first}"
    )


if __name__ == "__main__":
    print(text(groups.saved()))
