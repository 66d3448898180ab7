"""Compile time and number of graphs while the number of documents and of tokens changes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from packpass import _compat
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.variants import first_line
from perf.programs import boundaries, roll_loop
from perf.race import PACKPASS, STOCK
from perf.registry import Context, case
from perf.results import CaseResult, Lines, Table, Target

TOTAL = 16_384
STEPS = [(8, 16_384), (1, 16_384), (2, 16_384), (3, 10_000), (7, 16_384), (50, 9_999), (512, 16_384), (512, 20_001)]
STOCK_BOUND = 60.0  # seconds after which stock torch.compile is given no further shapes


@case("compile_time", "compile time and graphs over N and T")
def run(ctx: Context, result: CaseResult) -> None:
    _first_calls(ctx, result)
    _graphs(ctx, result)


def _compiled(name: str) -> Callable[..., torch.Tensor]:
    return compile_afresh(roll_loop, Backend() if name == PACKPASS else "inductor", {})


def _first_calls(ctx: Context, result: CaseResult) -> None:
    """The first call in empty caches, alternating between the numbers of documents."""
    sizes = (8, 512)
    x = torch.arange(TOTAL, device=ctx.device)[None]
    seconds: dict[int, list[float]] = {documents: [] for documents in sizes}
    for turn in range(1 if ctx.quick else 2):
        for documents in sizes:
            ctx.progress(f"first call, N={documents}, round {turn + 1}")
            cu = boundaries(documents, TOTAL, ctx.device)
            with _compat.empty_compile_caches():
                call = _compiled(PACKPASS)
                started = time.perf_counter()
                call(x, cu)
                seconds[documents].append(time.perf_counter() - started)
    middle = {documents: statistics.median(values) for documents, values in seconds.items()}
    rows = [[str(n), seconds_text(middle[n]), ", ".join(f"{value:.2f}" for value in seconds[n])] for n in sizes]
    result.tables.append(Table("packpass: first call in empty caches", ["documents", "median", "rounds (s)"], rows))
    result.targets.append(Target("first call at N=512 over N=8", middle[512] / middle[8], 1.2))
    result.data["first_call"] = seconds


def _graphs(ctx: Context, result: CaseResult) -> None:
    """One compiled function, called with changing N and T: graphs made so far and time of each call."""
    rows = [[f"N={documents}, T={total}"] for documents, total in STEPS]
    series: dict[str, list[tuple[float, float]]] = {}
    for name in (PACKPASS, STOCK):
        ctx.progress(f"changing N and T: {name}")
        call = _compiled(name)
        stats = _compat.dynamo_counters("stats")
        before, spent = stats["unique_graphs"], 0.0
        series[name] = []
        for row, (documents, total) in zip(rows, STEPS, strict=True):
            if name == STOCK and spent > STOCK_BOUND:
                row += ["not run", ""]
                continue
            x = torch.arange(1, total + 1, device=ctx.device)[None]
            cu = boundaries(documents, total, ctx.device)
            with _compat.empty_compile_caches():
                started = time.perf_counter()
                try:
                    got = call(x, cu)
                except Exception as error:
                    row += ["failed", ""]
                    result.notes.append(f"{name} at N={documents}, T={total}: {first_line(error)}")
                    if name == PACKPASS:
                        result.wrong.append(f"{name} at N={documents}, T={total}: {first_line(error)}")
                    continue
                took = time.perf_counter() - started
            spent += took
            series[name].append((len(series[name]) + 1, took))
            if not torch.equal(got, roll_loop(x, cu)):
                result.wrong.append(f"{name} at N={documents}, T={total} differs from eager")
            row += [seconds_text(took), str(stats["unique_graphs"] - before)]
        graphs = stats["unique_graphs"] - before
        if name == PACKPASS:
            result.targets.append(Target(f"graphs over {len(STEPS)} shapes", graphs, 2))
            result.targets.append(Target("graphs over the shapes, at least one", graphs, 1, "at least"))
        elif graphs == 0:
            result.notes.append("stock torch.compile compiled nothing: the loop runs eagerly, whatever N is")
    headers = ["call", "packpass", "graphs so far", "stock torch.compile", "graphs so far"]
    result.tables.append(Table("one compiled function, changing shapes (first call compiles)", headers, rows))
    result.plots.append(Lines("time of each call while N and T change", "call", "seconds", series, log_x=False))
