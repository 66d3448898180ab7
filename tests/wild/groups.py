"""Every case declared, and the results of a group of them: one process per file of cases, run once."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pathlib
import subprocess
import sys

from tests.wild import packages
from tests.wild.case import CASES, Case
from tests.wild.measure import Outcome

HERE = pathlib.Path(__file__).parent
RESULTS = packages.ROOT / "perf" / "results" / "wild"
MINUTES = 20
"""Longest time of one group."""


def cases() -> list[Case]:
    """All cases of all files; declaring a case imports no package."""
    for path in sorted(HERE.glob("cases_*.py")):
        importlib.import_module(f"tests.wild.{path.stem}")
    return list(CASES.values())


def missing(case: Case) -> list[str]:
    """Packages that the case needs and that are not installed; those of the project's own extras are always there."""
    pins = [pin for pin in packages.pins() if pin == case.package or pin.startswith(f"{case.package}==")]
    return [pin for pin in pins if not packages.folder(pin).is_dir()]


def run(group: str) -> dict[str, Outcome]:
    """Run one group in a process of its own; what it said, also written to ``perf/results/wild``."""
    environment = {**os.environ, "PYTHONPATH": str(packages.ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.wild.run", group]
    try:
        done = subprocess.run(
            command,
            cwd=packages.ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60 * MINUTES,
            check=False,
        )
        said, trouble = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        said, trouble = (error.stdout or b"").decode(), f"longer than {MINUTES} minutes"
    found = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("wild: ")]
    outcomes = {one["name"]: Outcome(**one) for one in found}
    for case in CASES.values():
        if case.group == group and case.name not in outcomes:
            last = trouble.strip().splitlines()[-8:]
            outcomes[case.name] = Outcome(case.name, case.package, error="its process ended: " + " | ".join(last))
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = json.dumps({name: dataclasses.asdict(one) for name, one in outcomes.items()}, indent=1)
    written = RESULTS / f"{group}.{os.getpid()}"
    written.write_text(text + "\n", encoding="utf-8")
    written.replace(RESULTS / f"{group}.json")  # whole, whoever else writes it
    return outcomes


def saved() -> dict[str, Outcome]:
    """Results of the last runs of all groups."""
    found: dict[str, Outcome] = {}
    for path in sorted(RESULTS.glob("*.json")):
        found |= {name: Outcome(**one) for name, one in json.loads(path.read_text(encoding="utf-8")).items()}
    return found
