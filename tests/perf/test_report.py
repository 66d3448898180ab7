"""What the report starts with, its appendix, and runs of several machines on one page."""

from __future__ import annotations

import html.parser
import json
import pathlib
import re
from typing import Any

import pytest

from packpass.measuring.measure import Timings
from perf.__main__ import ALL, main
from perf.cases import gpu
from perf.headline import HEADERS, gain_rows, gains_html, gains_of, gains_text
from perf.registry import Case, Context, cases
from perf.render import results_page, results_text
from perf.results import CaseResult, Figures, Gain, Lines, Table, Target
from perf.stored import Run, read, write


def gain(workload: str = "megatron-core rolls", device: str = "cpu", ours: float | None = 0.01, **stock: Any) -> Gain:
    return Gain(
        workload,
        "3 depths",
        Figures(1.0, 0.0, None, 4, 1 << 20, 0.25),
        Figures(**{"ratio": 2.0, "spread": 0.03, "graphs": 0, "error": 0.25, **stock}),
        Figures(ours, 0.04, 1, 1, 1 << 19, 1e-7),
        "of the loss",
        device,
    )


def result(*gains: Gain, name: str = "mine", device: str = "cpu") -> CaseResult:
    return CaseResult(
        name,
        "a case",
        gains=list(gains),
        tables=[Table("t", ["way"], [["loop"]])],
        targets=[
            Target("good", 1.0, 1.0),
            Target("bad", 2.0, 1.0, reason="two copies <are> made"),
            Target("unclear", 1.02, 1.0, spread=0.05),
            Target("absent", None, 1.0, note="no GPU"),
        ],
        plots=[Lines("p", "N", "time", {"loop": [(1.0, 2.0), (10.0, 3.0)]})],
        data={"device": device},
    )


# === The gain comes first =======================================================================================


def test_a_row_says_what_is_gained() -> None:
    row = dict(zip(HEADERS, gain_rows([gain()])[0], strict=True))
    assert row == {
        "workload": "megatron-core rolls",
        "faster than eager": "100x ±4%",
        "than torch.compile": "200x ±5%",
        "graphs": "0 -> 1",
        "collectives": "4 -> 1",
        "peak memory": "1.0 MiB -> 512.0 KiB",
        "error": "0.2 -> 1e-07",
    }


def test_what_was_not_timed_has_a_reason_and_no_figure() -> None:
    given_up = gain(ratio=None, note="stopped after 5 s")
    assert gain_rows([given_up])[0][2] == "not timed"
    assert "torch.compile: stopped after 5 s" in gains_html([given_up])
    wrong = gain(ours=None)
    assert gain_rows([wrong])[0][1:3] == ["", ""]
    assert "not timed" in gains_text([wrong])
    assert "100x" not in gains_html([wrong])


def test_known_workloads_come_first() -> None:
    found = gains_of([result(gain("another"), gain("real text")), result(gain("MTP step"))])
    assert [g.workload for g in found] == ["MTP step", "real text", "another"]


def test_bars_of_what_is_slower_go_the_other_way() -> None:
    lines = gains_text([gain()]).splitlines()
    slower, faster = (next(line for line in lines if way in line) for way in ("torch.compile", "packpass"))
    assert slower.index("█") < slower.index("|") < slower.index("0.5x")
    assert faster.index("|") < faster.index("█") < faster.index("100x")


def test_a_gain_of_nothing_can_be_drawn() -> None:
    even = gain(ours=1.0, ratio=1.0)
    assert "1x" in gains_text([even])
    assert "1x" in gains_html([even])


def test_text_and_page_start_with_the_gain() -> None:
    results = [result(gain())]
    text = results_text(results)
    assert text.index("What is gained") < text.index("200x") < text.index("targets hit") < text.index("== mine")
    page = results_page(results, [{"torch": "2.13"}])
    assert page.index("200x") < page.index("Appendix: targets") < page.index("Appendix: cases")


def test_without_gains_nothing_is_said_about_them() -> None:
    assert "What is gained" not in results_text([result()])
    assert 'class="gains"' not in results_page([result()], [])


def test_what_is_wrong_stands_above_everything() -> None:
    broken = result(gain())
    broken.wrong.append("differs from eager")
    page = results_page([broken], [])
    assert page.index("differs from eager") < page.index("200x")


# === Targets ====================================================================================================


def test_a_miss_has_its_reason_and_noise_is_no_miss() -> None:
    text = results_text([result()])
    appendix = text[text.index("== Appendix") : text.index("== mine")].splitlines()
    lines = {name: next(line for line in appendix if f" {name} " in line) for name in ("bad", "unclear", "absent")}
    assert "MISSED" in lines["bad"]
    assert "two copies <are> made" in lines["bad"]
    assert "within noise" in lines["unclear"]
    assert "1.02 ±5%" in lines["unclear"]
    assert "no GPU" in lines["absent"]
    assert "good" not in "".join(appendix)
    assert "1 targets hit, 1 missed, 1 within noise, 1 not measured" in text


def test_a_quotient_is_taken_round_by_round() -> None:
    """A machine that slows down by half is not noise of what both ways share."""
    timings = Timings({"a": {0: 1.0, 1: 2.0, 2: 4.0}, "b": {0: 2.0, 1: 4.0, 2: 8.0}})
    found = timings.quotient("b", "a")
    assert found is not None
    assert (found.ratio, found.spread) == (2.0, 0.0)
    assert timings["b"].spread > 0.5
    assert timings.quotient("nobody", "a") is None


# === The page ===================================================================================================


class Page(html.parser.HTMLParser):
    """Checks that elements nest, and notes which tables do not stand in a box of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.bare: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "table" and not any("scroll" in kind for _, kind in self.open):
            self.bare.append(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag not in ("meta", "br", "img", "link"):
            self.open.append((tag, given.get("class", "")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1]}"
        self.open.pop()


def test_the_page_is_well_formed_and_fits_a_phone() -> None:
    page = Page()
    text = results_page([result(gain()), result(name="other")], [{"torch": "2.13"}])
    page.feed(text)
    assert not page.open
    assert not page.bare
    assert len(page.ids) == len(set(page.ids)), "figures of one page share no names"
    assert 'name="viewport" content="width=device-width' in text
    # no fixed width that is wider than a phone, but within a box that scrolls
    assert not [w for w in re.findall(r"[; ]width:\s*(\d+)(?:px|pt)", text) if int(w) > 320]


def test_the_page_has_colours_for_the_dark_and_for_paper() -> None:
    text = results_page([result(gain())], [])
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    svg = text[text.index("<svg ") :]
    assert "#000000" not in svg
    assert "fill: #ffffff" not in svg


# === Runs of several machines ===================================================================================


def test_a_run_comes_back_as_it_was(tmp_path: pathlib.Path) -> None:
    run = Run("cuda", {"torch": "2.11"}, [result(gain(device="cuda"), device="cuda")], quick=True)
    write(run, tmp_path / "r.json")
    assert read(tmp_path / "r.json").results[0].to_dict() == json.loads(json.dumps(run.results[0].to_dict()))
    assert read(tmp_path / "r.json").quick


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "cases": [{}]}', '{"schema": 1}'])
def test_another_file_is_refused(text: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        read(path)
    assert main(["--merge", str(path), "--out", str(tmp_path)]) == 2
    assert "x.json" in capsys.readouterr().err


def test_merge_puts_a_gpu_beside_the_cpu(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Run("cpu", {"device": "x86"}, [result(gain())]), tmp_path / ALL)
    (tmp_path / "cuda").mkdir()
    write(
        Run("cuda", {"device": "H200"}, [result(gain(device="cuda"), device="cuda"), CaseResult("gpu", "only there")]),
        tmp_path / "cuda" / ALL,
    )
    assert main(["--merge", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.index("megatron-core rolls (cpu)") < text.index("megatron-core rolls (cuda)")
    assert text.index("== mine: ") < text.index("== mine on cuda: ") < text.index("== gpu: ")
    page = (tmp_path / "report.html").read_text()
    assert "H200" in page
    assert "x86" in page


def test_merge_of_nothing_says_so(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--merge", str(tmp_path / "no.json"), "--out", str(tmp_path)]) == 2
    assert "no.json" in capsys.readouterr().err


def test_time_that_is_over_starts_no_further_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fine(ctx: Context, found: CaseResult) -> None:
        found.targets.append(Target("t", 1.0, 1.0))

    def never(ctx: Context, found: CaseResult) -> None:
        pytest.fail("a GPU alone can run this")

    known = {"one": Case("one", "first", fine), "two": Case("two", "second", never, devices=("cuda",))}
    monkeypatch.setattr("perf.__main__.cases", lambda: known)
    monkeypatch.setattr("packpass.measuring.compare.warm_up", lambda device, inner: None)
    assert main(["--out", str(tmp_path)]) == 0
    assert "== two" not in capsys.readouterr().out
    assert main(["--out", str(tmp_path), "--limit", "0"]) == 0
    assert "not run: 0 s were over" in capsys.readouterr().out


@pytest.mark.slow
def test_the_case_for_gpus_runs_where_there_is_none() -> None:
    """Without CUDA graphs and NCCL, but for the rest it is the same program."""
    found = CaseResult("gpu", "title")
    gpu.run(Context("cpu", quick=True), found)
    assert not found.wrong, found.wrong
    assert {"3 depths of 4 fields [1, 4096]: CUDA graphs, over roll + index_fill_"} <= {t.name for t in found.targets}
    assert cases()["gpu"].devices == ("cuda",)
