"""Language models of transformers and a Conformer block, kept from mixing documents: what fits, and what it costs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import packpass
from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import interleave
from packpass.measuring.variants import first_line
from packpass.reports.report import Report
from perf.apart import Program, bounds_of, error_of
from perf.bounded import OutOfTime, time_limit
from perf.models.unaware import KINDS, WORDS, Conformer, language
from perf.race import PACKPASS, STOCK
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target

OPTIONS = {"options": {"packpass.isolate": True}}
RATIO, GRAPHS, ERROR = 1.5, 2, 1e-5
SECONDS = 600
"""For one model; what is not done then is a line that says so."""
HEADERS = ["model", "slots", "documents", "of leaking", "leaking", "isolated", "graphs", "error", "audit", "first call"]
DOCUMENTS = (8, 5, 1, 7)
"""Of the four batches; where the code allows it their rows have different lengths, too."""


def programs(name: str) -> Iterator[Program]:
    """The model on four batches, the first of which is timed."""
    kind = KINDS.get(name)
    total = kind.total if kind is not None else 1024
    model: nn.Module = language(name) if kind is not None else Conformer(64)
    for k, documents in enumerate(DOCUMENTS):
        slots = total if kind is not None and kind.one_length else total - 5 * k
        generator = torch.Generator().manual_seed(k)
        if kind is not None:
            given = torch.randint(3, WORDS, (1, slots), generator=generator)
        else:
            given = torch.randn(1, slots, 64, generator=generator).requires_grad_()
        yield Program(name, model, given, bounds_of(slots, min(documents, slots // 12)), 1, 1)


@case(
    "isolate_models",
    "documents kept apart in models of transformers: time over that of the leaking model, graphs, error, audit",
    devices=("cpu",),
    on_request=True,
)
def run(ctx: Context, result: CaseResult) -> None:
    rows = []
    for name in ("lfm2", "conformer") if ctx.quick else (*KINDS, "conformer"):
        try:
            with time_limit(SECONDS):
                rows.append(_measured(ctx, result, list(programs(name))))
        except ImportError as error:
            result.notes.append(f"{name} was not run: {error}")
        except OutOfTime:
            result.notes.append(f"{name}: not done after {SECONDS} s")
    result.tables.append(Table("one step (forward + backward), packed row", HEADERS, rows))
    result.notes.append("the leaking model is stock torch.compile on the same row; attention there sees all documents")


def _measured(ctx: Context, result: CaseResult, batches: list[Program]) -> list[str]:
    torch._dynamo.reset()
    first, name = batches[0], batches[0].name
    report = Report()
    ours, stock = compile_afresh(first.model, Backend(), OPTIONS), compile_afresh(first.model, "inductor", {})
    ctx.progress(f"{name}: packpass")
    started = time.perf_counter()
    with collecting(report), _compat.empty_compile_caches():
        outcomes = [first.step(ours)]
        seconds = time.perf_counter() - started
        outcomes += [batch.step(ours) for batch in batches[1:]]
    error = max(error_of(batch.alone(), got) for batch, got in zip(batches, outcomes, strict=True))
    if not any(r.rule == "isolate" for r in report.rewrites):
        result.notes.append(f"{name} is refused: " + "; ".join(f"{r.code}: {r.reason}" for r in report.refusals))
        return [name, *[""] * (len(HEADERS) - 2), "refused"]
    clean = _audit(first)
    ctx.progress(f"{name}: stock torch.compile")
    leaking: Callable[..., Any] = stock
    try:
        first.step(stock)
    except Exception as raised:  # whatever Inductor raises for the model as it is
        leaking = first.model
        result.notes.append(
            f"{name}: stock torch.compile raises {first_line(raised)[:120]}; the leaking model is eager"
        )
    ways = {STOCK: functools.partial(first.step, leaking), PACKPASS: functools.partial(first.step, ours)}
    timings = interleave(ways, budget=2 * ctx.budget, min_rounds=5)
    ratio = timings[PACKPASS].ratio / timings[STOCK].ratio
    result.targets += [
        Target(f"{name}: time of the leaking model", ratio, RATIO),
        Target(f"{name}: graphs over four batches", report.graphs, GRAPHS),
        Target(f"{name}: error against document by document", error, ERROR),
        Target(f"{name}: audit finds leaks", float(clean != "clean"), 0),
    ]
    ctx.progress(f"{name}: {ratio:.2f} of the leaking model, {report.graphs} graphs, error {error:.1e}, audit {clean}")
    result.data[name] = {"ratio": ratio, "graphs": report.graphs, "error": error, "audit": clean}
    return [
        name,
        str(first.given.shape[1]),
        str(len(first.bounds) - 1),
        f"{ratio:.2f}x",
        seconds_text(timings[STOCK].seconds),
        seconds_text(timings[PACKPASS].seconds),
        str(report.graphs),
        f"{error:.1e}",
        clean,
        seconds_text(seconds),
    ]


def _audit(program: Program) -> str:
    """What an audit says of what packpass makes of the model (its graphs, not Inductor's code)."""
    options = {**OPTIONS["options"], "packpass.inner_backend": "eager"}
    bounds = torch.tensor(program.bounds)
    try:
        audit = packpass.audit(program.model, bounds, backend="packpass", options=options)(program.given, bounds)
    except Exception as error:
        return f"raised {first_line(error)[:80]}"
    return "clean" if audit.clean else f"{len(audit.leaks)} leaks"
