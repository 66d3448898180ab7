"""Records, transactions and reports as text, JSON and HTML."""

from __future__ import annotations

import html.parser
import json
import logging
import pathlib
import threading

import pytest
import torch

from packpass.decisions.records import (
    GeneratedCode,
    GraphRecord,
    PassRun,
    Refusal,
    Rewrite,
    active,
    collecting,
    record,
    record_graph,
    transaction,
)
from packpass.reports.report import Report, traced_transaction

REWRITE = Rewrite("vectorize_segments", "model.py:12", "loop over cu_seqlens", "packed_roll", {"documents": "symbolic"})
REFUSAL = Refusal("vectorize_segments", "index-used", "the index is used as a number", "model.py:20")


def test_records_reach_every_open_report_and_no_closed_one() -> None:
    outer, inner, later = Report(), Report(), Report()
    with collecting(outer):
        with collecting(inner):
            assert active() == [outer, inner]
            record(REWRITE)
        record(REFUSAL)
    record(REFUSAL)
    assert (outer.rewrites, outer.refusals) == ([REWRITE], [REFUSAL])
    assert (inner.rewrites, inner.refusals) == ([REWRITE], [])
    assert not later.rewrites
    assert active() == []


def test_a_transaction_keeps_records_back_until_it_ends() -> None:
    report = Report()
    with collecting(report), transaction() as tx:
        tx.record(REWRITE)
        record(REFUSAL)
        assert not report.rewrites
        assert not report.refusals
    assert (report.rewrites, report.refusals) == ([REWRITE], [REFUSAL])


def test_an_exception_drops_the_transaction() -> None:
    report = Report()
    with collecting(report), pytest.raises(RuntimeError, match="restart"), transaction() as tx:
        tx.record(REWRITE)
        raise RuntimeError("restart")
    assert not report.rewrites
    record(REWRITE)  # and the next record is not held back by it
    assert not report.rewrites


def test_a_nested_transaction_commits_into_the_outer_one() -> None:
    report = Report()
    with collecting(report), pytest.raises(RuntimeError, match="outer"), transaction():
        with transaction() as inner:
            inner.record(REWRITE)
        raise RuntimeError("outer")
    assert not report.rewrites


def test_identical_refusals_are_listed_once_and_rewrites_each_time() -> None:
    report = Report()
    with collecting(report):
        for _ in range(2):
            record(REFUSAL)
            record(REWRITE)
    assert len(report.refusals) == 1
    assert len(report.rewrites) == 2


def test_records_are_counted() -> None:
    counters = torch._dynamo.utils.counters["packpass"]
    before = dict(counters)
    record(REWRITE)
    record(REFUSAL)
    record_graph(10, 4)
    grown = {key: count - before.get(key, 0) for key, count in counters.items() if count != before.get(key, 0)}
    assert grown == {"rewrite:vectorize_segments": 1, "refusal:index-used": 1, "graphs": 1}


def test_records_are_logged_under_the_pass(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="packpass.passes.vectorize_segments"):
        record(REWRITE)
        record(REFUSAL)
    assert [entry.name for entry in caplog.records] == ["packpass.passes.vectorize_segments"] * 2
    assert caplog.records[0].getMessage() == "model.py:12: rewrote loop over cu_seqlens -> packed_roll"
    assert caplog.records[1].getMessage() == "model.py:20: left alone [index-used] the index is used as a number"


def test_other_threads_do_no_harm() -> None:
    report = Report()
    with collecting(report):
        thread = threading.Thread(target=record, args=(REWRITE,))
        thread.start()
        thread.join()
        workers = [threading.Thread(target=lambda: [report.add(REWRITE) for _ in range(200)]) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(report.rewrites) == 800  # the first thread's own context collects nothing


def test_sums_over_graphs() -> None:
    report = Report()
    assert (report.graphs, report.collectives_before, report.kernels, report.host_syncs) == (0, 0, None, None)
    report.add(GraphRecord(10, 5, collectives_before=6, collectives_after=1, boundary_sources=("loop",)))
    report.add(GraphRecord(20, 20, boundary_sources=("loop", "declared")))
    report.add(GeneratedCode("forward", 1, 0))
    report.add(GeneratedCode("backward", 2, 0))
    assert (report.graphs, report.collectives_before, report.collectives_after) == (2, 6, 1)
    assert (report.kernels, report.host_syncs) == (3, 0)
    assert report.boundary_sources == ["loop", "declared"]


def test_what_is_not_a_record_is_rejected() -> None:
    with pytest.raises(TypeError, match="cannot record str"):
        Report().add("done")  # type: ignore[arg-type]


def full_report() -> Report:
    report = Report("a model")
    report.add(REWRITE)
    report.add(REFUSAL)
    report.add(
        GraphRecord(
            53, 9, 4, 1, passes=(PassRun("vectorize_segments", 53, 9, 0.0021, 1, 1),), boundary_sources=("loop",)
        )
    )
    report.add(GeneratedCode("forward", 1, 0, 1.5))
    report.graph_breaks, report.graph_break_reasons = 2, ["print in the body"] * 2
    return report


def test_text_says_everything() -> None:
    text = str(full_report())
    for words in (
        "1 graph, 2 graph breaks",
        "collectives: 4 -> 1",
        "1 kernel, 0 host syncs",
        "boundaries from: loop",
        "model.py:12",
        "packed_roll",
        "documents=symbolic",
        "index-used",
        "the index is used as a number",
        "print in the body",
        "53 -> 9",
        "2.10",
    ):
        assert words in text, words


def test_text_of_an_empty_report_says_so() -> None:
    assert "nothing matched" in str(Report())
    assert "nothing matched" not in str(full_report())


def test_json_holds_every_attribute() -> None:
    data = json.loads(full_report().to_json())
    assert data["rewrites"][0] == {
        "rule": "vectorize_segments",
        "location": "model.py:12",
        "before": "loop over cu_seqlens",
        "after": "packed_roll",
        "details": {"documents": "symbolic"},
    }
    assert data["refusals"][0]["code"] == "index-used"
    assert (data["graphs"], data["graph_breaks"], data["collectives_before"], data["collectives_after"]) == (1, 2, 4, 1)
    assert data["graph_records"][0]["passes"][0]["seconds"] == 0.0021


def test_details_that_json_does_not_know_become_text() -> None:
    report = Report()
    report.add(Rewrite("r", "f.py:1", "a", "b", {"dtype": torch.int64}))
    assert json.loads(report.to_json())["rewrites"][0]["details"] == {"dtype": "torch.int64"}


class Balanced(html.parser.HTMLParser):
    """Collects text and fails on tags that do not match."""

    VOID = frozenset({"meta", "br", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_html_is_one_well_formed_page_with_user_text_escaped(tmp_path: pathlib.Path) -> None:
    report = full_report()
    report.title = "<script>alert(1)</script>"
    report.add(Rewrite("r", "<b>.py:1", "x[a<b]", "y & z", {"k": "<i>"}))
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert parser.tags.isdisjoint({"script", "b", "i", "link", "iframe"})
    assert "http" not in page
    text = " ".join(parser.words)
    assert "x[a<b]" in text
    assert "y & z" in text
    assert "index-used" in text


def test_structured_trace_gets_one_artifact_per_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    from packpass import _compat

    seen: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(_compat, "trace_artifact", lambda name, payload: seen.append((name, json.loads(payload()))))
    with traced_transaction() as tx:
        tx.record(REWRITE)
        tx.record(GraphRecord(3, 2))
    with traced_transaction():
        pass  # nothing recorded, nothing traced
    assert [name for name, _ in seen] == ["packpass_report"]
    assert seen[0][1]["graphs"] == 1
    assert seen[0][1]["rewrites"][0]["rule"] == "vectorize_segments"  # type: ignore[index]
