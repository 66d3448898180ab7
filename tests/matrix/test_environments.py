"""How the matrix makes and recognises environments, without a network: pip and the interpreters are stand-ins."""

from __future__ import annotations

import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.matrix import environments, pip, pythons, requirements, steps
from tests.matrix.cells import Cell
from tests.matrix.environments import Environment
from tests.matrix.steps import ROOT, Ended

CELL = Cell("2.99.0", "3.12")

# === Requirements ============================================================================================


def wants(*lines: str) -> list[Requirement]:
    return [Requirement(line) for line in lines]


def test_cuda_libraries_of_several_versions_are_those_of_the_newest_with_all_extras() -> None:
    oldest = wants("cuda-toolkit[curand,nvtx]==13.0.2", "nvidia-nccl-cu13==2.28.9", "sympy", "cuda-bindings<14")
    middle = wants("cuda-toolkit[nvtx]==13.0.2", "nvidia-cublas<=13.1.1.3", "nvidia-nccl-cu13==2.29.7")
    newest = wants("cuda-toolkit[cublas,nvtx]==13.2.2", "nvidia_nccl_cu13==2.30.7", "setuptools>=77")
    assert requirements.joined_cuda([oldest, middle, newest]) == [
        "cuda-toolkit[cublas,curand,nvtx]==13.2.2", "nvidia-cublas", "nvidia-nccl-cu13==2.30.7",
    ]  # fmt: skip
    assert requirements.joined_cuda([wants("sympy")]) == []


def test_markers_are_judged_for_the_other_python() -> None:
    lines = ['a<2; python_version < "3.11"', "b; extra == 'optree'", 'c; platform_system == "Nowhere"', "d>=1"]
    assert [str(r) for r in requirements.applicable(lines, "3.10")] == ["a<2", "d>=1"]
    assert [str(r) for r in requirements.applicable(lines, "3.12")] == ["d>=1"]


def test_the_project_s_files_are_read() -> None:
    tests = [Requirement(line).name for line in requirements.for_tests(ROOT, "3.12", ["test"])]
    assert {"pytest", "hypothesis", "tabulate"} <= set(tests)
    assert not {"torch", "triton"} & set(tests)
    pins = requirements.constraints(ROOT, "2.99.0")
    assert [pin for pin in pins if pin.startswith(("torch", "triton"))] == ["torch==2.99.0"]
    assert any(pin.startswith("pytest==") for pin in pins)
    assert "torch_dynamo_backends: packpass = packpass" in " ".join(requirements.entry_points(ROOT))


def distribution(site: pathlib.Path, name: str, version: str, *lines: str) -> pathlib.Path:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"Requires-Dist: {line}\n" for line in lines)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{text}")
    return folder / "METADATA"


def test_torch_s_own_metadata_are_read_and_lose_their_cuda_libraries(tmp_path: pathlib.Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    lines = [
        "setuptools<82",
        "nvidia-nccl-cu13==2.30.7",
        "triton==3.9.0",
        "cuda-toolkit[nvtx]==13.2.2",
        'x; extra == "x"',
    ]
    metadata = distribution(site, "torch", "2.99.0", *lines)
    needed = ["setuptools<82", "nvidia-nccl-cu13==2.30.7", "triton==3.9.0", "cuda-toolkit[nvtx]==13.2.2"]
    assert [str(r) for r in requirements.of_torch(site)] == needed
    environments._forget_cuda(site)
    assert [str(r) for r in requirements.of_torch(site)] == ["setuptools<82", "triton==3.9.0"]
    assert "Name: torch" in metadata.read_text()
    with pytest.raises(LookupError):
        requirements.of_torch(tmp_path)


# === Pythons =================================================================================================


def script(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_is_found_on_path_and_under_pyenv(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}{os.pathsep}/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons.find("3.77") is None
    script(tmp_path / "shims" / "python3.77", "echo 'not installed' >&2; exit 127")
    assert pythons.find("3.77") is None
    script(tmp_path / "versions" / "3.77.9" / "bin" / "python3.77", "echo 3.77")
    newest = script(tmp_path / "versions" / "3.77.10" / "bin" / "python3.77", "echo 3.77")
    assert pythons.find("3.77") == newest
    script(newest, "echo 3.78")  # says that it is another one
    assert pythons.find("3.77") == tmp_path / "versions" / "3.77.9" / "bin" / "python3.77"
    assert pythons.find(pythons.current()) == pathlib.Path(sys.executable)


# === Environments ============================================================================================


class FakeMachine:
    """Stands for pip and for the interpreters of the environments: notes what it is asked and makes the folders."""

    def __init__(self) -> None:
        self.installed: list[list[str]] = []
        self.refuse: Callable[[Sequence[str]], Ended | None] = lambda command: None

    def run(self, command: Sequence[str], limit: float, variables: Any = None) -> Ended:
        refused = self.refuse(command)
        if refused is not None:
            return refused
        place = pathlib.Path(command[0]).parents[1]
        if command[1:3] == ["-m", "venv"]:
            script(pathlib.Path(command[3], "bin", "python"), "exit 0")
            pathlib.Path(command[3], "lib", "python3.12", "site-packages").mkdir(parents=True)
        elif command[1:4] == ["-m", "pip", "--version"]:
            return Ended(0 if os.path.exists(command[0]) else 127, "", "", 0.0)
        elif command[1:4] == ["-m", "pip", "install"]:
            self._install(place / "lib" / "python3.12" / "site-packages", list(command))
        return Ended(0, "", "", 0.0)

    def _install(self, site: pathlib.Path, command: list[str]) -> None:
        wanted = [word for word in command[4:] if not word.startswith("-") and not word.endswith(".txt")]
        self.installed.append(wanted)
        for word in wanted:
            name, _, version = word.partition("==")
            needs = ["sympy>=1", f"nvidia-x=={version}", "triton==3.9.0"] if name == "torch" else []
            if not word.startswith(os.sep):
                distribution(site, Requirement(word).name, version or "1.0", *needs)
            if name == "nvidia-x":
                (site / "nvidia" / "x").mkdir(parents=True, exist_ok=True)


@pytest.fixture
def machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    fake = FakeMachine()
    monkeypatch.setattr(pip, "run", fake.run)
    monkeypatch.setattr(environments, "run", fake.run)
    monkeypatch.setattr(environments, "ROOM", 0)
    monkeypatch.setattr(pythons, "find", lambda version: None if version == "3.10" else pathlib.Path(sys.executable))
    monkeypatch.setenv("PACKPASS_MATRIX_DIR", str(tmp_path / "cache"))
    return fake


def test_environments_are_made_once_and_share_the_cuda_libraries(machine: FakeMachine) -> None:
    cells = [CELL, Cell("2.98.0", "3.12")]
    made = environments.make(cells, 60)
    assert all(isinstance(env, Environment) for env in made.values()), made
    assert machine.installed[0] == ["torch==2.99.0"]
    assert [words for words in machine.installed if "nvidia-x==2.99.0" in words] == [["nvidia-x==2.99.0"]]
    assert not [words for words in machine.installed if "nvidia-x==2.98.0" in words]
    assert [words for words in machine.installed if "triton==3.9.0" in words and "sympy>=1" in words]
    for cell in cells:
        link = pip.site_packages(environments.folder(cell)) / "nvidia"
        assert link.resolve() == pip.site_packages(environments.cache() / environments.CUDA) / "nvidia"
    machine.installed.clear()
    assert environments.make(cells, 60) == made
    assert machine.installed == []
    distribution(pip.site_packages(environments.folder(CELL)), "numpy", "0.1")  # somebody changed it
    assert environments.finished(CELL) is None
    assert environments.finished(cells[1]) is not None
    environments.make(cells, 60)
    assert machine.installed
    assert environments.finished(CELL) is not None


def test_a_torch_that_cannot_be_installed_is_not_the_newest(machine: FakeMachine) -> None:
    """The CUDA libraries are those of the newest that is there."""
    newest = Cell("2.99.1", "3.12")
    machine.refuse = fails("torch==2.99.1", errors="ERROR: No matching distribution found for torch==2.99.1")
    made = environments.make([CELL, newest], 60)
    assert isinstance(made[CELL], Environment)
    assert "No matching distribution" in str(made[newest])
    assert [words for words in machine.installed if "nvidia-x==2.99.0" in words]


def test_a_stamp_holds_for_the_same_wishes_only(tmp_path: pathlib.Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    distribution(site, "torch", "2.99.0")
    assert not environments.stamped(tmp_path, ["a"])
    environments.stamp(tmp_path, ["a"])
    assert environments.stamped(tmp_path, ["a"])
    assert not environments.stamped(tmp_path, ["a", "b"])
    (tmp_path / environments.STAMP).write_text("{")
    assert not environments.stamped(tmp_path, ["a"])


def fails(*words: str, errors: str = "", code: int | None = 1) -> Callable[[Sequence[str]], Ended | None]:
    return lambda command: Ended(code, "", errors, 1.0) if set(words) <= set(command) else None


@pytest.mark.parametrize(
    ("refuse", "reason"),
    [
        (fails("install", errors="WARNING: Retrying after NewConnectionError\nERROR: No matching"), "no network"),
        (
            fails("install", errors="ERROR: No matching distribution found for torch==2.99.0"),
            "No matching distribution",
        ),
        (fails("install", code=None), "stopped after"),
        (fails("venv", errors="Error: no ensurepip"), "python -m venv ended with status 1: Error: no ensurepip"),
        (fails("nvidia-x==2.99.0", errors="ERROR: No space left"), "CUDA libraries are missing: .*No space left"),
        (
            fails("-c", "import torch; print(torch.__version__)", errors="ImportError: libx.so"),
            "cannot be imported.*libx",
        ),
    ],
)
def test_an_environment_that_cannot_be_made_is_a_reason(machine: FakeMachine, refuse: Any, reason: str) -> None:
    machine.refuse = refuse
    made = environments.make([CELL, Cell("2.13.0", "3.10")], 60)
    assert isinstance(made[CELL], str)
    assert re.search(reason, made[CELL]), made[CELL]
    assert environments.finished(CELL) is None
    assert made[Cell("2.13.0", "3.10")] == "no Python 3.10 with venv and ensurepip on PATH or under pyenv"


def test_no_room_no_time_and_no_folder(
    machine: FakeMachine, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--setup-minutes" in str(environments.make([CELL], 0.5)[CELL])
    monkeypatch.setattr(environments, "ROOM", 1 << 62)
    assert "are free in" in str(environments.make([CELL], 60)[CELL])
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACKPASS_MATRIX_DIR", str(tmp_path / "file" / "cache"))
    assert "cannot make environments in" in str(environments.make([CELL], 60)[CELL])


def test_this_environment_is_used_for_its_own_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.importlib.metadata, "version", lambda name: "2.99.0+cpu")
    own = environments.own(Cell("2.99.0", pythons.current()))
    assert own is not None
    assert own.python == pathlib.Path(sys.executable)
    assert environments.own(Cell("2.98.0", pythons.current())) is None


# === Steps ===================================================================================================


def test_a_step_is_stopped_with_its_children_at_its_limit() -> None:
    started = time.monotonic()
    ended = steps.run(["sh", "-c", "echo begun; sleep 60 & sleep 60"], 0.5)
    assert time.monotonic() - started < 20
    assert (ended.code, ended.output) == (None, "begun\n")
    assert "stopped after" in ended.problem(0.5)


def test_a_step_sees_the_repository_and_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACKPASS_VERIFY", "1")
    ended = steps.run(["sh", "-c", "pwd; echo $PYTHONPATH; echo [$PACKPASS_VERIFY]; echo bad >&2; exit 3"], 10)
    assert ended.output.split() == [str(ROOT), str(ROOT), "[]"]
    assert ended.problem(10) == "ended with status 3: bad"
    assert "no-such-program" in steps.run(["no-such-program"], 10).problem(10)
    assert steps.run(["sh", "-c", "kill -11 $$"], 10).problem(10) == "ended by signal 11: it printed nothing"
