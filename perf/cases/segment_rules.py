"""Ops inside a loop over documents: against the eager loop, and against the same op on the whole row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import Quotient, interleave
from packpass.measuring.trees import difference
from packpass.measuring.variants import first_line
from packpass.reports.report import Report
from perf.programs import boundaries
from perf.race import target_on
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target

TOTAL, DOCUMENTS = 16_384, 512
SHAPES = {"a number per token": (TOTAL,), "hidden states": (TOTAL, 64)}
Body = Callable[[Tensor], Tensor]
LOOP, PACKED, WHOLE, CLONE = "loop", "packpass", "whole row", "clone"


@dataclasses.dataclass(frozen=True)
class Rule:
    """``body`` is applied to every document ``[L, ...]``; results go back to its slots, or are stacked."""

    name: str
    body: Body
    stacked: bool = False


def _positions(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[0], device=x.device) * 0.01
    return x * angles.cos().view(-1, *[1] * (x.dim() - 1))


RULES = [
    Rule("sum", lambda x: x * x.sum(0, keepdim=True)),
    Rule("mean", lambda x: x - x.mean(0, keepdim=True)),
    Rule("amax", lambda x: x - x.amax(0, keepdim=True)),
    Rule("var", lambda x: x * torch.rsqrt(x.var(0, keepdim=True, unbiased=False) + 1e-5)),
    Rule("norm", lambda x: x / x.norm(dim=0, keepdim=True)),
    Rule("softmax", lambda x: x.softmax(0)),
    Rule("log_softmax", lambda x: F.log_softmax(x, 0)),
    Rule("cumsum", lambda x: x.cumsum(0)),
    Rule("cumprod", lambda x: (x * 0.01 + 1).cumprod(0)),
    Rule("cummax", lambda x: x.cummax(0).values),
    Rule("flip", lambda x: x.flip(0)),
    Rule("positions", _positions),
    Rule("first token", lambda x: x[0], stacked=True),
    Rule("last token", lambda x: x[-1], stacked=True),
    Rule("mean pooling", lambda x: x.mean(0), stacked=True),
]
EVERY_KERNEL = ("sum", "var", "softmax", "cumsum", "flip", "positions", "last token", "mean pooling")
"""Measured for numbers; the others, which run the same kernels, only with ``--full``."""
TYPICAL = ("log_softmax", "mean pooling")
"""Measured for hidden states, too; the others only with ``--full``."""


def loop_over(rule: Rule) -> Callable[[Tensor, Tensor], Tensor]:
    """The loop as people write it."""

    def written_back(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        out = x.clone()
        for i in range(len(cu_seqlens) - 1):
            start, end = cu_seqlens[i], cu_seqlens[i + 1]
            out[start:end] = rule.body(x[start:end])
        return out

    def stacked(x: Tensor, cu_seqlens: Tensor) -> Tensor:
        results = []
        for i in range(len(cu_seqlens) - 1):
            results.append(rule.body(x[cu_seqlens[i] : cu_seqlens[i + 1]]))
        return torch.stack(results)

    return stacked if rule.stacked else written_back


@case("segment_rules", f"ops inside a loop over {DOCUMENTS} documents")
def run(ctx: Context, result: CaseResult) -> None:
    for name, shape in SHAPES.items():
        _rules_on(ctx, result, name, shape)


def _rules_on(ctx: Context, result: CaseResult, name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device=ctx.device)
    cu = boundaries(DOCUMENTS, TOTAL, ctx.device)
    rows: list[list[str]] = []
    over_loops: dict[str, Quotient] = {}
    over_wholes: dict[str, Quotient] = {}
    rules = RULES[:: 5 if ctx.quick else 1]
    if not ctx.full:
        wanted = TYPICAL if len(shape) > 1 else EVERY_KERNEL
        rules = [rule for rule in rules if rule.name in wanted]
    for rule in rules:
        ctx.progress(f"{name}: {rule.name}")
        line, over_loop, over_whole = _measure(ctx, result, rule, x, cu)
        rows.append(line)
        if over_loop is not None and over_whole is not None:
            over_loops[rule.name], over_wholes[rule.name] = over_loop, over_whole
    title = f"{name}, {list(shape)} float32, N={DOCUMENTS}"
    headers = [
        "body",
        "eager loop",
        "packpass",
        "over the loop",
        "whole row, compiled",
        "of the whole row",
        "of a clone",
    ]
    result.tables.append(Table(title, headers, rows))
    slowest = min(over_loops, key=lambda name: over_loops[name].ratio, default="")
    behind = max(over_wholes, key=lambda name: over_wholes[name].ratio, default="")
    result.targets += [
        Target(f"{name}: bodies rewritten", len(over_loops), len(rows), "exactly"),
        target_on(
            f"{name}: times faster than the eager loop, least",
            over_loops.get(slowest),
            20,
            kind="at least",
            note=slowest,
        ),
        target_on(
            f"{name}: over the same op on the whole row, most",
            over_wholes.get(behind),
            2,
            note=behind,
            reason="the whole row needs no boundaries; documents end anywhere in a block of a kernel",
        ),
    ]
    result.data[title] = {
        "over_loop": {name: found.ratio for name, found in over_loops.items()},
        "over_whole": {name: found.ratio for name, found in over_wholes.items()},
    }


def _measure(
    ctx: Context, result: CaseResult, rule: Rule, x: Tensor, cu: Tensor
) -> tuple[list[str], Quotient | None, Quotient | None]:
    """The rule's line of the table, and packpass against the loop and the whole row; None where it is not rewritten."""
    loop, report = loop_over(rule), Report()
    torch._dynamo.reset()
    call = compile_afresh(loop, Backend(), {})
    whole = compile_afresh(rule.body, "inductor", {})
    with _compat.empty_compile_caches():
        try:
            with collecting(report):
                found = call(x, cu)
        except Exception as error:
            result.wrong.append(f"{rule.name}: {first_line(error)}")
            return [rule.name, *[""] * 6], None, None
        whole(x)
    if not difference({"result": loop(x, cu)}, {"result": found}).close:
        result.wrong.append(f"{rule.name}: packpass differs from the loop")
        return [rule.name, "", "WRONG", *[""] * 4], None, None
    if not any(item.rule == "vectorize_segments" for item in report.rewrites):
        reasons = "; ".join(f"[{item.code}] {item.reason}" for item in report.refusals)
        result.notes.append(f"{rule.name} is left alone: {reasons or 'no reason recorded'}")
        return [rule.name, "", "left alone", *[""] * 4], None, None
    timings = interleave(
        {CLONE: x.clone, LOOP: lambda: loop(x, cu), PACKED: lambda: call(x, cu), WHOLE: lambda: whole(x)},
        budget=ctx.budget / 3,
        min_rounds=3 if ctx.quick else 5,
    )
    over_loop, over_whole = timings.quotient(LOOP, PACKED), timings.quotient(PACKED, WHOLE)
    assert over_loop is not None and over_whole is not None  # noqa: PT018  (they share the first rounds)
    line = [
        rule.name,
        seconds_text(timings[LOOP].seconds),
        seconds_text(timings[PACKED].seconds),
        f"{over_loop.ratio:.0f}x",
        seconds_text(timings[WHOLE].seconds),
        f"{over_whole.ratio:.2f}",
        f"{timings[PACKED].ratio:.2f}",
    ]
    return line, over_loop, over_whole
