"""Find a Python of a given version on this machine."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

PROBE = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"


def find(version: str) -> pathlib.Path | None:
    """An interpreter of this version (``"3.12"``) that can make virtual environments, or None."""
    return next((path for path in _candidates(version) if _fits(path, version)), None)


def current() -> str:
    """The version of this interpreter."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _candidates(version: str) -> Iterator[pathlib.Path]:
    """This interpreter, those on PATH, and those of pyenv, newest patch release first."""
    if current() == version:
        yield pathlib.Path(sys.executable)
    name = f"python{version}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and os.access(os.path.join(folder, name), os.X_OK):
            yield pathlib.Path(folder, name)
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv", "versions")
    found = [path for path in pyenv.glob(f"{version}.*/bin/{name}") if _patch(path).isdigit()]
    yield from sorted(found, key=lambda path: int(_patch(path)), reverse=True)


def _patch(path: pathlib.Path) -> str:
    return path.parents[1].name.rpartition(".")[2]


def _fits(path: pathlib.Path, version: str) -> bool:
    """Whether it runs at all (a shim of pyenv may not), is that version, and has what an environment needs."""
    try:
        done = subprocess.run([str(path), "-c", PROBE], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version
