"""Subprocesses with a time limit, a log and a line of progress each."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).parents[2]


class StepFailed(Exception):
    """A step did not do what it was for; the message is for people."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended. ``code`` is None where it was stopped at its time limit."""

    code: int | None
    output: str  # standard output
    errors: str  # standard error
    seconds: float

    @property
    def last_line(self) -> str:
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1].strip()[:300] if lines else "it printed nothing"

    def problem(self, limit: float) -> str:
        """In words, what went wrong."""
        if self.code is None:
            return f"stopped after {limit:.0f} s"
        how = f"ended by signal {-self.code}" if self.code < 0 else f"ended with status {self.code}"
        return f"{how}: {self.last_line}"


def say(cell: object, text: str) -> None:
    """One line of progress."""
    print(f"{time.strftime('%H:%M:%S')}  {cell!s:15}  {text}", flush=True)


def run(command: Sequence[str], limit: float, variables: Mapping[str, str] | None = None) -> Ended:
    """Run ``command`` from the repository's root; at ``limit`` seconds the process and its children are stopped.

    Neither the caller's Python nor options of packpass reach it: the repository is all there is on ``PYTHONPATH``.
    """
    started = time.monotonic()
    foreign = ("PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
    clean = {k: v for k, v in os.environ.items() if k not in foreign and not k.startswith("PACKPASS_")}
    environment = {**clean, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(variables or {})}
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Ended(127, "", f"{command[0]}: {error}", 0.0)
    try:
        output, errors = process.communicate(timeout=limit)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        stop(process)
        output, errors = process.communicate()
        code = None
    except BaseException:  # Ctrl-C stops the children as well: they have a session of their own
        stop(process)
        raise
    return Ended(code, output, errors, time.monotonic() - started)


def stop(process: subprocess.Popen[str]) -> None:
    """End the process and everything that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
