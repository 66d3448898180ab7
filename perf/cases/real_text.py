"""Labels for real text: every row has its own documents, one compiled function serves them all."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from packpass import _compat
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import Timings, interleave, profile
from packpass.measuring.variants import count_code, first_line
from perf.bounded import OutOfTime, time_limit
from perf.data import PackedRow, documents, pack
from perf.programs import labels_by_hand, labels_loop
from perf.race import FLOOR, HAND, LOOP, PACKPASS, STOCK, target_on
from perf.registry import Context, case
from perf.results import CaseResult, Figures, Gain, Table, Target

TEXT_BYTES = 2_000_000
Way = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STOCK_BOUND = 5.0  # seconds; stock torch.compile unrolls the loop and compiles anew for every row


@case("real_text", "labels for the standard library's sources, packed first-fit")
def run(ctx: Context, result: CaseResult) -> None:
    for row_length in (16_384, 131_072) if ctx.full else (16_384,) if ctx.quick else (131_072,):
        _rows_of(ctx, result, row_length)


def _rows_of(ctx: Context, result: CaseResult, row_length: int) -> None:
    title = f"rows of {row_length} bytes"
    ctx.progress(title)
    packed = pack(documents(TEXT_BYTES // (8 if ctx.quick else 1)), row_length)
    rows = [PackedRow(row.ids.to(ctx.device), row.cu_seqlens.to(ctx.device)) for row in packed]
    expected = [labels_loop(row.ids, row.cu_seqlens) for row in rows]

    ways: dict[str, Way] = {LOOP: labels_loop, HAND: labels_by_hand}
    graphs, code = _compile(ctx, result, title, ways, (rows, expected))
    if wrong := _wrong_rows(labels_by_hand, rows, expected):
        result.wrong.append(f"{title}: {HAND} differs from eager in rows {wrong}")

    timed: dict[str, Callable[[], object]] = {FLOOR: lambda: [row.ids.clone() for row in rows]}
    for name, way in ways.items():
        timed[name] = functools.partial(_all_rows, way, rows)
    timings = interleave(timed, budget=2 * ctx.budget, min_rounds=3 if ctx.quick else 7)
    counts = sorted(row.documents for row in rows)
    table = [
        [
            name,
            seconds_text(timing.seconds),
            f"{timing.ratio:.2f}",
            f"{timings[LOOP].ratio / timing.ratio:.1f}x" if name not in (LOOP, FLOOR) else "",
            str(graphs.get(name, "")),
        ]
        for name, timing in timings.items()
    ]
    about = f"{title}: {len(rows)} rows, {counts[0]} to {counts[-1]} documents each, median {counts[len(counts) // 2]}"
    result.tables.append(Table(about, ["way", "all rows", "of the clones", "over the loop", "graphs"], table))
    over = {name: timing.ratio for name, timing in timings.items()}
    result.targets += [
        Target(f"{title}: graphs for all rows", graphs.get(PACKPASS), 2),
        Target(f"{title}: kernels per graph", code.get("kernels"), 1, "exactly"),
        Target(f"{title}: host syncs in the generated code", code.get("host syncs"), 0),
    ]
    if row_length == 131_072:
        result.targets.append(target_on(f"{title}: over clone", timings.quotient(PACKPASS, FLOOR), 1.5))
    hand = timings.quotient(PACKPASS, HAND)
    if hand is not None:
        result.targets.append(target_on(f"{title}: over roll + index_fill_ (5 % noise allowed)", hand, 1.05))
    result.gains.append(_gain(f"labels of {about}", ctx.device, result.notes, timings, timed, graphs))
    result.data[title] = {"ratios": over, "rows": len(rows), "documents": counts, "graphs": graphs}


def _compile(
    ctx: Context,
    result: CaseResult,
    title: str,
    ways: dict[str, Way],
    batches: tuple[list[PackedRow], list[torch.Tensor]],
) -> tuple[dict[str, int], dict[str, float]]:
    """Put what compiles and is right into ``ways``: graphs of each, and what packpass's generated code holds."""
    rows, expected = batches
    graphs: dict[str, int] = {}
    code: dict[str, float] = {}
    for name, backend in ((PACKPASS, Backend()), (STOCK, "inductor")):
        way = compile_afresh(labels_loop, backend, {})
        stats = _compat.dynamo_counters("stats")
        before = stats["unique_graphs"]
        with _compat.empty_compile_caches(), _compat.generated_code() as sources:
            try:
                with time_limit(STOCK_BOUND if name == STOCK else 10 * STOCK_BOUND):
                    wrong = _wrong_rows(way, rows, expected)
            except OutOfTime as error:
                graphs[name] = stats["unique_graphs"] - before
                result.notes.append(f"{title}: {name} stopped after {error} and {graphs[name]} graphs")
                if name == PACKPASS:
                    result.wrong.append(f"{title}: {name} takes too long")
                continue
            except Exception as error:
                result.notes.append(f"{title}: {name} failed: {first_line(error)}")
                if name == PACKPASS:
                    result.wrong.append(f"{title}: {name} failed: {first_line(error)}")
                continue
        graphs[name] = stats["unique_graphs"] - before
        if wrong:
            result.wrong.append(f"{title}: {name} differs from eager in rows {wrong}")
            continue
        ways[name] = way
        if name == PACKPASS:
            found = count_code(sources)
            code = {"kernels": found.kernels / max(1, graphs[name]), "host syncs": found.host_syncs}
    return graphs, code


def _gain(
    about: str,
    device: str,
    notes: list[str],
    timings: Timings,
    timed: dict[str, Callable[[], object]],
    graphs: dict[str, int],
) -> Gain:
    figures = {}
    for name in (LOOP, STOCK, PACKPASS):
        found = timings.quotient(name, LOOP)
        peak = profile(timed[name]).peak_bytes if name in timed else None
        ratio, spread = (found.ratio, found.spread) if found else (None, 0.0)
        note = "" if found else next((n for n in notes if f": {name} " in n), "not timed").split(": ", 1)[-1]
        figures[name] = Figures(
            ratio, spread, graphs.get(name), peak_bytes=peak, error=0.0 if found else None, note=note
        )
    return Gain("real text", about, figures[LOOP], figures[STOCK], figures[PACKPASS], device=device)


def _all_rows(way: Way, rows: list[PackedRow]) -> None:
    for row in rows:
        way(row.ids, row.cu_seqlens)


def _wrong_rows(way: Way, rows: list[PackedRow], expected: list[torch.Tensor]) -> list[int]:
    return [
        index
        for index, (row, want) in enumerate(zip(rows, expected, strict=True))
        if not torch.equal(way(row.ids, row.cu_seqlens), want)
    ]
