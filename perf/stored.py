"""Results of a whole run as one JSON file, so that those of another machine can be put beside one's own."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from perf.results import CaseResult

SCHEMA = 1


@dataclasses.dataclass
class Run:
    """One run of some cases: ``device`` is "cpu" or "cuda", ``environment`` says what it was measured with."""

    device: str
    environment: dict[str, Any]
    results: list[CaseResult]
    quick: bool = False


def write(run: Run, path: pathlib.Path) -> None:
    plain = {
        "schema": SCHEMA,
        "device": run.device,
        "quick": run.quick,
        "environment": run.environment,
        "cases": [result.to_dict() for result in run.results],
    }
    path.write_text(json.dumps(plain, indent=1, default=str) + "\n", encoding="utf-8")


def read(path: pathlib.Path) -> Run:
    """What :func:`write` wrote; ValueError where the file is something else."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if plain["schema"] != SCHEMA:
            raise ValueError(f"{path} has schema {plain['schema']}; this version reads {SCHEMA}")
        results = [CaseResult.from_dict(case) for case in plain["cases"]]
        return Run(plain["device"], dict(plain["environment"]), results, bool(plain.get("quick")))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no result of python -m perf: {type(error).__name__}: {error}") from error


def merged(runs: Sequence[Run]) -> list[CaseResult]:
    """The cases of all runs, each case on one device beside the same case on another, in the order of the first run."""
    names = list(dict.fromkeys(result.name for run in runs for result in run.results))
    return [result for name in names for run in runs for result in run.results if result.name == name]
