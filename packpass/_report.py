"""What packpass did: typed records, the report that collects them, and the one function that records.

Passes return :class:`Rewrite` and :class:`Refusal` values; the runner records them inside a :func:`transaction`, so
that a compile which Dynamo abandons and restarts leaves nothing behind. A record goes to every report that is being
collected in this context, to ``torch._dynamo.utils.counters["packpass"]``, to the logger
``packpass.passes.<rule>``, and, per finished compile, to the structured trace (``TORCH_TRACE``) as the artifact
``packpass_report``.

This module imports torch only when something is recorded.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

ARTIFACT = "packpass_report"

log = logging.getLogger("packpass.report")


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """One rewrite that was made. ``location`` is the user's ``file.py:123``; ``before`` and ``after`` are short
    text."""

    rule: str
    location: str
    before: str
    after: str
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A pattern that was found and left alone. ``code`` is stable and greppable, ``reason`` is for people."""

    rule: str
    code: str
    reason: str
    location: str


@dataclasses.dataclass(frozen=True)
class PassRun:
    """One pass over one graph: node counts and wall time in seconds, measured by the runner."""

    rule: str
    nodes_before: int
    nodes_after: int
    seconds: float
    rewrites: int = 0
    refusals: int = 0


@dataclasses.dataclass(frozen=True)
class GraphRecord:
    """One graph that Dynamo handed to the backend.

    ``collectives_*`` count collective calls in the FX graph before and after the passes. ``host_syncs_after``
    counts the nodes that still read a device value on the host (``item``, ``tolist``). ``boundary_sources`` says
    where each set of boundaries came from ("loop", "declared", "input cu_seqlens"). ``layout`` is a table of the
    values with a packed dimension; only while a report is collected.
    """

    nodes_before: int
    nodes_after: int
    collectives_before: int = 0
    collectives_after: int = 0
    host_syncs_before: int = 0
    host_syncs_after: int = 0
    passes: tuple[PassRun, ...] = ()
    boundary_sources: tuple[str, ...] = ()
    layout: str = ""


@dataclasses.dataclass(frozen=True)
class GeneratedCode:
    """What the inner backend made of one graph: ``stage`` is "forward", "backward" or "inference"."""

    stage: str
    kernels: int
    host_syncs: int
    seconds: float = 0.0


Record = Rewrite | Refusal | GraphRecord | GeneratedCode


class Report:
    """Everything packpass recorded while this report was being collected.

    Attributes:
        rewrites, refusals: in the order in which they were decided; an identical refusal is listed once.
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
            elif isinstance(item, GraphRecord):
                self.graph_records.append(item)
            elif isinstance(item, GeneratedCode):
                self.generated.append(item)
            else:
                raise TypeError(
                    f"cannot record {type(item).__name__}: expected Rewrite, Refusal, GraphRecord or GeneratedCode"
                )

    @property
    def graphs(self) -> int:
        return len(self.graph_records)

    @property
    def collectives_before(self) -> int:
        return sum(graph.collectives_before for graph in self.graph_records)

    @property
    def collectives_after(self) -> int:
        graphs = sum(graph.collectives_after for graph in self.graph_records)
        return graphs - sum(_joined_after_autograd(rewrite) for rewrite in self.rewrites)

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
            "rewrites": [dataclasses.asdict(item) for item in self.rewrites],
            "refusals": [dataclasses.asdict(item) for item in self.refusals],
            "graph_records": [dataclasses.asdict(item) for item in self.graph_records],
            "generated": [dataclasses.asdict(item) for item in self.generated],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON text; values of ``details`` that JSON does not know are written as their ``str``."""
        return json.dumps(self.to_dict(), indent=indent, default=str)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one self-contained HTML page (no scripts, no outside resources)."""
        from packpass._render import report_page

        with open(path, "w", encoding="utf-8") as file:
            file.write(report_page(self))

    def __str__(self) -> str:
        from packpass._render import report_text

        return report_text(self)

    def __repr__(self) -> str:
        return (
            f"<packpass.Report: {len(self.rewrites)} rewrites, {len(self.refusals)} refusals, "
            f"{self.graphs} graphs, {self.graph_breaks} graph breaks>"
        )


def _joined_after_autograd(rewrite: Rewrite) -> int:
    """Collectives that a rewrite of a forward graph took away after the Dynamo graph was counted."""
    details = rewrite.details
    return int(details.get("collectives_saved", 0)) if details.get("stage") == "forward" else 0


# Reports and transactions open in this context, outermost first. Tuples, so that a context never sees another's
# changes.
_reports: contextvars.ContextVar[tuple[Report, ...]] = contextvars.ContextVar("packpass_reports", default=())
_transactions: contextvars.ContextVar[tuple[Transaction, ...]] = contextvars.ContextVar(
    "packpass_transactions", default=()
)


@contextlib.contextmanager
def collecting(report: Report) -> Iterator[Report]:
    """Send every record made in this context to ``report`` as well."""
    token = _reports.set((*_reports.get(), report))
    try:
        yield report
    finally:
        _reports.reset(token)


def active() -> list[Report]:
    """The reports being collected in this context, outermost first."""
    return list(_reports.get())


class Transaction:
    """Records of one compile, held back until it succeeds."""

    def __init__(self) -> None:
        self.items: list[Record] = []

    def record(self, item: Record) -> None:
        self.items.append(item)


@contextlib.contextmanager
def transaction() -> Iterator[Transaction]:
    """Hold back records made inside until the block ends normally; an exception drops them.

    :func:`record` calls inside the block are held back too. A nested transaction commits into the enclosing one.
    """
    tx = Transaction()
    token = _transactions.set((*_transactions.get(), tx))
    try:
        yield tx
    finally:
        _transactions.reset(token)
    outer = _transactions.get()
    if outer:
        outer[-1].items.extend(tx.items)
        return
    for item in tx.items:
        _publish(item)
    if tx.items:
        _trace(tx.items)


def record(item: Record) -> None:
    """Record one decision: held back inside a :func:`transaction`, published at once outside."""
    open_transactions = _transactions.get()
    if open_transactions:
        open_transactions[-1].record(item)
        return
    _publish(item)


def record_graph(nodes_before: int, nodes_after: int, **details: Any) -> None:
    """Record one graph; keywords are the other fields of :class:`GraphRecord`."""
    record(GraphRecord(nodes_before, nodes_after, **details))


def _publish(item: Record) -> None:
    for report in _reports.get():
        report.add(item)
    counters = _counters()
    if isinstance(item, Rewrite):
        counters[f"rewrite:{item.rule}"] += 1
        logger = logging.getLogger(f"packpass.passes.{item.rule}")
        logger.info("%s: rewrote %s -> %s", item.location, item.before, item.after)
    elif isinstance(item, Refusal):
        counters[f"refusal:{item.code}"] += 1
        logger = logging.getLogger(f"packpass.passes.{item.rule}")
        logger.info("%s: left alone [%s] %s", item.location, item.code, item.reason)
    elif isinstance(item, GraphRecord):
        counters["graphs"] += 1
        log.info("graph: %d nodes -> %d", item.nodes_before, item.nodes_after)
        for run in item.passes:
            logging.getLogger(f"packpass.passes.{run.rule}").debug(
                "nodes: %d -> %d in %.2f ms", run.nodes_before, run.nodes_after, run.seconds * 1e3
            )


def _counters() -> Any:
    from packpass import _compat

    return _compat.dynamo_counters("packpass")


def _trace(items: Sequence[Record]) -> None:
    from packpass import _compat

    def payload() -> str:
        report = Report()
        for item in items:
            report.add(item)
        return report.to_json()

    _compat.trace_artifact(ARTIFACT, payload)


class RefusedError(RuntimeError):
    """A refusal under ``{"packpass.on_refusal": "raise"}``; ``refusal`` is the record."""

    refusal: Refusal

    @staticmethod
    def text(refusal: Refusal) -> str:
        """The message: where, which code, why, and how to compile anyway."""
        return (
            f"packpass refused a rewrite at {refusal.location} [{refusal.code}]: {refusal.reason} "
            '(options={"packpass.on_refusal": "ignore"} compiles the model without this rewrite)'
        )
