"""The matrix itself: how it reads results, judges and reports. No network and no other torch are needed."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.matrix import __main__ as command
from tests.matrix import compare, environments, judge, readme, tier
from tests.matrix.cells import CELLS, FULL, REFERENCE, Cell, extras
from tests.matrix.environments import Environment
from tests.matrix.steps import ROOT, Ended
from tests.matrix.tier import Result
from tests.matrix.verdicts import Share, Verdict, describe, differences, read

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


# === Verdicts ================================================================================================


def verdict(name: str, outcome: str = "right", rewrites: int = 1, **more: Any) -> Verdict:
    return Verdict("loops", name, True, outcome, rewrites=rewrites, **more)


def test_differences_between_cells() -> None:
    reference = [verdict(name) for name in ("same", "lost", "wrong", "broken", "gone", "stock", "eager")] + [
        verdict("left", rewrites=0)
    ]
    cell = [
        verdict("same"), verdict("lost", rewrites=0, refusals=("some-code",)), verdict("left"), verdict("extra"),
        verdict("wrong", "wrong", detail="gradient 0"), verdict("broken", graph_breaks=2),
        verdict("stock", "stock fails", 0), verdict("eager", "eager fails", 0),
    ]  # fmt: skip
    found = {d.key.split("/")[1]: d for d in differences(reference, cell)}
    assert {name: d.lost for name, d in found.items()} == {
        "lost": True, "wrong": True, "broken": True, "gone": True, "stock": True, "left": False, "eager": False,
    }  # fmt: skip
    assert found["lost"].now == "left alone (some-code)"
    assert found["wrong"].now == "wrong: gradient 0"
    assert found["gone"].now == "did not run"
    assert differences(reference, reference) == []
    welcome = Verdict("loops", "welcome", False, "right", rewrites=1)
    left, wrong = (Verdict("loops", "welcome", False, outcome) for outcome in ("right", "wrong"))
    assert [d.lost for now in (left, wrong) for d in differences([welcome], [now])] == [False, True]


def test_verdicts_survive_json() -> None:
    one = verdict("a", refusals=("x", "y"), graph_breaks=1)
    promised, found = read([json.dumps({"programs": ["loops/a"]}), one.to_json()])
    assert (promised, found) == (["loops/a"], [one])
    assert describe(one) == "1 rewritten, 1 graph breaks (x, y)"
    result = Result("c", verdicts=[one], share=Share(1, 3), suite=tier.Tests(3, ["x"], 1))
    assert Result.from_json(result.to_json()) == result


def test_judging_a_cell() -> None:
    reference = Result(
        "ref", verdicts=[verdict("a"), verdict("b"), Verdict("loops", "c", False, "right")], canaries={"loop": "ok"}
    )
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


def test_the_reference_itself_must_do_what_the_corpora_demand() -> None:
    reference = Result("ref", verdicts=[verdict("a", rewrites=0), verdict("b")])
    assert judge.judge(reference, reference).failed == ["lost or wrong: loops/a"]


def test_a_share_is_held_against_the_same_programs_of_the_reference() -> None:
    names = [f"p{i}" for i in range(30)]
    reference = Result("ref", verdicts=[verdict(name) for name in names])
    shares = [Share(number, 3) for number in range(3)]
    for share in shares:
        ran = [v for v in reference.verdicts if share.has(v.key)]
        assert 3 <= len(ran) <= 20
        assert judge.judge(Result("c", verdicts=ran, share=share), reference).failed == []
        missing = judge.judge(Result("c", verdicts=ran[1:], share=share), reference)
        assert missing.failed == [f"lost or wrong: {ran[0].key}"]
    assert all(sum(share.has(v.key) for share in shares) == 1 for v in reference.verdicts)


def test_a_cell_in_which_nothing_ran_fails() -> None:
    reference = Result("ref", verdicts=[verdict("a")])
    assert judge.judge(Result("c"), reference).failed == ["lost or wrong: loops/a"]


def test_two_runs_of_the_programs_are_compared(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "reference.jsonl", tmp_path / "cell.jsonl"]
    for file, last in zip(files, (verdict("b"), verdict("b", rewrites=0, refusals=("some-code",))), strict=True):
        header = json.dumps({"programs": ["loops/a", "loops/b"]})
        file.write_text("\n".join([header, verdict("a").to_json(), last.to_json()]) + "\n")
    assert compare.main([str(files[0]), str(files[0])]) == 0
    assert "loops 2 of 2 rewritten, 2 right" in capsys.readouterr().out
    assert compare.main([str(files[0]), str(files[1])]) == 1
    out = capsys.readouterr().out
    assert re.search(r"loops/b +1 rewritten +left alone \(some-code\) +LOST", out)
    assert out.endswith("1 differences, 1 lost\n")


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
    monkeypatch.setattr(tier, "short", lambda env, jobs, source, share: results[env.cell])
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
    assert command.main(["--show", str(REFERENCE), str(CELL), "2.97.0-py3.12", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == out


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


@pytest.mark.parametrize("one_of", [1, 3])
def test_all_programs_run_in_the_reference_and_a_share_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], one_of: int
) -> None:
    cells = [REFERENCE, *(cell for cell in CELLS if cell != REFERENCE)][:3]
    shares = []

    def short(env: Environment, jobs: int, source: str, share: Share) -> Result:
        shares.append(share)
        ran = [one for one in (verdict(f"p{i}") for i in range(30)) if share.has(one.key)]
        return Result(str(env.cell), verdicts=ran, share=share)

    monkeypatch.setattr(environments, "make", lambda c, s: {cell: Environment(cell, pathlib.Path("p")) for cell in c})
    monkeypatch.setattr(tier, "short", short)
    arguments = [*map(str, cells), "--one-of", str(one_of), "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    assert [str(share) for share in shares] == (["0/1"] * 3 if one_of == 1 else ["0/1", "1/3", "2/3"])
    if one_of > 1:
        assert command.main(["--readme", "--out", str(tmp_path)]) == 1
        assert "without --one-of" in capsys.readouterr().err


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
