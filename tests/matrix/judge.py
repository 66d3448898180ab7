"""Is a cell as good as the reference? Tables of cells and of the programs that fare differently."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence

from tabulate import tabulate

from tests.matrix.tier import Result, words
from tests.matrix.verdicts import (
    EAGER,
    RAISED,
    STOCK,
    WRONG,
    Difference,
    Verdict,
    demanded_of,
    describe,
    differences,
    wanted,
)


@dataclasses.dataclass
class Judgement:
    """One cell against the reference."""

    result: Result
    passed: int  # programs that are right and not lost, canaries, tests of Triton code
    failed: list[str]
    differences: list[Difference]
    rewritten: dict[str, tuple[int, int]]  # corpus -> (rewritten here, rewritten in the reference)


def judge(result: Result, reference: Result | None) -> Judgement:
    """``reference``: the everyday environment where it ran, else what the corpora demand counts."""
    goal = wanted(reference.verdicts) if reference else demanded_of(result.verdicts)
    goal = [verdict for verdict in goal if result.share.has(verdict.key)]
    found = differences(goal, result.verdicts)
    bad = [d.key for d in found if d.lost]
    bad += [v.key for v in result.verdicts if v.outcome in (WRONG, RAISED) and v.key not in bad]
    failed = [*(f"lost or wrong: {key}" for key in bad), *result.problems]
    failed += [f"doctor: {text}" for text in result.broken]
    failed += [f"Triton code: {name}" for name in result.codegen.failed]
    failed += [f"Triton code: {result.codegen.problem}"] if result.codegen.problem else []
    passed = len({v.key for v in result.verdicts} - set(bad)) + result.codegen.passed
    passed += sum(state == "ok" for state in result.canaries.values())
    here = {v.key for v in result.verdicts if v.rewrites}
    rewritten = {}
    for corpus in dict.fromkeys(v.corpus for v in goal):
        there = {v.key for v in goal if v.corpus == corpus and v.rewrites}
        rewritten[corpus] = (len(here & there), len(there))
    return Judgement(result, passed, failed, found, rewritten)


def of(pair: tuple[int, int] | None) -> str:
    return f"{pair[0]} of {pair[1]}" if pair else "did not run"


def states(found: dict[str, str], good: str) -> str:
    """How many are as they should be, or that there are none."""
    return f"{sum(state == good for state in found.values())} of {len(found)}" if found else "none"


HEADERS = (
    "cell", "hook groups on", "canaries", "loops rewritten", "shifts rewritten", "lost", "wrong", "raised",
    "stock fails", "Triton code", "seconds", "of CPU",
)  # fmt: skip


def table(judgements: Sequence[Judgement]) -> str:
    """One row per cell that ran."""
    rows = []
    for one in judgements:
        result = one.result
        outcomes = [v.outcome for v in result.verdicts]
        rows.append([
            result.cell, states(result.hooks, "on"), states(result.canaries, "ok"),
            of(one.rewritten.get("loops")), of(one.rewritten.get("shifts")),
            sum(d.lost for d in one.differences), outcomes.count(WRONG), outcomes.count(RAISED),
            outcomes.count(STOCK) + outcomes.count(EAGER), words(result.codegen), f"{result.seconds:.0f}",
            f"{result.processor_seconds:.0f}",
        ])  # fmt: skip
    return tabulate(rows, HEADERS, disable_numparse=True, maxheadercolwidths=10)


def details(judgements: Sequence[Judgement]) -> str:
    """Per cell, every program that fares otherwise than in the reference, and everything else that failed."""
    parts = []
    for one in judgements:
        known = {d.key for d in one.differences}
        rows = [[d.key, d.was, textwrap.shorten(d.now, 150), "LOST" if d.lost else "not lost"] for d in one.differences]
        rows += [[v.key, "", textwrap.shorten(describe(v), 150), v.outcome] for v in _notable(one.result, known)]
        lines = [f"{one.result.cell}: {len(one.differences)} programs differ from the reference"]
        lines += (
            [tabulate(rows, ["program", "reference", "here", ""], maxcolwidths=[None, 40, 70, None])] if rows else []
        )
        lines += [text for text in one.failed if not text.startswith("lost or wrong")]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _notable(result: Result, known: set[str]) -> list[Verdict]:
    return [v for v in result.verdicts if v.outcome in (WRONG, RAISED, STOCK, EAGER) and v.key not in known]


def suite_table(results: Sequence[Result]) -> str:
    """Counts of the whole suite per cell, and what failed."""
    ran = [(result.cell, result.suite) for result in results if result.suite]
    rows = [[cell, tests.passed, len(tests.failed), tests.skipped, tests.problem] for cell, tests in ran]
    lines = [tabulate(rows, ["whole suite", "passed", "failed", "skipped", ""])]
    for cell, tests in ran:
        lines += [f"{cell}: FAILED {name}" for name in tests.failed]
    return "\n".join(lines)
