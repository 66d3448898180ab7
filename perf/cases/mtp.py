"""A multi-token-prediction model written for unpacked rows, on packed text: what a training step costs and computes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import Profile, Timings, interleave, profile
from packpass.ops import packed_roll, varlen_attention
from packpass.reports.report import Report
from perf.data import pack, paragraphs
from perf.models.batches import (
    Batch,
    Model,
    Step,
    backward,
    backward_one_by_one,
    batch_of,
    contaminated,
    largest_gradient_error,
    missing,
)
from perf.models.gpt import Config
from perf.models.mtp import IGNORE, MTPModel
from perf.race import PACKPASS, STOCK, target_on
from perf.registry import Context, case
from perf.results import CaseResult, Figures, Gain, Table, Target

ONE_BY_ONE, NAIVE = "eager, documents one by one", "eager"
ROLLS = "the packed rolls alone"
CONFIG = Config(hidden=128, heads=4, layers=1, depths=3)
ROW = 2048
BATCHES = 25
Ways = dict[str, tuple[Model, Callable[[Model, Batch], Step]]]


def attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The one thing the model is given for packed rows."""
    return varlen_attention(q, k, v, cu_seqlens, is_causal=True)


def packed_rolls(input_ids: Tensor, position_ids: Tensor, loss_mask: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    """Every shift of a step, written by hand: what packpass puts in place of the naive ones."""
    labels, out = input_ids, []
    for depth in range(CONFIG.depths + 1):
        if depth < CONFIG.depths:
            input_ids, position_ids = packed_roll(input_ids, cu_seqlens), packed_roll(position_ids, cu_seqlens)
            out += [input_ids, position_ids]
        labels, loss_mask = packed_roll(labels, cu_seqlens, fill=IGNORE), packed_roll(loss_mask, cu_seqlens)
        out += [labels, loss_mask]
    return out


@case("mtp", f"multi-token prediction, {CONFIG.depths} depths, written for unpacked rows")
def run(ctx: Context, result: CaseResult) -> None:
    batches = [batch_of(row).to(ctx.device) for row in pack(paragraphs(ROW * (BATCHES + 2)), ROW)][:BATCHES]
    torch.manual_seed(0)
    model = MTPModel(CONFIG, attention).to(ctx.device)
    batch = max(batches, key=lambda b: b.cu_seqlens.numel())
    documents = batch.cu_seqlens.numel() - 1
    title = f"forward and backward, [1, {ROW}] in {documents} documents, hidden size {CONFIG.hidden}"

    ways: Ways = {NAIVE: (model, backward), ONE_BY_ONE: (model, backward_one_by_one)}
    report = Report()
    first_calls, graphs = _compile(ctx, model, batch, ways, report)
    errors = _check(result, model, ways, batch)
    ctx.progress("timing")
    timings = _time(ctx, model, ways, batch)
    result.tables.append(_table(title, timings, errors, first_calls))
    profiles = {name: profile(functools.partial(_step, model, *ways[name], batch)) for name in (NAIVE, STOCK, PACKPASS)}
    result.gains = [_gain(title, ctx.device, timings, errors, graphs, profiles)]
    many, leaked, wrong = _many_batches(ctx, model, batches)
    if wrong:
        result.wrong.append(f"{wrong} labels of {BATCHES} batches are not the tokens ahead")

    compiling = first_calls[PACKPASS] - timings[PACKPASS].seconds
    passes = {run.rule: run.seconds for record in report.graph_records for run in record.passes}
    seconds = sum(run.seconds for record in report.graph_records for run in record.passes)
    result.targets += [
        Target("contaminated labels", errors[PACKPASS][2], 0, "exactly"),
        Target(f"contaminated labels of {BATCHES} batches", leaked, 0, "exactly"),
        Target("loss error against documents one by one", errors[PACKPASS][0], 1e-5),
        Target("largest gradient error", errors[PACKPASS][1], 1e-5),
        Target(f"graphs over {BATCHES} batches", many, 2),
        target_on("time of the packed rolls, share of the step", timings.quotient(ROLLS, PACKPASS), 0.01),
        Target("layout and passes, share of the compile time", seconds / compiling, 0.05),
        target_on(
            "packpass over stock torch.compile",
            timings.quotient(PACKPASS, STOCK),
            1.05,
            reason="stock trains on labels of neighbouring documents; respecting documents is more work than that",
        ),
    ]
    result.data["mtp"] = {
        "seconds": {name: timing.seconds for name, timing in timings.items()},
        "errors": errors,
        "first_calls": first_calls,
        "passes": passes,
        "report": report.to_dict(),
    }


def _compile(
    ctx: Context, model: MTPModel, batch: Batch, ways: Ways, report: Report
) -> tuple[dict[str, float], dict[str, int]]:
    """Put the compiled models into ``ways``: seconds of packpass's first call, and graphs of both."""
    first_calls, graphs = {}, {}
    stats = _compat.dynamo_counters("stats")
    torch._dynamo.reset()
    with _compat.empty_compile_caches():  # stock, the second, finds kernels in them that both have
        for name, backend in ((PACKPASS, Backend()), (STOCK, "inductor")):
            ctx.progress(f"compiling: {name}")
            call = compile_afresh(model, backend, {"fullgraph": True})
            before = stats["unique_graphs"]
            with collecting(report if name == PACKPASS else Report()):
                started = time.perf_counter()
                backward(call, batch)
                first_calls[name] = time.perf_counter() - started
            graphs[name] = stats["unique_graphs"] - before
            ways[name] = (call, backward)
    del first_calls[STOCK]
    return first_calls, graphs


def _check(
    result: CaseResult,
    model: MTPModel,
    ways: Ways,
    batch: Batch,
) -> dict[str, tuple[float, float, int]]:
    """Loss error, gradient error (both against documents one by one) and contaminated labels of every way."""
    model.zero_grad()
    expected = backward_one_by_one(model, batch)
    wanted = _gradients(model)
    errors = {ONE_BY_ONE: (0.0, 0.0, 0)}
    for name, (call, step) in ways.items():
        if name == ONE_BY_ONE:
            continue
        losses = step(call, batch).losses
        loss = max(abs(a - b) for a, b in zip(losses, expected.losses, strict=True))
        gradient = largest_gradient_error(_gradients(model), wanted)
        errors[name] = (loss, gradient, contaminated(call(*batch.arguments()), batch.cu_seqlens))
    if errors[NAIVE][2] == 0:
        result.wrong.append("the naive model leaks nothing: this case shows nothing")
    if errors[PACKPASS][2] or errors[PACKPASS][0] > 1e-5 or errors[PACKPASS][1] > 1e-5:
        result.wrong.append(f"packpass differs from documents one by one: {errors[PACKPASS]}")
    return errors


def _gradients(model: MTPModel) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def _time(ctx: Context, model: MTPModel, ways: Ways, batch: Batch) -> Timings:
    rolls = torch.compile(packed_rolls)
    fields = (batch.input_ids, batch.position_ids, batch.loss_mask, batch.cu_seqlens)
    timed: dict[str, Callable[[], object]] = {
        name: functools.partial(_step, model, *way, batch) for name, way in ways.items()
    }
    timed[ROLLS] = lambda: rolls(*fields)
    rolls(*fields)
    return interleave(timed, budget=2 * ctx.budget, min_rounds=3 if ctx.quick else 5)


def _step(model: MTPModel, call: Model, step: Callable[[Model, Batch], Step], batch: Batch) -> None:
    model.zero_grad()
    step(call, batch)


def _gain(
    title: str,
    device: str,
    timings: Timings,
    errors: dict[str, tuple[float, float, int]],
    graphs: dict[str, int],
    profiles: dict[str, Profile],
) -> Gain:
    figures = {}
    for name, found in profiles.items():
        over = timings.quotient(name, NAIVE)
        ratio, spread = (over.ratio, over.spread) if over else (None, 0.0)
        figures[name] = Figures(ratio, spread, graphs.get(name), found.collectives, found.peak_bytes, errors[name][0])
    alone = timings.quotient(ONE_BY_ONE, PACKPASS)
    beside = f"; {alone.ratio:.3g} times as fast as documents one by one, which are right as well" if alone else ""
    return Gain(
        "MTP step",
        f"{title}{beside}",
        figures[NAIVE],
        figures[STOCK],
        figures[PACKPASS],
        "of the loss, against documents one by one",
        device,
    )


def _table(
    title: str,
    timings: Timings,
    errors: dict[str, tuple[float, float, int]],
    first_calls: dict[str, float],
) -> Table:
    rows = []
    for name, timing in timings.items():
        loss, gradient, leaked = errors.get(name, (None, None, None))
        rows.append(
            [
                name,
                f"{seconds_text(timing.seconds)} ±{timing.spread:.0%}",
                f"{timing.ratio:.2f}" if timing.ratio >= 0.01 else f"{timing.ratio:.1e}",
                "" if loss is None else f"{loss:.1e}",
                "" if gradient is None else f"{gradient:.1e}",
                "" if leaked is None else str(leaked),
                seconds_text(first_calls[name]) if name in first_calls else "",
            ]
        )
    headers = ["way", "step", "of eager", "loss error", "gradient error", "contaminated labels", "first call"]
    return Table(title, headers, rows)


def _many_batches(ctx: Context, model: MTPModel, batches: list[Batch]) -> tuple[int, int, int]:
    """Graphs, contaminated labels and wrong labels over batches with other numbers of documents.

    Without Inductor: neither Dynamo's graphs nor the passes know what comes after them.
    """
    ctx.progress(f"{len(batches)} batches")
    torch._dynamo.reset()
    stats = _compat.dynamo_counters("stats")
    before, leaked, wrong = stats["unique_graphs"], 0, 0
    call = compile_afresh(model, Backend(), {"options": {"packpass.inner_backend": "eager"}})
    with torch.no_grad():
        for batch in batches:
            output = call(*batch.arguments())
            leaked += contaminated(output, batch.cu_seqlens)
            wrong += missing(output, batch)
    return stats["unique_graphs"] - before, leaked, wrong
