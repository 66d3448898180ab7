"""Run the passes over one Dynamo graph and record what they did. Passes own none of timing, counting or logging."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._options import Options
from packpass._passes import Pass, names_of_tiers
from packpass.capture.frame import FrameState, Mode
from packpass.capture.state import react
from packpass.decisions.document_form import DocumentForm
from packpass.decisions.packed_form import PackedForm
from packpass.decisions.records import Finding, GraphRecord, PassRun, Refusal, Rewrite, active
from packpass.engine import passes
from packpass.engine.copies import copy_graph
from packpass.engine.counting import count, graph_modules
from packpass.layout import LayoutError, analyze
from packpass.layout.mixing import mixing_operations
from packpass.ranks import apart
from packpass.ranks.collectives import Collective
from packpass.reports.report import traced_transaction
from packpass.semantics.dialect import normalise


@dataclasses.dataclass(frozen=True)
class Stage:
    """A graph before and after passes that must not change its results, and what these passes did."""

    before: fx.GraphModule
    after: fx.GraphModule
    rewrites: list[Rewrite]


class Stages:
    """Copies of a graph around every pass that changes results on purpose (tier "fix"): those are not compared."""

    def __init__(self, gm: fx.GraphModule, on: bool) -> None:
        self.gm, self.on = gm, on
        self.done: list[Stage] = []
        self._start, self._rewrites = copy_graph(gm) if on else gm, list[Rewrite]()

    def close(self) -> None:
        """A stage ends before a pass of tier "fix", or at the end."""
        if self.on and self._rewrites:
            self.done.append(Stage(self._start, copy_graph(self.gm), self._rewrites))

    def open(self) -> None:
        """The next stage starts after that pass."""
        if self.on:
            self._start, self._rewrites = copy_graph(self.gm), []

    def add(self, rewrites: list[Rewrite]) -> None:
        self._rewrites += rewrites


@dataclasses.dataclass
class Outcome:
    """What the passes did to one graph; nothing is recorded before `commit`."""

    results: list[Rewrite | Refusal]
    record: GraphRecord
    loops_left: int
    stages: list[Stage]
    """What ``verify`` compares; empty without it."""
    capturing: bool
    """Was the frame traced in a loop mode? Then a graph without a rewrite differs from what stock torch traces."""
    packed: PackedForm | None = None
    """What computes real tokens only, beside the graph."""
    documents: DocumentForm | None = None
    """What runs parts of the graph per document."""
    written: list[Collective] = dataclasses.field(default_factory=list)
    """The exchanges of the graph before the passes."""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    """What is left in the graph and a reader of the report should know; looked for only while one is collected."""

    @property
    def rewrites(self) -> list[Rewrite]:
        return [r for r in self.results if isinstance(r, Rewrite)]

    @property
    def loop_rewrites(self) -> list[Rewrite]:
        """Rewrites of captured loops."""
        return [r for r in self.rewrites if r.claims.captured_loop]

    @property
    def keeps_results(self) -> bool:
        """Is every result the same as before, so that the graph as it was captured may stand in for this one?"""
        return all(r.rule in names_of_tiers("exact") for r in self.rewrites)

    @property
    def packing(self) -> str:
        """The rewrite that gave the graph a packed form, for messages."""
        return "; ".join(f"{r.rule} at {r.location}" for r in self.rewrites if r.rule in names_of_tiers("numerics"))

    @property
    def separate_inputs(self) -> list[tuple[str, ...]]:
        """Groups of inputs that a rewritten loop takes to share no memory, because it writes one of them."""
        return [r.claims.separate_inputs for r in self.rewrites if r.claims.separate_inputs]

    @property
    def refusals(self) -> list[Refusal]:
        return [r for r in self.results if isinstance(r, Refusal)]

    def commit(self) -> None:
        """The graph is kept: record everything."""
        with traced_transaction() as tx:
            for item in (*self.results, *self.findings, self.record):
                tx.record(item)

    def record_refusals(self) -> None:
        """The graph is thrown away and its frame traced again: only the reasons stay."""
        with traced_transaction() as tx:
            for refusal in self.refusals:
                tx.record(refusal)

    def react(self, settings: Options) -> None:
        """Warn or raise, as ``on_refusal`` says."""
        for refusal in self.refusals:
            react(refusal, settings)


def run_passes(gm: fx.GraphModule, settings: Options, frame: FrameState) -> Outcome:
    """Rewrite ``gm`` in place, one pass after the other."""
    normalise(m.graph for m in graph_modules(gm))
    before, written = count(gm), apart.exchanges_of(gm)
    # Of a graph with loops the ranks are asked afterwards.
    if frame.apart or (settings.agreement and not frame.sites and apart.are_left(written)):
        settings = apart.without_exchanges(settings)
    results: list[Rewrite | Refusal] = []
    runs: list[PassRun] = []
    context = passes.load().PassContext(dict(frame.sites), frame.user_checks, settings, branches=dict(frame.branches))
    capturing = frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED)
    left = 0
    layout: str | None = None
    findings: list[Finding] = []
    prepared = set[str]()
    stages = Stages(gm, settings.verify)
    # A frame without loops whose sizes are captured because a row expands has none that are written out either.
    loops = capturing and (bool(frame.sites) or not frame.expands)
    for p in passes.running(settings, *(("loops", "graph") if loops else ("graph",))):
        if p.prepare and p.prepare not in prepared:
            prepared.add(p.prepare)
            passes.function(p.prepare)(gm.graph)
        if layout is None and p.stage != "loops":
            if capturing and not loops_left(gm):
                restore_shadows(gm)
            layout = _layout(gm) if active() and passes.load().mentions_boundaries(gm) else ""
            # Now, with the declarations that passes take out; what passes put right is no finding of the report.
            findings = mixing_operations(gm) if layout else []
        start, nodes = time.perf_counter(), before[0] if not runs else runs[-1].nodes_after
        found = _run_one(p, gm, context, stages)
        results += found
        rewrites = sum(isinstance(r, Rewrite) for r in found)
        seconds = time.perf_counter() - start
        after = count(gm)[0] if rewrites else nodes
        runs.append(PassRun(p.name, nodes, after, seconds, rewrites, len(found) - rewrites))
    if capturing:
        left = loops_left(gm)
        if not left:
            restore_shadows(gm)
    remove_boundary_markers(gm)
    stages.close()
    results = without_overtaken(results)
    final = count(gm) if capturing or any(run.rewrites for run in runs) else before
    sources = [r.claims.boundary_source for r in results if isinstance(r, Rewrite) and r.claims.boundary_source]
    record = GraphRecord(
        nodes_before=before[0],
        nodes_after=final[0],
        collectives_before=before[1],
        collectives_after=final[1],
        host_syncs_before=before[2],
        host_syncs_after=final[2],
        passes=tuple(runs),
        boundary_sources=tuple(dict.fromkeys(sources)),
        layout=layout or "",
    )
    products = context.products
    return Outcome(
        results, record, left, stages.done, capturing, products.packed, products.documents, written, findings
    )


def without_overtaken(results: list[Rewrite | Refusal]) -> list[Rewrite | Refusal]:
    """Without what one pass says of exchanges in a loop that a later pass has put another message in the place of."""
    rewrites = [r for r in results if isinstance(r, Rewrite) and r.rule not in apart.EXCHANGES]
    done = {r.location for r in rewrites if apart.exchanges(r)}
    return [r for r in results if isinstance(r, Rewrite) or r.rule not in apart.EXCHANGES or r.location not in done]


def _run_one(p: Pass, gm: fx.GraphModule, context: Any, stages: Stages) -> list[Rewrite | Refusal]:
    """One pass over the graph, or over it and each of its subgraphs."""
    run = passes.function(p.entry)
    if p.tier == "fix":
        stages.close()
    found: list[Rewrite | Refusal] = [r for m in ([gm] if p.whole else graph_modules(gm)) for r in run(m, context)]
    if p.tier == "fix":
        stages.open()
    elif p.tier == "exact":
        stages.add([r for r in found if isinstance(r, Rewrite)])
    return found


def _layout(gm: fx.GraphModule) -> str:
    """For people who read a report."""
    try:
        layouts = analyze(gm)
    except LayoutError as error:
        return str(error)
    return str(layouts) if layouts.packings else ""


def remove_boundary_markers(gm: fx.GraphModule) -> None:
    """They kept inputs for the passes."""
    marks = [node for node in gm.graph.nodes if node.target is markers.BOUNDARIES]
    for node in marks:
        gm.graph.erase_node(node)
    if marks:
        gm.recompile()


def loops_left(gm: fx.GraphModule) -> int:
    """Captured loops that no pass has rewritten."""
    targets = [node.target for m in graph_modules(gm) for node in m.graph.nodes]
    return targets.count(markers.LOOP_BEGIN) // 2 + targets.count(markers.LAST_BOUNDARY)


def restore_shadows(gm: fx.GraphModule) -> None:
    """Ops that only stood in for torch's own while a loop was traced."""
    for m in graph_modules(gm):
        changed = False
        for node in list(m.graph.nodes):
            if isinstance(node.target, torch._ops.OpOverload) and node.target in markers.SHADOWS:
                node.target = markers.SHADOWS[node.target]
                changed = True
        if changed:
            m.recompile()
