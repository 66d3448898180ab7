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

from tests.tiers import mostly_slow

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def probed(mode: str) -> dict[str, Any]:
    """The probe's JSON from a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.loops.isolation_probe", mode],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("PROBE"))
    loaded: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    return loaded


def test_the_probe_sees_something() -> None:
    plain = probed("plain")
    assert plain["device_bounds"]["graphs"] == [], "stock Dynamo runs the naive loop eagerly"
    assert all(isinstance(error, str) for error in plain["device_bounds, fullgraph"]["results"])
    assert plain["layers_and_rolls"]["stats"]["unique_graphs"] >= 1
    code = [text for key, found in plain.items() if key.endswith(", inductor") for text in found.get("code", [])]
    assert any("cpp_fused" in text for text in code)


@pytest.mark.parametrize("mode", mostly_slow(["used", "imported", "interleaved"], 3))
def test_stock_compilation_is_unchanged(mode: str) -> None:
    plain, other = probed("plain"), probed(mode)
    assert plain.keys() == other.keys()
    for key in plain:
        assert plain[key] == other[key], key
