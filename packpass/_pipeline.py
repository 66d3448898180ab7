"""Run the passes over one Dynamo graph and record what they did. Passes own none of timing, counting or logging."""

from __future__ import annotations

import dataclasses
import time

import torch
from torch import fx

from packpass import _passes
from packpass._compat import is_collective
from packpass._options import Options
from packpass._report import GraphRecord, PassRun, Refusal, Rewrite, transaction
from packpass.capture import markers
from packpass.capture.state import FrameState, Mode, react


@dataclasses.dataclass
class Outcome:
    """What the passes did to one graph; nothing is recorded before `commit`."""

    results: list[Rewrite | Refusal]
    record: GraphRecord
    loops_left: int
    capturing: bool
    """Was the frame traced in a loop mode? Then a graph without a rewrite differs from what stock torch traces."""

    @property
    def rewrites(self) -> list[Rewrite]:
        return [r for r in self.results if isinstance(r, Rewrite)]

    @property
    def refusals(self) -> list[Refusal]:
        return [r for r in self.results if isinstance(r, Refusal)]

    def commit(self) -> None:
        """The graph is kept: record everything."""
        with transaction() as tx:
            for item in (*self.results, self.record):
                tx.record(item)

    def record_refusals(self) -> None:
        """The graph is thrown away and its frame traced again: only the reasons stay."""
        with transaction() as tx:
            for refusal in self.refusals:
                tx.record(refusal)

    def react(self, settings: Options) -> None:
        """Warn or raise, as ``on_refusal`` says."""
        for refusal in self.refusals:
            react(refusal, settings)


def graph_modules(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """The graph and those of its higher-order operators."""
    return [m for m in gm.modules() if isinstance(m, fx.GraphModule)]


def _count(gm: fx.GraphModule) -> tuple[int, int, int]:
    """Nodes, collectives and host reads of all graphs, in one walk."""
    nodes = collectives = syncs = 0
    for m in graph_modules(gm):
        for node in m.graph.nodes:
            nodes += 1
            if node.op == "call_function":
                collectives += is_collective(node.target)
            elif node.op == "call_method":
                syncs += node.target in ("item", "tolist")
    return nodes, collectives, syncs


def run_passes(gm: fx.GraphModule, settings: Options, frame: FrameState) -> Outcome:
    """Rewrite ``gm`` in place, one pass after the other."""
    before = _count(gm)
    results: list[Rewrite | Refusal] = []
    runs: list[PassRun] = []
    passes = _passes.load()
    context = passes.PassContext(dict(frame.sites), frame.user_checks)
    capturing = frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED)
    left, after, sources = 0, before, []
    if capturing:
        for p in passes.ORDER:
            if p.NAME in settings.disable:
                continue
            start, nodes = time.perf_counter(), _count(gm)[0]
            found = [r for m in graph_modules(gm) for r in p.run(m, context)]
            results += found
            rewrites = sum(isinstance(r, Rewrite) for r in found)
            seconds = time.perf_counter() - start
            runs.append(PassRun(p.NAME, nodes, _count(gm)[0], seconds, rewrites, len(found) - rewrites))
        left = sum(node.target is markers.LOOP_BEGIN for m in graph_modules(gm) for node in m.graph.nodes) // 2
        if not left:
            restore_shadows(gm)
        after = _count(gm)
        sources = [str(r.details["source"]) for r in results if isinstance(r, Rewrite) and "source" in r.details]
    record = GraphRecord(
        nodes_before=before[0],
        nodes_after=after[0],
        collectives_before=before[1],
        collectives_after=after[1],
        host_syncs_before=before[2],
        host_syncs_after=after[2],
        passes=tuple(runs),
        boundary_sources=tuple(dict.fromkeys(sources)),
    )
    return Outcome(results, record, left, capturing)


def restore_shadows(gm: fx.GraphModule) -> None:
    """Ops that only stood in for torch's own while a loop was traced."""
    for m in graph_modules(gm):
        changed = False
        for node in list(m.graph.nodes):
            if node.op == "call_function" and node.target is markers.ROLL:
                node.target = torch.roll
                changed = True
        if changed:
            m.recompile()
