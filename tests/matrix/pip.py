"""Virtual environments and ``pip install``, with failures in words."""

from __future__ import annotations

import pathlib
import re
import shutil
import time
from collections.abc import Sequence

from tests.matrix.steps import Ended, StepFailed, run, say

NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|Temporary failure in name resolution|Connection refused"
    r"|Network is unreachable|ConnectTimeoutError|Read timed out|ProxyError|No route to host",
)
STEP_LIMIT = 900.0
"""Seconds for one ``pip install``; the largest takes one to two minutes on a good connection."""


class Budget:
    """The time that making environments may take altogether."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds

    def limit(self, seconds: float = STEP_LIMIT) -> float:
        left = self.ends - time.monotonic()
        if left < 1:
            raise StepFailed("no time was left for making it (--setup-minutes)")
        return min(seconds, left)


def make_venv(python: pathlib.Path, folder: pathlib.Path, budget: Budget) -> None:
    """A virtual environment that runs; one that does not (half made, or its Python is gone) is made anew."""
    if run([str(interpreter(folder)), "-m", "pip", "--version"], budget.limit(60)).code == 0:
        return
    shutil.rmtree(folder, ignore_errors=True)
    ended = run([str(python), "-m", "venv", str(folder)], limit := budget.limit(300))
    if ended.code != 0:
        raise StepFailed(f"python -m venv {ended.problem(limit)}")


def interpreter(folder: pathlib.Path) -> pathlib.Path:
    return folder / "bin" / "python"


def site_packages(folder: pathlib.Path) -> pathlib.Path:
    found = sorted(folder.glob("lib/python3.*/site-packages"))
    if not found:
        raise StepFailed(f"{folder} is not a virtual environment")
    return found[-1]


def install(cell: object, what: str, folder: pathlib.Path, arguments: Sequence[str], budget: Budget) -> None:
    """``pip install`` into the environment in ``folder``. Wheels are not cached: the environment is what is kept."""
    say(cell, f"installing {what} ...")
    limit = budget.limit()
    options = ["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--timeout=60", "--retries=2"]
    ended = run([str(interpreter(folder)), "-m", "pip", "install", *options, *arguments], limit)
    if ended.code != 0:
        raise StepFailed(f"cannot install {what}: {_reason(ended, limit)}")
    say(cell, f"installed {what} in {ended.seconds:.0f} s")


def _reason(ended: Ended, limit: float) -> str:
    """Pip's own error, or that there is no network: then pip says at last that no version was found."""
    if ended.code is None:
        return ended.problem(limit)
    if NO_NETWORK.search(ended.errors + ended.output):
        return "no network (the package index cannot be reached)"
    errors = [line[6:].strip() for line in ended.errors.splitlines() if line.startswith("ERROR:")]
    return errors[0][:300] if errors else ended.problem(limit)
