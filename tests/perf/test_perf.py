"""The measurements' own machinery; the cases themselves are run by ``make report``."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import pytest
import torch

from perf import registry
from perf.__main__ import main
from perf.bounded import OutOfTime, time_limit
from perf.data import documents, pack
from perf.programs import (
    boundaries,
    labels_by_hand,
    labels_loop,
    mtp_by_hand,
    mtp_loop,
    roll_by_hand,
    roll_loop,
    roll_rows_by_hand,
    roll_rows_loop,
)
from perf.race import Way, code_targets, race_table, run_race
from perf.registry import Context, case, cases
from perf.render import case_text, results_page, summary
from perf.results import CaseResult, Lines, Table, Target


def test_every_case_of_the_issue_is_there() -> None:
    assert list(cases())[:7] == [
        "roll_tokens",
        "roll_hidden",
        "roll_mtp",
        "compile_time",
        "megatron",
        "real_text",
        "mtp",
    ]


def test_a_case_on_request_runs_only_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    ran: list[str] = []

    def noted(name: str, on_request: bool) -> registry.Case:
        return registry.Case(name, "", lambda ctx, result: ran.append(name), on_request=on_request)

    here = {name: noted(name, name == "long") for name in ("short", "long")}
    monkeypatch.setattr("perf.__main__.cases", lambda: here)
    assert main(["--out", str(tmp_path)]) == 0
    assert ran == ["short"]
    assert main(["--out", str(tmp_path), "--case", "long"]) == 0
    assert ran == ["short", "long"]
    assert main(["--list"]) == 0
    assert "only with --case" in capsys.readouterr().out
    assert cases()["isolate_models"].on_request


def test_two_cases_cannot_share_a_name() -> None:
    name = next(iter(cases()))
    with pytest.raises(ValueError, match=f"two cases are called '{name}'"):
        case(name, "again")(lambda ctx, result: None)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target("t", 1.0, 1.0), "hit"),
        (Target("t", 1.01, 1.0), "MISSED"),
        (Target("t", 99, 100, "at least"), "MISSED"),
        (Target("t", 100, 100, "at least"), "hit"),
        (Target("t", 0, 1, "exactly"), "MISSED"),
        (Target("t", 1, 1, "exactly"), "hit"),
        (Target("t", None, 1), "not measured"),
        (Target("t", 1.04, 1.0, spread=0.05), "within noise"),
        (Target("t", 1.06, 1.0, spread=0.05), "MISSED"),
        (Target("t", 96, 100, "at least", spread=0.05), "within noise"),
        (Target("t", 2, 1, "exactly", spread=0.9), "MISSED"),
        (Target("t", 0.9, 1.0, spread=0.5), "hit"),
    ],
)
def test_verdicts(target: Target, verdict: str) -> None:
    assert target.verdict == verdict


def test_boundaries_cover_the_row_without_empty_documents() -> None:
    for count, total in ((1, 5), (8, 100), (512, 16_384)):
        cu = boundaries(count, total)
        assert (cu[0], cu[-1], cu.numel()) == (0, total, count + 1)
        assert (cu.diff() > 0).all()
    assert torch.equal(boundaries(8, 100), boundaries(8, 100))


def test_hand_written_forms_equal_the_loops() -> None:
    cu = boundaries(7, 60)
    ids = torch.arange(1, 61)[None]
    assert torch.equal(roll_by_hand(ids, cu), roll_loop(ids, cu))
    rows = torch.randn(60, 4)
    assert torch.equal(roll_rows_by_hand(rows, cu), roll_rows_loop(rows, cu))
    loop, hand = (f(ids, ids * 2, ids * 3, torch.ones(1, 60), cu) for f in (mtp_loop, mtp_by_hand))
    assert all(torch.equal(a, b) for a, b in zip(loop[0] + loop[1], hand[0] + hand[1], strict=True))
    tail = torch.tensor([0, 3, 10, 41], dtype=torch.int32)
    assert torch.equal(labels_by_hand(ids, tail), labels_loop(ids, tail))
    assert torch.equal(labels_loop(ids, tail)[0, 41:], ids[0, 41:])


def test_packed_text_is_all_there_and_in_order() -> None:
    texts = list(documents(200_000))
    assert sum(map(len, texts)) >= 190_000
    assert max(map(len, texts)) > 1_000
    rows = pack(iter(texts), 4_096)
    assert all(row.ids.shape == (1, 4_096) and row.ids.dtype == torch.int64 for row in rows)
    found = []
    for row in rows:
        cu = row.cu_seqlens
        assert cu[0] == 0
        assert cu[-1] <= 4_096
        assert (cu.diff() > 0).all()
        assert (row.ids[0, cu[-1] :] == 0).all()
        found += [bytes(row.ids[0, s:e].tolist()) for s, e in zip(cu[:-1], cu[1:], strict=True)]  # noqa: RUF007  (a tensor)
    pieces = [text[i : i + 4_096] for text in texts for i in range(0, len(text), 4_096)]
    assert sorted(found) == sorted(pieces)
    # first fit: no row could have taken the first document of a later one
    for index, row in enumerate(rows[:-1]):
        free = 4_096 - int(row.cu_seqlens[-1])
        assert all(int(later.cu_seqlens[1]) > free for later in rows[index + 1 :])


def test_a_time_limit_stops_a_baseline() -> None:
    started = time.perf_counter()
    with pytest.raises(OutOfTime), time_limit(0.2):
        try:
            while True:
                time.sleep(0.01)
        except Exception:  # what OutOfTime must get past
            pytest.fail("swallowed")
    assert time.perf_counter() - started < 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_time_limit_is_not_lost_in_a_finalizer() -> None:
    class Slow:
        def __del__(self) -> None:
            time.sleep(0.5)  # where the first alarm goes off, and is lost

    with pytest.raises(OutOfTime), time_limit(0.2):
        Slow()
        time.sleep(20)


def test_a_time_limit_that_was_kept_leaves_no_alarm_behind() -> None:
    with time_limit(0.05):
        pass
    time.sleep(0.1)


def test_a_race_checks_before_it_times() -> None:
    x = torch.arange(8.0)
    ways = [
        Way("reference", lambda x: x + 1),
        Way("right", lambda x: 1 + x),
        Way("wrong", lambda x: x + 2),
        Way("broken", lambda x: x.nothing),  # type: ignore[attr-defined]
        Way("packpass", lambda x: x + 1, "eager"),
    ]
    result = CaseResult("c", "title")
    race = run_race(Context(quick=True), ways, (x,), x.clone, budget=0.05)
    table = race_table("race", race, result)
    lines = {row[0]: row for row in table.rows}
    assert [lines[name][1] for name in ("clone", "reference", "right", "wrong", "broken")] == [
        "floor",
        "reference",
        "equal",
        "WRONG",
        "failed",
    ]
    assert lines["right"][3] != ""
    assert lines["wrong"][2:5] == lines["broken"][2:5] == ["", "", ""]
    assert race.ratio("wrong") is None
    assert race.ratio("right") is not None
    assert any("wrong" in line for line in result.wrong)
    assert any("broken failed: AttributeError" in note for note in result.notes)


def test_nothing_compiled_hits_no_target() -> None:
    x = torch.arange(8.0)

    def breaks(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + 1
            torch._dynamo.graph_break()
        return x

    ways = [Way("reference", breaks), Way("packpass", breaks, "eager")]
    race = run_race(Context(quick=True), ways, (x,), x.clone, budget=0.05)
    graphs, kernels, *_ = code_targets("t", race, 1)
    assert graphs.verdict == "MISSED"
    assert kernels.verdict != "hit"


def full_result() -> CaseResult:
    return CaseResult(
        "roll",
        "a <case>",
        tables=[Table("a table", ["way", "time"], [["loop", "1 ms"]])],
        targets=[Target("one", 2.0, 1.0), Target("two", 1.0, 1.0), Target("three", None, 1.0, note="no GPU")],
        plots=[Lines("a plot", "N", "time", {"loop": [(1, 2.0), (10, 3.0)]})],
        notes=["seen", "seen"],
    )


def test_results_as_text() -> None:
    text = case_text(full_result())
    assert "a table" in text
    assert text.count("note: seen") == 1
    assert "MISSED" in text
    assert "not measured (no GPU)" in text
    assert summary([full_result()]) == "1 targets hit, 1 missed, 1 not measured; every result checked was right"
    wrong = CaseResult("w", "t", wrong=["x differs"], error="ValueError: y")
    assert "WRONG: x differs" in case_text(wrong)
    assert "FAILED: ValueError: y" in case_text(wrong)
    assert summary([wrong]).endswith("1 wrong results; failed: w")


def test_results_as_a_page() -> None:
    page = results_page([full_result()], [{"torch": "2.13"}])
    assert "a &lt;case&gt;" in page
    assert page.count("<svg ") == 1
    assert "currentColor" in page
    assert "http" not in page


def run_with(monkeypatch: pytest.MonkeyPatch, *new: registry.Case) -> None:
    monkeypatch.setattr("perf.__main__.cases", lambda: {entry.name: entry for entry in new})
    monkeypatch.setattr("packpass.measuring.compare.warm_up", lambda device, inner: None)


def good(ctx: Context, result: CaseResult) -> None:
    ctx.progress("working")
    result.targets.append(Target("missed", 2.0, 1.0))


def wrong(ctx: Context, result: CaseResult) -> None:
    result.wrong.append("differs")


def crash(ctx: Context, result: CaseResult) -> None:
    raise RuntimeError("no luck")


@pytest.mark.parametrize(("run", "code"), [(good, 0), (wrong, 1), (crash, 1)])
def test_the_command_writes_results(
    run: Any, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_with(monkeypatch, registry.Case("mine", "my case", run))
    assert main(["--out", str(tmp_path / "out")]) == code
    data = json.loads((tmp_path / "out" / "mine.json").read_text())
    assert data["name"] == "mine"
    assert (tmp_path / "out" / "report.html").exists()
    out, err = capsys.readouterr()
    assert "== mine: my case" in out
    if run is good:
        assert "working" in err
        assert data["targets"][0]["hit"] is False


def test_the_command_s_choices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_with(monkeypatch, registry.Case("mine", "my case", good))
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.split() == ["mine", "my", "case"]
    assert main(["--case", "other"]) == 2
    assert "no case other; the cases are mine" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["--device", "cuda"]) == 2
