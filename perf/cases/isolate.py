"""Models that know no boundaries, kept from mixing documents: what does ``isolate`` cost beside the leaking model?"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import interleave
from packpass.reports.report import Report
from perf.apart import Program, bounds_of, error_of
from perf.models.unaware import KINDS, WORDS, Convolution, language
from perf.race import PACKPASS, STOCK
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target

OPTIONS = {"options": {"packpass.isolate": True}}
CONVOLUTION, MODEL, ERROR = 1.15, 1.5, 1e-5
FULL = ("lfm2", "llama", "mamba2", "mamba")
HEADERS = ["model", "slots", "documents", "error", "first call", "leaking", "isolated", "of leaking"]


@case("isolate", "documents kept apart in models that know no boundaries: forward + backward against the leaking model")
def run(ctx: Context, result: CaseResult) -> None:
    rows = []
    width, total = (64, 4096) if ctx.quick else (256, 16_384)
    x = torch.randn(1, width, total, device=ctx.device, requires_grad=True)
    convolution = Convolution(width).to(ctx.device)
    program = Program("causal convolution", convolution, x, bounds_of(total, 16), 2, 2)
    rows.append(_measure(ctx, result, program, CONVOLUTION))
    for name in FULL if ctx.full else ():
        try:
            model = language(name).to(ctx.device)
        except ImportError as error:
            result.notes.append(f"{name} was not run: {error}")
            continue
        total = KINDS[name].total
        ids = torch.randint(3, WORDS, (1, total), generator=torch.Generator().manual_seed(0)).to(ctx.device)
        bounds = bounds_of(total, 8 if total > 100 else 3)
        rows.append(_measure(ctx, result, Program(name, model, ids, bounds, 1, 1), MODEL))
    result.tables.append(Table("one step, packed row", HEADERS, rows))
    if not ctx.full:
        result.notes.append(
            "--full adds models of convolutions, of attention alone and of scans; isolate_models has them all"
        )
    result.notes.append("the leaking model is stock torch.compile on the same row; attention there sees all documents")


def _measure(ctx: Context, result: CaseResult, program: Program, limit: float) -> list[str]:
    torch._dynamo.reset()
    report = Report()
    ours, stock = compile_afresh(program.model, Backend(), OPTIONS), compile_afresh(program.model, "inductor", {})
    ctx.progress(f"{program.name}: packpass")
    started = time.perf_counter()
    with collecting(report), _compat.empty_compile_caches():
        got = program.step(ours)
    first = time.perf_counter() - started
    error = error_of(program.alone(), got)
    if not any(r.rule == "isolate" for r in report.rewrites) or not error <= ERROR * 10:
        reasons = "; ".join(r.reason for r in report.refusals)
        result.wrong.append(f"{program.name}: error {error:.1e} against document by document; {reasons}")
        return [program.name, "", "", f"{error:.1e}", "", "", "", ""]
    ctx.progress(f"{program.name}: stock torch.compile")
    leaking, of = stock, "time of the leaking compiled model"
    try:
        program.step(stock)
    except Exception as error_of_stock:  # whatever Inductor raises for the model as it is
        leaking, of = program.model, "time of the leaking model in eager"
        raised = f"{type(error_of_stock).__name__}: {str(error_of_stock).splitlines()[0][:120]}"
        result.notes.append(f"{program.name}: stock torch.compile raises {raised}; the leaking model is eager here")
    ways: dict[str, Callable[[], Any]] = {
        STOCK: functools.partial(program.step, leaking),
        PACKPASS: functools.partial(program.step, ours),
    }
    timings = interleave(ways, budget=2 * ctx.budget, min_rounds=3 if ctx.quick else 7)
    ratio = timings[PACKPASS].ratio / timings[STOCK].ratio
    result.targets.append(Target(f"{program.name}: {of}", ratio, limit))
    result.targets.append(Target(f"{program.name}: error against document by document", error, ERROR))
    result.data[program.name] = {"error": error, "first_call": first, "ratio": ratio}
    return [
        program.name,
        str(program.given.shape[program.row]),
        str(len(program.bounds) - 1),
        f"{error:.1e}",
        seconds_text(first),
        seconds_text(timings[STOCK].seconds),
        seconds_text(timings[PACKPASS].seconds),
        f"{ratio:.2f}x",
    ]
