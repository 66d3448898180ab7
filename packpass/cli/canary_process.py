"""Runs the canaries in a process of their own and reads what became of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from packpass._options import ENV_PREFIX, Options
from packpass.cli.canaries import FAILED, Outcome

SECONDS = 180.0
"""For all of them together; a few seconds are enough on an idle core."""


def _command() -> list[str]:
    """This Python with this process's module path: the packpass that asks is the packpass that is looked at."""
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; from packpass.cli.canaries import main; main()",
    ]


def _environment() -> dict[str, str]:
    """Without the user's options, which could switch off what the canaries look for; hooks stay as the user set
    them."""
    options = {ENV_PREFIX + field.name.upper() for field in dataclasses.fields(Options)}
    return {name: value for name, value in os.environ.items() if name not in options}


def outcomes(
    names: Sequence[str], command: Sequence[str] | None = None, seconds: float = SECONDS
) -> dict[str, Outcome]:
    """The outcome of every canary in ``names``; those of which nothing was heard failed, with the reason."""
    # Files, not pipes: a grandchild that holds a pipe open would keep us waiting.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            list(command or _command()), stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=_environment()
        )
        try:
            status = process.wait(seconds)
            end = f"the process ended with status {status}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            end = f"did not end within {seconds:.0f} s"
        except BaseException:
            process.kill()
            raise
        out.seek(0)
        errors.seek(0)
        found = {outcome.name: outcome for line in out if (outcome := _read(line)) is not None}
        said = [line for line in errors.read().splitlines() if line.strip()]
    if said:
        end += f": {said[-1].strip()[:300]}"
    missing = Outcome(FAILED, end, right=False)
    return {name: found.get(name, dataclasses.replace(missing, name=name)) for name in names}


def _read(line: str) -> Outcome | None:
    """One outcome, or None for what else a library may have printed, or half a line."""
    try:
        return Outcome(**json.loads(line))
    except (ValueError, TypeError):
        return None
