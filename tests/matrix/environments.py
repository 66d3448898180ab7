"""Make the environments of the matrix outside the repository, once.

Each is a virtual environment with torch from the package index, installed without its requirements; those of them that
are small follow, and the CUDA libraries (2.7 GB for every torch otherwise) are installed once for all and linked in. A
stamp in each folder says what was asked for and what was installed; a folder whose stamp still holds is used as it is,
any other is completed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Iterable, Sequence

from filelock import FileLock, Timeout
from packaging.requirements import Requirement
from packaging.version import Version

from tests.matrix import pip, pythons, requirements
from tests.matrix.cells import Cell, extras
from tests.matrix.steps import ROOT, StepFailed, run, say

STAMP, NOTES = "packpass-matrix.json", "torch-requirements.json"
CUDA = "cuda-libraries"
ROOM = 6 << 30
"""Bytes that must be free before something is made: the largest step unpacks 3.1 GB and holds the wheels meanwhile."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """A cell that can run: its interpreter."""

    cell: Cell
    python: pathlib.Path


Made = dict[Cell, Environment | str]
"""The environment of every cell, or the reason in words why there is none."""


def cache() -> pathlib.Path:
    """The folder of all environments."""
    chosen = os.environ.get("PACKPASS_MATRIX_DIR")
    if chosen:
        return pathlib.Path(chosen).expanduser().resolve()
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home, "packpass", "matrix")


def folder(cell: Cell) -> pathlib.Path:
    return cache() / f"torch-{cell.torch}-py{cell.python}"


def make(cells: Sequence[Cell], seconds: float) -> Made:
    """Make what is missing, within so many seconds altogether. Never raises for what one cell lacks."""
    made: Made = {cell: env for cell in cells if (env := own(cell) or finished(cell))}
    missing = [cell for cell in cells if cell not in made]
    if missing:
        try:
            cache().mkdir(parents=True, exist_ok=True)
            with FileLock(cache() / ".lock", timeout=seconds):
                made |= _make(missing, pip.Budget(seconds))
        except (OSError, Timeout) as error:
            made |= {cell: made.get(cell) or f"cannot make environments in {cache()}: {error}" for cell in missing}
    return {cell: made[cell] for cell in cells}


def own(cell: Cell) -> Environment | None:
    """The environment that this runs in, if it is that torch and that Python."""
    try:
        torch = Version(importlib.metadata.version("torch")).public
    except importlib.metadata.PackageNotFoundError:
        return None
    here = Cell(torch, pythons.current())
    return Environment(cell, pathlib.Path(sys.executable)) if here == cell else None


# === Stamps ==================================================================================================


def digest(items: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(items).encode()).hexdigest()[:16]


def installed(site_packages: pathlib.Path) -> list[str]:
    """``name==version`` of everything installed there, without what pip itself consists of."""
    found = importlib.metadata.distributions(path=[str(site_packages)])
    return sorted({f"{d.metadata['Name']}=={d.version}".lower() for d in found} - {""})


def stamp(place: pathlib.Path, wanted: Iterable[str]) -> None:
    packages = installed(pip.site_packages(place))
    note = {"wanted": digest(wanted), "installed": digest(packages), "packages": packages}
    (place / STAMP).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


def stamped(place: pathlib.Path, wanted: Iterable[str]) -> bool:
    """Whether the folder is finished: made for these wishes, and nothing came or went since."""
    try:
        note = json.loads((place / STAMP).read_text(encoding="utf-8"))
        return bool(
            note["wanted"] == digest(wanted) and note["installed"] == digest(installed(pip.site_packages(place)))
        )
    except (OSError, ValueError, KeyError, StepFailed):
        return False


def wishes(cell: Cell) -> list[str]:
    """What the environment is made from, besides torch's own requirements, which follow from its version."""
    tests = requirements.for_tests(ROOT, cell.python, extras(cell))
    return [str(cell), *tests, *requirements.constraints(ROOT, cell.torch), *sorted(requirements.entry_points(ROOT))]


def finished(cell: Cell) -> Environment | None:
    place = folder(cell)
    python = pip.interpreter(place)
    if not stamped(place, wishes(cell)) or not os.access(python, os.X_OK):
        return None
    link = pip.site_packages(place) / "nvidia"
    return None if link.is_symlink() and not link.exists() else Environment(cell, python)


# === Making ==================================================================================================


def _make(cells: Sequence[Cell], budget: pip.Budget) -> Made:
    made: Made = {}
    for cell in cells:  # torch first, everywhere: the CUDA libraries follow from the metadata of all of them
        try:
            _install_torch(cell, budget)
        except StepFailed as error:
            made[cell] = str(error)
    try:
        nvidia: pathlib.Path | StepFailed | None = _install_cuda(budget)
    except StepFailed as error:
        nvidia = error
    for cell in cells:
        if cell not in made:
            try:
                made[cell] = _complete(cell, nvidia, budget)
            except StepFailed as error:
                made[cell] = str(error)
        if isinstance(made[cell], str):
            say(cell, f"no environment: {made[cell]}")
    return made


def _install_torch(cell: Cell, budget: pip.Budget) -> None:
    python = pythons.find(cell.python)
    if python is None:
        raise StepFailed(f"no Python {cell.python} with venv and ensurepip on PATH or under pyenv")
    place = folder(cell)
    if _notes(place):
        return
    if shutil.disk_usage(cache()).free < ROOM:
        raise StepFailed(f"less than {ROOM >> 30} GB are free in {cache()}")
    pip.make_venv(python, place, budget)
    pip.install(cell, f"torch {cell.torch}", place, ["--no-deps", f"torch=={cell.torch}"], budget)
    needed = requirements.of_torch(pip.site_packages(place))
    _forget_cuda(pip.site_packages(place))
    (place / NOTES).write_text(json.dumps([str(r) for r in needed]) + "\n", encoding="utf-8")


def _notes(place: pathlib.Path) -> list[Requirement]:
    """What the torch installed there required as it was released; empty where none is installed."""
    try:
        return [Requirement(text) for text in json.loads((place / NOTES).read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []


def _forget_cuda(site_packages: pathlib.Path) -> None:
    """Take the CUDA libraries out of torch's requirements, or pip would install them as soon as it resolves anything
    that needs torch."""
    for path in site_packages.glob("torch-*.dist-info/METADATA"):
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            name, _, value = line.partition(":")
            if name != "Requires-Dist" or not requirements.is_cuda(Requirement(value.strip())):
                kept.append(line)
        path.write_text("".join(kept), encoding="utf-8")


def _install_cuda(budget: pip.Budget) -> pathlib.Path | None:
    """The shared folder ``nvidia`` for all the torch in the cache, or None where none of them needs one."""
    known = sorted(cache().glob("torch-*-py*"), key=lambda place: Version(place.name.split("-")[1]))
    wanted = requirements.joined_cuda([notes for place in known if (notes := _notes(place))])
    if not wanted:
        return None
    place = cache() / CUDA
    if not stamped(place, wanted):
        if shutil.disk_usage(cache()).free < ROOM:
            raise StepFailed(f"less than {ROOM >> 30} GB are free in {cache()}")
        pip.make_venv(pathlib.Path(sys.executable), place, budget)
        pip.install("all", "the CUDA libraries", place, wanted, budget)
        stamp(place, wanted)
    return pip.site_packages(place) / "nvidia"


def _complete(cell: Cell, nvidia: pathlib.Path | StepFailed | None, budget: pip.Budget) -> Environment:
    """Everything that is small, the link to the CUDA libraries, and a look whether torch can be imported."""
    place = folder(cell)
    needed = _notes(place)
    if any(requirements.is_cuda(r) for r in needed):
        if not isinstance(nvidia, pathlib.Path):
            raise StepFailed(f"its CUDA libraries are missing: {nvidia}")
        _link(pip.site_packages(place) / "nvidia", nvidia)
    pins = place / "constraints.txt"
    pins.write_text("\n".join(requirements.constraints(ROOT, cell.torch)) + "\n", encoding="utf-8")
    plain = [str(r) for r in needed if not requirements.is_cuda(r)]
    tests = requirements.for_tests(ROOT, cell.python, extras(cell))
    pip.install(cell, "what torch and the tests need", place, ["-c", str(pins), *plain, *tests], budget)
    if "clients" in extras(cell):  # its requirements need a CUDA machine, as the Makefile says
        pip.install(cell, "megatron-core", place, ["-c", str(pins), "--no-deps", "megatron-core"], budget)
    if _entry_points(pip.site_packages(place)) != requirements.entry_points(ROOT):
        # The package's metadata name it as a backend of torch.compile; the code comes from the repository in use.
        pip.install(cell, "packpass", place, ["--no-deps", "-e", str(ROOT)], budget)
    python = pip.interpreter(place)
    code = "import torch; print(torch.__version__)"
    ended = run([str(python), "-c", code], limit := budget.limit(300))
    if ended.code != 0:
        raise StepFailed(f"torch cannot be imported: {ended.problem(limit)}")
    stamp(place, wishes(cell))
    return Environment(cell, python)


def _entry_points(site_packages: pathlib.Path) -> set[str]:
    for distribution in importlib.metadata.distributions(name="packpass", path=[str(site_packages)]):
        return {f"{point.group}: {point.name} = {point.value}" for point in distribution.entry_points}
    return set()


def _link(link: pathlib.Path, target: pathlib.Path) -> None:
    if link.is_symlink():
        link.unlink()
    elif link.exists():
        shutil.rmtree(link)
    link.symlink_to(target, target_is_directory=True)
