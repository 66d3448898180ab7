"""Layout changes under context parallelism: from shards of the tokens to shards of the heads, and back."""

from __future__ import annotations

import os

from packpass.measuring.compare_render import seconds_text
from perf.cp.programs import Setup
from perf.cp.race import Race, Races, details, oversubscribed, overview, quotient, ratio, rewritten
from perf.cp.ranks import RanksFailed, ranks_of
from perf.cp.work import HAND, HAND_COMPILED, NAIVE, PACKPASS, STOCK, first_calls
from perf.race import target_on
from perf.registry import Context, case
from perf.results import CaseResult, Lines, Table, Target

WAYS = (NAIVE, HAND, HAND_COMPILED, PACKPASS)
COMPILE_S = 120.0
WIRE = (
    "the floor copies the data once; the exchange copies what leaves the rank into a message, and what comes out of "
    "one, each in its order"
)


@case(
    "cp_exchange", "context parallelism: shards of tokens to shards of heads and back, on gloo ranks", devices=("cpu",)
)
def run(ctx: Context, result: CaseResult) -> None:
    ranks = ranks_of(4 if ctx.full else 2)
    races = Races(ctx, result, ranks)
    for cp in (2, 4):
        if cp <= ranks.size:
            _layouts(ctx, result, races, cp)
    _others(ctx, result, races)
    _compile_time(ctx, result, races)
    result.notes.append(
        "the floor is one all-to-all of the bytes that move and one copy of the data, twice for forward and backward; "
        "naive eager does six all-to-alls per document each way; --full adds stock "
        "torch.compile (which runs the loop eagerly), 4 ranks, the other numbers of documents in bfloat16, and "
        "hp_to_cp alone"
    )


def _layouts(ctx: Context, result: CaseResult, races: Races, cp: int) -> None:
    """cp_to_hp (whose backward is hp_to_cp) in both dtypes and for few and many documents."""
    run: dict[str, Race] = {}
    for dtype in ("float32", "bfloat16") if ctx.full or (cp == 2 and not ctx.quick) else ("float32",):
        for documents in (16, 64) if ctx.full else (64,):
            setup = Setup("cp_to_hp", cp, documents, dtype)
            # Stock torch.compile gives the loop up and runs it eagerly, after compiling for longer than all others.
            stock = (STOCK,) if ctx.full and (cp, documents, dtype) == (2, 16, "float32") else ()
            run[f"{dtype}, N={documents}"] = races.run(setup, (*WAYS, *stock))
    where = f"T=8192, F=800, 6 sections, {oversubscribed(cp)}"
    result.tables.append(overview(f"cp_to_hp, cp={cp}: {where}", run))
    result.tables.append(details(f"cp_to_hp, cp={cp}, float32, N=64: {where}", run["float32, N=64"]))
    for name, race in run.items():
        _targets(result, f"cp={cp}, {name}", race)
    if not ctx.full:
        return  # one number of documents is no line
    series: dict[str, list[tuple[float, float]]] = {}
    for documents in (16, 64):
        for way in WAYS:
            measured = run.get(f"float32, N={documents}")
            over = ratio(measured, way) if measured is not None else None
            if over is not None:
                series.setdefault(way, []).append((documents, over))
    result.plots.append(Lines(f"cp_to_hp, cp={cp}, float32", "documents", "forward + backward, of the floor", series))


def _targets(result: CaseResult, name: str, race: Race) -> None:
    entry = rewritten(race)
    note = "" if entry else "packpass left the naive program alone"
    for label, both in (("forward", False), ("forward + backward", True)):
        over = quotient(race, PACKPASS, both=both) if entry else None
        result.targets.append(target_on(f"{name}: {label} over the floor", over, 1.2, note=note, reason=WIRE))
    over = quotient(race, PACKPASS, HAND_COMPILED) if entry else None
    result.targets.append(target_on(f"{name}: over hand-fused compiled code", over, 1.0, note=note))
    count = entry.most("collectives") if entry else None
    result.targets.append(Target(f"{name}: collectives forward + backward", count, 2, "exactly", note))


def _others(ctx: Context, result: CaseResult, races: Races) -> None:
    """The other way alone, and there and back."""
    run = {}
    for program in ("hp_to_cp", "round_trip") if ctx.full else ("round_trip",):
        for cp in (2, 4) if ctx.full else (2,):
            run[f"{program}, cp={cp}"] = races.run(Setup(program, cp, 64), WAYS)
    result.tables.append(overview("there and back, float32, N=64: T=8192, F=800, 6 sections", run))
    for name, race in run.items():
        if rewritten(race):
            result.targets.append(target_on(f"{name}: over the floor", quotient(race, PACKPASS), 1.2, reason=WIRE))


def _compile_time(ctx: Context, result: CaseResult, races: Races) -> None:
    """First step in empty caches at few and at many documents, and the graphs of further numbers of documents."""
    few, many, then = 4, 64, (16, 1, 3, 64)
    if races.leaves_alone("cp_to_hp"):
        result.notes.append("compile time is not measured: packpass left the naive program alone")
        return
    rows = []
    for way in (PACKPASS, HAND_COMPILED) if ctx.full else (PACKPASS,):
        ctx.progress(f"first calls: {way}")
        setup = Setup("cp_to_hp", 2, few)
        try:
            found = races.ranks.call(first_calls, setup, way, (few, many), then, timeout_s=COMPILE_S)
        except RanksFailed as fault:
            result.notes.append(f"first calls of {way}: {str(fault).strip().splitlines()[-1][:300]}")
            continue
        answers = [f for f in found if f is not None]
        seconds = [max(times) for times in zip(*(s for s, _ in answers), strict=True)]
        graphs = max(graphs for _, graphs in answers)
        rows.append([way, *(seconds_text(s) for s in seconds), f"{seconds[1] / seconds[0]:.2f}", str(graphs)])
        if way == PACKPASS:
            result.targets += [
                Target(f"first call at N={many} over N={few}", seconds[1] / seconds[0], 1.2),
                Target(f"first call at N={many}, seconds", seconds[1], 10),
                Target(f"graphs over N={many}, {', '.join(map(str, then))}", graphs, 2),
            ]
    headers = ["way", f"first step, N={few}", f"N={many}", "ratio", f"graphs over N={many}, then {then}"]
    result.tables.append(Table(f"cp_to_hp, cp=2, float32: compile time ({os.cpu_count()} cores)", headers, rows))
