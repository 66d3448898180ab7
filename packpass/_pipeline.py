"""Run the passes over one Dynamo graph and record what they did. Passes own none of timing, counting or logging."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import fx

from packpass import _passes
from packpass._options import Options
from packpass._report import Refusal, Rewrite, transaction
from packpass.capture import markers
from packpass.capture.state import FrameState, Mode, react


def graph_modules(gm: fx.GraphModule) -> list[fx.GraphModule]:
    """The graph and those of its higher-order operators."""
    return [m for m in gm.modules() if isinstance(m, fx.GraphModule)]


def has_loops(gm: fx.GraphModule) -> bool:
    """Does any graph still hold a captured loop?"""
    return any(node.target in markers.MARKERS for m in graph_modules(gm) for node in m.graph.nodes if node.op == "call_function")


def run_passes(gm: fx.GraphModule, settings: Options, frame: FrameState) -> bool:
    """Rewrite ``gm`` in place. False if it still holds a loop that only a new trace can resolve."""
    nodes_before = sum(len(m.graph.nodes) for m in graph_modules(gm))
    loops = frame.mode in (Mode.SYMBOLIC, Mode.UNROLLED)
    results: list[Rewrite | Refusal] = []
    runs: list[Any] = []
    if loops:
        for p in _passes.load().ORDER:
            if p.NAME in settings.disable:
                continue
            start = time.perf_counter()
            for m in graph_modules(gm):
                results.extend(p.run(m, frame.sites))
            runs.append((p.NAME, time.perf_counter() - start))
        if has_loops(gm) or not any(isinstance(r, Rewrite) for r in results):
            with transaction() as tx:
                for r in results:
                    if isinstance(r, Refusal):
                        tx.record(r)
            for r in results:
                if isinstance(r, Refusal):
                    react(r, settings)
            return False
        restore_shadows(gm)
    with transaction() as tx:
        for r in results:
            tx.record(r)
        from packpass._report import GraphRecord

        nodes_after = sum(len(m.graph.nodes) for m in graph_modules(gm))
        tx.record(GraphRecord(nodes_before=nodes_before, nodes_after=nodes_after))
    return True


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
