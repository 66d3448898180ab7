"""Where the packages of the extra ``wild`` lie: one folder each, so that two versions of one can stand side by side.

``python -m tests.wild.packages`` installs what is missing. Requirements of the packages are not installed: they pull
in CUDA, servers and other versions of torch, and none of the functions under test needs them (`tests.wild.sources`).
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("PACKPASS_WILD_DIR") or ROOT / ".wild")


def pins() -> list[str]:
    """``name==version`` of every package: the extra, and other versions of a package that is in it already."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [*project["project"]["optional-dependencies"]["wild"], *project["tool"]["packpass"]["wild"]["versions-too"]]


def folder(pin: str) -> pathlib.Path:
    """Where ``name==version`` is installed; to be put on ``sys.path``."""
    return FOLDER / pin.replace("==", "-")


def pin_of(name: str) -> str:
    """The pin that starts with ``name`` (``"verl"``, ``"megatron-core==0.13"``).

    Raises:
        LookupError: no package of the extra, or more than one, is meant.
    """
    found = [pin for pin in pins() if pin == name or pin.startswith((f"{name}==", f"{name}."))]
    if len(found) != 1:
        raise LookupError(f"{name!r} is not one package of the extra 'wild' in pyproject.toml: {found or pins()}")
    return found[0]


def installed(name: str) -> bool:
    """Is the package there?"""
    return folder(pin_of(name)).is_dir()


def install(pin: str) -> str:
    """Install one package without what it requires; the error, if any."""
    target = folder(pin)
    if target.is_dir():
        return ""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".unfinished")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--upgrade", "--target"]
    done = subprocess.run([*command, str(unfinished), pin], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{pin} cannot be installed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else '?'}"
    unfinished.rename(target)
    return ""


def main() -> int:
    problems = [problem for pin in pins() if (problem := install(pin))]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
