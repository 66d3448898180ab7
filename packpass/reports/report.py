"""The report that collects what packpass decided, and its forms: text, JSON, HTML, torch's structured trace."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Sequence
from typing import Any

from packpass import _compat
from packpass.decisions.records import (
    Finding,
    GeneratedCode,
    GraphRecord,
    Record,
    Refusal,
    Rewrite,
    Transaction,
    transaction,
)

ARTIFACT = "packpass_report"
"""Name of the artifact that a finished compile leaves in the structured trace (``TORCH_TRACE``)."""


class Report:
    """Everything packpass recorded while this report was being collected.

    Attributes:
        rewrites, refusals: in the order in which they were decided; an identical refusal is listed once.
        findings: what packpass left as it is and a reader should know, each line once: operations that let documents of
            a packed row see each other (code ``mixes-documents``).
        graphs: graphs that Dynamo handed to packpass. graph_breaks: interruptions between them.
        collectives_before, collectives_after: collective calls in those graphs, before and after the passes; what is
            joined after autograd (rewrites with a "stage") counts where it is the forward graph.
        graph_records, generated: details per graph. graph_break_reasons: Dynamo's own words.
        kernels, host_syncs: in the generated code, or None where nothing was generated (other inner backends).
        result: what the explained call returned (:func:`packpass.explain`); not part of the JSON.
    """

    def __init__(self, title: str = "packpass") -> None:
        self.title = title
        self.rewrites: list[Rewrite] = []
        self.refusals: list[Refusal] = []
        self._findings: dict[Finding, None] = {}
        self.graph_records: list[GraphRecord] = []
        self.generated: list[GeneratedCode] = []
        self.graph_breaks: int = 0
        self.graph_break_reasons: list[str] = []
        self.compile_seconds: float | None = None
        self.result: Any = None
        self._lock = threading.Lock()

    def add(self, item: Record) -> None:
        """Add one record; safe from several threads."""
        with self._lock:
            if isinstance(item, Rewrite):
                self.rewrites.append(item)
            elif isinstance(item, Refusal):
                if item not in self.refusals:
                    self.refusals.append(item)
            elif isinstance(item, Finding):
                self._findings[item] = None
            elif isinstance(item, GraphRecord):
                self.graph_records.append(item)
            elif isinstance(item, GeneratedCode):
                self.generated.append(item)
            else:
                kinds = "Rewrite, Refusal, Finding, GraphRecord or GeneratedCode"
                raise TypeError(f"cannot record {type(item).__name__}: expected {kinds}")

    @property
    def graphs(self) -> int:
        return len(self.graph_records)

    @property
    def findings(self) -> list[Finding]:
        """Those that no rewrite put right."""
        rewritten = {rewrite.location for rewrite in self.rewrites}
        return [finding for finding in self._findings if finding.location not in rewritten]

    @property
    def collectives_before(self) -> int:
        return sum(graph.collectives_before for graph in self.graph_records)

    @property
    def collectives_after(self) -> int:
        graphs = sum(graph.collectives_after for graph in self.graph_records)
        return graphs - sum(rewrite.claims.collectives_saved for rewrite in self.rewrites)

    @property
    def kernels(self) -> int | None:
        return sum(code.kernels for code in self.generated) if self.generated else None

    @property
    def host_syncs(self) -> int | None:
        return sum(code.host_syncs for code in self.generated) if self.generated else None

    @property
    def boundary_sources(self) -> list[str]:
        """Where boundaries came from, each once, in the order of first use."""
        return list(dict.fromkeys(s for graph in self.graph_records for s in graph.boundary_sources if s))

    @property
    def layout(self) -> str:
        """Which dimension of which value is packed by which boundaries: a table per graph."""
        return "\n\n".join(graph.layout for graph in self.graph_records if graph.layout)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, ready for JSON."""
        return {
            "title": self.title,
            "graphs": self.graphs,
            "graph_breaks": self.graph_breaks,
            "graph_break_reasons": list(self.graph_break_reasons),
            "collectives_before": self.collectives_before,
            "collectives_after": self.collectives_after,
            "kernels": self.kernels,
            "host_syncs": self.host_syncs,
            "compile_seconds": self.compile_seconds,
            "boundary_sources": self.boundary_sources,
            "rewrites": [_for_people(item) for item in self.rewrites],
            "refusals": [dataclasses.asdict(item) for item in self.refusals],
            "findings": [dataclasses.asdict(item) for item in self.findings],
            "graph_records": [dataclasses.asdict(item) for item in self.graph_records],
            "generated": [dataclasses.asdict(item) for item in self.generated],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON text; values of ``details`` that JSON does not know are written as their ``str``."""
        return json.dumps(self.to_dict(), indent=indent, default=str)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one self-contained HTML page (no scripts, no outside resources)."""
        from packpass.reports.render import report_page

        with open(path, "w", encoding="utf-8") as file:
            file.write(report_page(self))

    def __str__(self) -> str:
        from packpass.reports.render import report_text

        return report_text(self)

    def __repr__(self) -> str:
        return (
            f"<packpass.Report: {len(self.rewrites)} rewrites, {len(self.refusals)} refusals, "
            f"{self.graphs} graphs, {self.graph_breaks} graph breaks>"
        )


def _for_people(rewrite: Rewrite) -> dict[str, Any]:
    """A rewrite without what it says to the rest of packpass."""
    return {name: value for name, value in dataclasses.asdict(rewrite).items() if name != "claims"}


def traced_transaction() -> contextlib.AbstractContextManager[Transaction]:
    """A transaction whose records go to torch's structured trace as well, as a report in JSON."""
    return transaction(_trace)


def _trace(items: Sequence[Record]) -> None:
    def payload() -> str:
        report = Report()
        for item in items:
            report.add(item)
        return report.to_json()

    _compat.trace_artifact(ARTIFACT, payload)
