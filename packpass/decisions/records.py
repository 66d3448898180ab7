"""What was decided: typed records, and the one function that records them.

Passes return :class:`Rewrite` and :class:`Refusal` values; the runner records them inside a :func:`transaction`, so
that a compile which Dynamo abandons and restarts leaves nothing behind. A record goes to every report that is being
collected in this context, to ``torch._dynamo.utils.counters["packpass"]`` and to the logger
``packpass.passes.<rule>``.

This module imports torch only when something is recorded.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

log = logging.getLogger("packpass.report")


@dataclasses.dataclass(frozen=True)
class Claims:
    """What a rewrite says to the rest of packpass. (``Rewrite.details`` are for people, nothing is decided by them.)

    ``captured_loop``: a loop over documents, as capture had it traced, is gone. ``separate_inputs``: the inputs of the
    graph, by name, that it takes to share no memory, because it writes one of them. ``reordered``: sums are added up in
    another order.
    ``agreement``: what every rank must have found as well, about the process group ``group`` (None: about every group).
    ``boundary_source``: where its boundaries came from. ``collectives_saved``: how many collectives are gone from a
    forward graph after its collectives were counted.
    """

    captured_loop: bool = False
    separate_inputs: tuple[str, ...] = ()
    reordered: bool = False
    agreement: tuple[str, ...] = ()
    group: str | None = None
    boundary_source: str = ""
    collectives_saved: int = 0


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """One rewrite that was made. ``location`` is the user's ``file.py:123``; ``before`` and ``after`` are short
    text, ``details`` are for the report."""

    rule: str
    location: str
    before: str
    after: str
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    claims: Claims = Claims()


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A pattern that was found and left alone. ``code`` is stable and greppable, ``reason`` is for people."""

    rule: str
    code: str
    reason: str
    location: str


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that the user should know and that packpass neither rewrites nor was asked to. ``code`` is stable and
    greppable, ``operation`` the name of what does it, ``reason`` is for people, ``location`` the user's line."""

    code: str
    operation: str
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


Record = Rewrite | Refusal | Finding | GraphRecord | GeneratedCode


class Collector(Protocol):
    """Somebody to whom every record goes (`packpass.Report`)."""

    def add(self, item: Record) -> None:
        """Take one record; called from any thread."""


Collects = TypeVar("Collects", bound=Collector)


# Reports and transactions open in this context, outermost first. Tuples, so that a context never sees another's
# changes.
_reports: contextvars.ContextVar[tuple[Collector, ...]] = contextvars.ContextVar("packpass_reports", default=())
_transactions: contextvars.ContextVar[tuple[Transaction, ...]] = contextvars.ContextVar(
    "packpass_transactions", default=()
)


@contextlib.contextmanager
def collecting(report: Collects) -> Iterator[Collects]:
    """Send every record made in this context to ``report`` as well."""
    token = _reports.set((*_reports.get(), report))
    try:
        yield report
    finally:
        _reports.reset(token)


def active() -> list[Collector]:
    """The reports being collected in this context, outermost first."""
    return list(_reports.get())


class Transaction:
    """Records of one compile, held back until it succeeds."""

    def __init__(self) -> None:
        self.items: list[Record] = []

    def record(self, item: Record) -> None:
        self.items.append(item)


@contextlib.contextmanager
def transaction(finished: Callable[[Sequence[Record]], None] | None = None) -> Iterator[Transaction]:
    """Hold back records made inside until the block ends normally; an exception drops them.

    :func:`record` calls inside the block are held back too. A nested transaction commits into the enclosing one; the
    outermost one hands what it published to ``finished``.
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
    if tx.items and finished is not None:
        finished(tx.items)


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
    elif isinstance(item, Finding):
        counters[f"finding:{item.code}"] += 1
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


class VerificationError(RuntimeError):
    """A rewrite changed a result. Please report it with the program; ``disable`` the named pass meanwhile."""


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
