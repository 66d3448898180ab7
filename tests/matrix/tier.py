"""The short tier in one environment: doctor's canaries, the programs of both corpora, Triton code; and the whole suite.

Every step is a process of that environment's Python with a time limit. What a step finds is plain data; a step that
could not do its work says so in words and fails the cell.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import resource
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from typing import Any

from tests.matrix.environments import Environment
from tests.matrix.steps import Ended, run, say
from tests.matrix.verdicts import RAISED, WHOLE, Share, Verdict, read

DOCTOR_LIMIT, PROGRAMS_LIMIT, CODEGEN_LIMIT, SUITE_LIMIT = 300.0, 1800.0, 900.0, 3 * 3600.0
CODEGEN = ("tests/ops", "tests/dist/test_cp_structure.py", "-k", "triton", "-m", "not slow and not cuda")
MOST_DEATHS = 5
"""After so many programs that ended their process the rest is not tried."""


@dataclasses.dataclass
class Tests:
    """What a run of pytest came to."""

    passed: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    skipped: int = 0
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.problem


@dataclasses.dataclass
class Result:
    """Everything found in one cell. ``unavailable`` says in words why nothing could be."""

    cell: str
    unavailable: str = ""
    python: str = ""
    torch: str = ""
    source: str = ""  # which state of the repository this is about
    hooks: dict[str, str] = dataclasses.field(default_factory=dict)  # hook group -> state
    canaries: dict[str, str] = dataclasses.field(default_factory=dict)  # canary -> state
    broken: list[str] = dataclasses.field(default_factory=list)  # what doctor calls broken, and why
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    share: Share = WHOLE  # of the programs
    problems: list[str] = dataclasses.field(default_factory=list)  # steps that could not do their work
    codegen: Tests = dataclasses.field(default_factory=Tests)
    suite: Tests | None = None
    seconds: float = 0.0
    processor_seconds: float = (
        0.0  # of all its processes: what to expect of the seconds on a machine that is not shared
    )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Result:
        data = json.loads(text)
        data["verdicts"] = [Verdict.from_json(item) for item in data["verdicts"]]
        data["share"] = Share(**data["share"])
        data["codegen"] = Tests(**data["codegen"])
        data["suite"] = Tests(**data["suite"]) if data["suite"] else None
        return Result(**data)


def short(env: Environment, jobs: int, source: str, share: Share = WHOLE) -> Result:
    """The short tier, with this share of the programs."""
    started, busy = time.monotonic(), _processor_seconds()
    result = Result(str(env.cell), source=source, share=share)
    _doctor(env, result)
    _programs(env, result, jobs)
    say(env.cell, "Triton code ...")
    result.codegen = pytest(env, CODEGEN, jobs, CODEGEN_LIMIT)
    say(env.cell, f"Triton code: {words(result.codegen)}")
    result.seconds = round(time.monotonic() - started, 1)
    result.processor_seconds = round(_processor_seconds() - busy, 1)
    return result


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# === Doctor ==================================================================================================


def _doctor(env: Environment, result: Result) -> None:
    say(env.cell, "doctor ...")
    ended = run([str(env.python), "-m", "packpass", "doctor", "--json", "-"], DOCTOR_LIMIT)
    try:
        read_doctor(json.loads(ended.output), result)
    except (ValueError, KeyError, TypeError):
        result.problems.append(f"doctor {ended.problem(DOCTOR_LIMIT)}")
    on = sum(state == "on" for state in result.hooks.values())
    fine = sum(state == "ok" for state in result.canaries.values())
    say(
        env.cell,
        f"doctor: {on} of {len(result.hooks)} hook groups on, {fine} of {len(result.canaries)} canaries right, "
        f"{ended.seconds:.0f} s",
    )


def read_doctor(data: dict[str, Any], result: Result) -> None:
    """What matters of ``doctor --json``: hook groups, canaries, versions, and whatever is broken."""
    for check in data["checks"]:
        section, name, state = check["section"].lower(), check["name"], check["state"]
        if "hook" in section:
            result.hooks[name] = state
        elif "canar" in section:
            result.canaries[name] = state
        elif section == "versions" and name in ("python", "torch"):
            setattr(result, name, check["detail"].split(":")[0])
        if state == "broken":
            result.broken.append(f"{name}: {check['detail']}")
    if not data["ok"] and not result.broken:
        result.broken.append("doctor is not content and does not say why")


# === Programs ================================================================================================


def _programs(env: Environment, result: Result, jobs: int) -> None:
    started = time.monotonic()
    say(env.cell, "loop and shift programs ...")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        parts = list(pool.map(lambda part: _part(env, part, jobs, result.share), range(jobs)))
    for verdicts, problem in parts:
        result.verdicts += verdicts
        result.problems += [problem] if problem else []
    result.verdicts.sort(key=lambda verdict: verdict.key)
    wrong = sum(v.outcome == "wrong" for v in result.verdicts)
    rewritten = sum(v.rewrites > 0 for v in result.verdicts)
    seconds = time.monotonic() - started
    which = "" if result.share == WHOLE else f" (one of every {result.share.of})"
    say(env.cell, f"programs{which}: {len(result.verdicts)} ran, {rewritten} rewritten, {wrong} wrong, {seconds:.0f} s")


def _part(env: Environment, part: int, parts: int, share: Share = WHOLE) -> tuple[list[Verdict], str]:
    """One share of the programs. A program that ends its process is named, and the others run without it."""
    ends = time.monotonic() + PROGRAMS_LIMIT
    verdicts: list[Verdict] = []
    deaths = 0
    while True:
        skip = [verdict.key for verdict in verdicts]
        command = [str(env.python), "-m", "tests.matrix.programs", "--part", f"{part}/{parts}", "--share", str(share)]
        limit = max(ends - time.monotonic(), 1.0)
        ended = run([*command, "--skip", *skip] if skip else command, limit)
        promised, found = read(complete(ended.output))
        verdicts += found
        if ended.code == 0:
            return verdicts, ""
        left = promised[len(found) :]
        deaths += 1
        if not left or ended.code is None or deaths > MOST_DEATHS:
            return verdicts, f"programs: {ended.problem(limit)}; {len(left)} did not run"
        corpus, name = left[0].split("/")
        verdicts.append(Verdict(corpus, name, False, RAISED, f"the process {ended.problem(limit)}"))


def complete(output: str) -> list[str]:
    """The lines that were written to their end."""
    return [line for line in output.splitlines(keepends=True) if line.endswith("}\n")]


# === Tests ===================================================================================================


def suite(env: Environment, jobs: int) -> Tests:
    """Everything that is not slow."""
    say(env.cell, "the whole suite ...")
    found = pytest(env, ("--dist", "loadgroup", "-m", "not slow"), jobs, SUITE_LIMIT)
    say(env.cell, f"the whole suite: {words(found)}")
    return found


def pytest(env: Environment, arguments: tuple[str, ...], jobs: int, limit: float) -> Tests:
    """Run pytest there and read its report."""
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch, "report.xml")
        options = ["-q", "-p", "no:cacheprovider", "-n", str(jobs if jobs > 1 else 0), f"--junitxml={report}"]
        ended = run([str(env.python), "-m", "pytest", *options, *arguments], limit)
        return read_tests(report, ended, limit)


def read_tests(report: pathlib.Path, ended: Ended, limit: float) -> Tests:
    """Counts and the names of failures. Without a report, or without a single test, something is wrong."""
    if ended.code not in (0, 1):
        return Tests(problem=f"pytest {ended.problem(limit)}")
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        return Tests(problem=f"pytest wrote no report: {error}")
    found = Tests()
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            found.failed.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        elif "skipped" in kinds:
            found.skipped += 1
        else:
            found.passed += 1
    if not cases:
        found.problem = "pytest found no test"
    return found


def words(tests: Tests) -> str:
    """The counts as text."""
    if tests.problem:
        return tests.problem
    return f"{tests.passed} passed, {len(tests.failed)} failed, {tests.skipped} skipped"
