"""What an environment of the matrix consists of, read from torch's own metadata and from this project's files."""

from __future__ import annotations

import importlib.metadata
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same under another name
    import tomli as tomllib  # type: ignore[import-not-found, no-redef]


def of_torch(site_packages: pathlib.Path) -> list[Requirement]:
    """The requirements of the torch installed there, without its extras, as they apply there.

    Markers are judged by this interpreter but for the Python version, which is the one of the folder's name.
    """
    python = site_packages.parent.name.removeprefix("python")
    for distribution in importlib.metadata.distributions(name="torch", path=[str(site_packages)]):
        return applicable(distribution.requires or [], python)
    raise LookupError(f"no torch in {site_packages}")


def applicable(lines: Iterable[str], python: str, extra: str = "") -> list[Requirement]:
    """The requirements whose markers hold on this platform under that Python version, markers removed."""
    environment: Mapping[str, str] = {"python_version": python, "python_full_version": f"{python}.0", "extra": extra}
    kept = []
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(dict(environment)):
            requirement.marker = None
            kept.append(requirement)
    return kept


def is_cuda(requirement: Requirement) -> bool:
    """Whether this is one of the CUDA libraries, which all environments share, or bindings that nothing here needs."""
    return canonicalize_name(requirement.name).startswith(("nvidia-", "cuda-"))


def joined_cuda(torches: Sequence[Iterable[Requirement]]) -> list[str]:
    """One set of CUDA libraries for several versions of torch, given from the oldest to the newest.

    Versions are those of the newest torch (an older one runs on a newer NCCL, not the other way round); what only an
    older one names comes in whichever version goes with them. The extras of the toolkit are those of all of them.
    ``cuda-bindings`` are left out: they are compiled for one Python version, and torch imports them only to launch
    kernels.
    """
    named = [{canonicalize_name(r.name): r for r in requirements if is_cuda(r)} for requirements in torches]
    chosen = []
    for name in sorted({name for table in named for name in table} - {"cuda-bindings"}):
        joined = Requirement(name)
        joined.extras = {extra for table in named if name in table for extra in table[name].extras}
        if name in named[-1]:
            joined.specifier = named[-1][name].specifier
        chosen.append(str(joined))
    return chosen


def _project(root: pathlib.Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def entry_points(root: pathlib.Path) -> set[str]:
    """What the project's metadata announce, in the form ``group: name = value``."""
    project = _project(root)
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    return {f"{group}: {name} = {value}" for group, points in groups.items() for name, value in points.items()}


def for_tests(root: pathlib.Path, python: str, extras: Sequence[str]) -> list[str]:
    """What the tests need besides torch and triton: the project's own dependencies and the given extras."""
    project = _project(root)
    lines = [*project["dependencies"]]
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    needed = applicable(lines, python)
    return sorted({str(r) for r in needed if canonicalize_name(r.name) not in ("torch", "triton")})


def constraints(root: pathlib.Path, torch: str) -> list[str]:
    """The project's pins with another torch, whose own requirements say which triton it is."""
    kept = []
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        text = line.split("#")[0].strip()
        if text and canonicalize_name(Requirement(text).name) not in ("torch", "triton"):
            kept.append(text)
    return [*kept, f"torch=={torch}"]
