"""The matrix itself: what it installs, what it recognises, how it judges. No network and no other torch are needed."""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.matrix import __main__ as command
from tests.matrix import environments, judge, pip, pythons, readme, requirements, steps, tier
from tests.matrix.cells import CELLS, FULL, REFERENCE, Cell, extras
from tests.matrix.environments import Environment
from tests.matrix.steps import ROOT, Ended
from tests.matrix.tier import Result
from tests.matrix.verdicts import Verdict, describe, differences, read

CELL = Cell("2.99.0", "3.12")

# === Cells ===================================================================================================


def test_the_cells_are_consistent() -> None:
    assert len(set(CELLS)) == len(CELLS)
    assert REFERENCE in CELLS
    assert set(FULL) <= set(CELLS)
    assert all(Cell.parse(str(cell)) == cell for cell in CELLS)
    assert all("test" in extras(cell) for cell in CELLS)


@pytest.mark.parametrize("text", ["2.15.0", "2.15.0-3.12", "py3.12", "2.15-py3.12", "2.15.0-py2.7"])
def test_what_is_no_cell_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main([text])
    assert stop.value.code == 2
    assert f"such as {CELLS[0]}" in capsys.readouterr().err


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


# === Verdicts ================================================================================================


def verdict(name: str, outcome: str = "right", rewrites: int = 1, **more: Any) -> Verdict:
    return Verdict("loops", name, True, outcome, rewrites=rewrites, **more)


def test_differences_between_cells() -> None:
    reference = [verdict(name) for name in ("same", "lost", "wrong", "broken", "gone", "stock")] + [
        verdict("left", rewrites=0)
    ]
    cell = [
        verdict("same"), verdict("lost", rewrites=0, refusals=("some-code",)), verdict("left"), verdict("extra"),
        verdict("wrong", "wrong", detail="gradient 0"), verdict("broken", graph_breaks=2),
        verdict("stock", "stock fails", 0),
    ]  # fmt: skip
    found = {d.key.split("/")[1]: d for d in differences(reference, cell)}
    assert {name: d.lost for name, d in found.items()} == {
        "lost": True, "wrong": True, "broken": True, "gone": True, "stock": True, "left": False,
    }  # fmt: skip
    assert found["lost"].now == "left alone (some-code)"
    assert found["wrong"].now == "wrong: gradient 0"
    assert found["gone"].now == "did not run"
    assert differences(reference, reference) == []


def test_verdicts_survive_json() -> None:
    one = verdict("a", refusals=("x", "y"), graph_breaks=1)
    promised, found = read([json.dumps({"programs": ["loops/a"]}), one.to_json()])
    assert (promised, found) == (["loops/a"], [one])
    assert describe(one) == "1 rewritten, 1 graph breaks (x, y)"
    result = Result("c", verdicts=[one], suite=tier.Tests(3, ["x"], 1))
    assert Result.from_json(result.to_json()) == result


def test_judging_a_cell() -> None:
    reference = Result("ref", verdicts=[verdict("a"), verdict("b"), verdict("c", rewrites=0)], canaries={"loop": "ok"})
    assert judge.judge(reference, reference).failed == []
    assert judge.judge(reference, reference).passed == 4
    bad = Result("bad", verdicts=[verdict("a", rewrites=0), verdict("b"), verdict("c", "raised", 0)])
    bad.canaries, bad.broken = {"loop": "broken"}, ["loop: not rewritten"]
    bad.codegen.failed, bad.problems = ["tests/x.py::y"], ["programs stopped after 3 s"]
    one = judge.judge(bad, reference)
    assert one.passed == 1
    assert len(one.failed) == 5
    assert one.rewritten == {"loops": (1, 2)}
    text = judge.details([one]) + judge.table([one])
    for words in ("loops/a", "LOST", "doctor: loop: not rewritten", "tests/x.py::y", "1 of 2", "stopped after 3 s"):
        assert words in text


def test_without_a_reference_the_corpora_s_demands_count() -> None:
    cell = Result("c", verdicts=[verdict("a", rewrites=0), verdict("b"), Verdict("loops", "left", False, "right")])
    assert judge.judge(cell, None).failed == ["lost or wrong: loops/a"]
    assert judge.judge(cell, None).rewritten == {"loops": (1, 2)}


def test_a_cell_in_which_nothing_ran_fails() -> None:
    reference = Result("ref", verdicts=[verdict("a")])
    assert judge.judge(Result("c"), reference).failed == ["lost or wrong: loops/a"]


# === The tier ================================================================================================


def test_doctor_is_read() -> None:
    checks = [
        {"section": "versions", "name": "torch", "state": "ok", "detail": "2.99.0+cpu: fine"},
        {"section": "capture hooks", "name": "gate", "state": "on", "detail": ""},
        {"section": "canaries", "name": "a loop", "state": "ok", "detail": ""},
        {"section": "canaries", "name": "a shift", "state": "broken", "detail": "not rewritten"},
    ]
    result = Result("c")
    tier.read_doctor({"ok": False, "checks": checks}, result)
    assert (result.torch, result.hooks) == ("2.99.0+cpu", {"gate": "on"})
    assert result.canaries == {"a loop": "ok", "a shift": "broken"}
    assert result.broken == ["a shift: not rewritten"]
    silent = Result("c")
    tier.read_doctor({"ok": False, "checks": checks[:1]}, silent)
    assert silent.broken


def test_a_report_of_pytest_is_read(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase classname='tests.a' name='one'/><testcase classname='tests.a' name='two'>"
        "<failure/></testcase><testcase classname='tests.a' name='three'><skipped/></testcase></testsuite></testsuites>"
    )
    found = tier.read_tests(report, Ended(1, "", "", 0.0), 9)
    assert (found.passed, found.failed, found.skipped, found.ok) == (1, ["tests/a.py::two"], 1, False)
    report.write_text("<testsuites/>")
    assert tier.read_tests(report, Ended(0, "", "", 0.0), 9).problem == "pytest found no test"
    assert not tier.read_tests(tmp_path / "none.xml", Ended(0, "", "", 0.0), 9).ok
    assert "status 4" in tier.read_tests(report, Ended(4, "usage", "", 0.0), 9).problem


def test_programs_that_end_their_process_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str], limit: float) -> Ended:
        left = [key for key in ("loops/a", "loops/b", "loops/c") if key not in command]
        header = json.dumps({"programs": left}) + "\n"
        if "loops/b" in left:
            return Ended(-11, header + verdict("a").to_json() + '\n{"corpus": "lo', "", 1.0)
        return Ended(0, header + verdict("c").to_json() + "\n", "", 1.0)

    monkeypatch.setattr(tier, "run", run)
    env = Environment(CELL, pathlib.Path("python"))
    verdicts, problem = tier._part(env, 0, 1)
    assert [(v.name, v.outcome) for v in verdicts] == [("a", "right"), ("b", "raised"), ("c", "right")]
    assert "signal 11" in verdicts[1].detail
    assert problem == ""
    monkeypatch.setattr(tier, "run", lambda command, limit: Ended(1, "", "ImportError: no torch", 1.0))
    assert "ImportError: no torch" in tier._part(env, 0, 1)[1]


# === The command =============================================================================================


def run_command(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, cell: Result) -> int:
    """``python -m tests.matrix`` over three cells: the reference, one with this result, and one that is not there."""
    here = Environment(REFERENCE, pathlib.Path("python"))
    made = {REFERENCE: here, CELL: Environment(CELL, here.python), Cell("2.97.0", "3.12"): "no network"}
    results = {REFERENCE: Result(str(REFERENCE), verdicts=[verdict("a")], codegen=tier.Tests(5)), CELL: cell}
    monkeypatch.setattr(environments, "make", lambda cells, seconds: {c: made[c] for c in cells})
    monkeypatch.setattr(tier, "short", lambda env, jobs, source: results[env.cell])
    return command.main([str(CELL), "2.97.0-py3.12", "--out", str(tmp_path)])


def test_all_is_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, tmp_path, Result(str(CELL), verdicts=[verdict("a")])) == 0
    out = capsys.readouterr().out
    assert "2.97.0-py3.12: not run: no network" in out
    assert out.splitlines()[-1] == "7 passed, 0 failed"
    saved = command.load(tmp_path / f"{CELL}.json")
    assert saved is not None
    assert saved.verdicts == [verdict("a")]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result(str(CELL), verdicts=[verdict("a", rewrites=0)]), "LOST"),
        (Result(str(CELL), verdicts=[verdict("a", "wrong")]), "wrong"),
        (Result(str(CELL), verdicts=[verdict("a")], problems=["doctor died"]), "doctor died"),
        (Result(str(CELL), verdicts=[verdict("a")], codegen=tier.Tests(problem="no report")), "no report"),
    ],
)
def test_what_fails_in_one_cell_fails_the_command(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    result: Result,
    words: str,
) -> None:
    assert run_command(monkeypatch, tmp_path, result) == 1
    out = capsys.readouterr().out
    assert words in out
    assert re.fullmatch(r"\d+ passed, 1 failed", out.splitlines()[-1])


def test_the_whole_suite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = Environment(FULL[0], pathlib.Path("python"))
    monkeypatch.setattr(environments, "make", lambda cells, seconds: {FULL[0]: env, FULL[1]: "no network"})
    monkeypatch.setattr(tier, "suite", lambda env, jobs: tier.Tests(8, ["tests/a.py::b"], 2))
    assert command.main(["--full", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"{FULL[0]}: FAILED tests/a.py::b" in out
    assert f"{FULL[1]}: not run: no network" in out
    assert out.splitlines()[-1] == "8 passed, 1 failed"


# === README ==================================================================================================


def test_the_versions_table(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command.main(["--readme", "--out", str(tmp_path)]) == 1  # no results
    result = Result(str(REFERENCE), verdicts=[verdict("a")], canaries={"loop": "ok"}, codegen=tier.Tests(5))
    command._save(tmp_path / f"{REFERENCE}.json", result)
    command._save(tmp_path / f"{CELLS[0]}.json", Result(str(CELLS[0]), unavailable="no network"))
    assert command.main(["--readme", "--out", str(tmp_path)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{readme.BEGIN}\n| torch")
    assert text.endswith(f"{readme.END}\nafter\n")
    rows = {
        tuple(cell.strip() for cell in line.split("|")[1:9]) for line in text.splitlines() if line.startswith("| 2.")
    }
    assert ("2.13.0", "3.11", "1 of 1", "did not run", "0", "1 of 1", "5 of 5", "") in rows
    assert ("2.11.0", "3.12", "not run: no network", "", "", "", "", "") in rows
    assert len(rows) == len(CELLS)
    assert not readme.write(page, text.split(readme.BEGIN + "\n")[1].split("\n" + readme.END)[0])


def test_a_page_without_markers_is_left_alone(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"{readme.END}\n{readme.BEGIN}\n")
    with pytest.raises(ValueError, match="has no line"):
        readme.write(page, "x")
    assert page.read_text() == f"{readme.END}\n{readme.BEGIN}\n"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count(readme.BEGIN) == text.count(readme.END) == 1
