"""Importing and using packpass changes nothing for any other backend: the same graphs, breaks, errors and code."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def probed(mode: str, *names: str) -> dict[str, Any]:
    """The probe's JSON from a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.loops.isolation_probe", mode, *names],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PROBE"))
    loaded: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    return loaded


FEW = ("device_bounds", "iterates_boundaries")


@pytest.mark.slow
def test_the_probe_sees_something() -> None:
    plain = probed("plain", *FEW)
    assert plain["device_bounds"]["graphs"] == [], "stock Dynamo runs the naive loop eagerly"
    assert all(isinstance(error, str) for error in plain["device_bounds, fullgraph"]["results"])
    assert plain["iterates_boundaries"]["stats"]["unique_graphs"] >= 1
    code = [text for name in FEW for text in plain[f"{name}, inductor"].get("code", ())]
    assert any("cpp_fused" in text for text in code)


@pytest.mark.parametrize("names", [FEW, pytest.param((), marks=pytest.mark.slow)], ids=["few", "all"])
@pytest.mark.parametrize(
    "mode", ["used", *(pytest.param(m, marks=pytest.mark.slow) for m in ("imported", "interleaved"))]
)
def test_stock_compilation_is_unchanged(mode: str, names: tuple[str, ...]) -> None:
    plain, other = probed("plain", *names), probed(mode, *names)
    assert plain.keys() == other.keys()
    for key in plain:
        assert plain[key] == other[key], key
