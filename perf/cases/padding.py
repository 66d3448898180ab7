"""A padded batch through an unmodified encoder and decoder: stock torch.compile computes its padding, packpass with
``eliminate_padding`` does not."""

from __future__ import annotations

import dataclasses
import functools
import random
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.engine.unpadded import FULL
from packpass.measuring.compare_render import bytes_text, seconds_text
from packpass.measuring.measure import interleave, profile
from packpass.reports.report import Report
from perf.data import documents, paragraphs
from perf.models.padded import Batch, Config, Decoder, Encoder, batch_of, lengths_for
from perf.race import PACKPASS, STOCK
from perf.registry import Context, case
from perf.results import CaseResult, Figures, Gain, Lines, Table, Target

EAGER = "eager"
HEADLINE = "encoder"
"""The model that stands for padded models in the headline."""
MODELS: dict[str, type[Encoder]] = {"encoder": Encoder, "decoder": Decoder}
SHARES = (0.0, 0.3, 0.6, 0.9)
TEXT = "paragraphs as they are"
BUDGET = 8 * 2**30  # bytes of activations that a batch may take
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
STEP_AT_60, STEP_AT_0, MEMORY_AT_60, GRAPHS = 0.5, 1.03, 0.55, 2

Call = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of what is measured: ``rows`` per batch; seconds for the timed rounds of one model."""

    config: Config
    rows: int
    budget: float

    @property
    def length(self) -> int:
        return self.config.longest


def sizes_of(ctx: Context) -> Sizes:
    # A step of 16 rows takes seconds on two cores, and its ratios are those of two rows.
    if ctx.quick:
        return Sizes(Config(hidden=64, heads=4, longest=128), 4, ctx.budget)
    if ctx.device != "cpu":
        return Sizes(Config(), 16, 10.0)
    return Sizes(Config(), 16, 60.0) if ctx.full else Sizes(Config(), 2, 5.0)


@dataclasses.dataclass
class Found:
    """What one batch costs in packpass: error, seconds, and both over stock torch.compile."""

    batch: Batch
    error: float
    seconds: float = 0.0
    over_stock: float = 0.0
    spread: float = 0.0
    peak: int = 0


@case("padding", "padded batches, unmodified models: forward + backward of padded rows against real tokens only")
def run(ctx: Context, result: CaseResult) -> None:
    sizes = sizes_of(ctx)
    # One cache for all: what packpass leaves as it is is then compiled once, as stock torch.compile's.
    with _compat.empty_compile_caches():
        for name, model in MODELS.items():
            if name != HEADLINE and ctx.device == "cpu" and not (ctx.full or ctx.quick):
                result.notes.append(f"{name}: measured with --full only: it is the {HEADLINE} with a causal mask")
                continue
            torch.manual_seed(0)
            _measure(ctx, result, name, model(sizes.config), sizes)
    result.notes.append(
        "stock torch.compile takes as long whatever the mask says: it is timed at 60 %. Its tokens per second count "
        f"real tokens. Batches that are more than {FULL:.0%} full stay padded."
    )


def batches_of(sizes: Sizes, *, next_token: bool) -> dict[str, Batch]:
    """Real text: cut to lengths that leave a given share empty, and paragraphs of any length."""
    text = b"".join(documents(2 * sizes.rows * sizes.length))
    batches = {}
    for share in SHARES:
        lengths, at = lengths_for(share, sizes.rows, sizes.length), 0
        rows = [text[(at := at + n) - n : at] for n in lengths]
        batches[f"{share:.0%}"] = batch_of(rows, sizes.length, next_token=next_token)
    lines = random.Random(0).sample(list(paragraphs(50_000)), sizes.rows)
    batches[TEXT] = batch_of(lines, sizes.length, next_token=next_token)
    return batches


def _measure(ctx: Context, result: CaseResult, name: str, model: nn.Module, sizes: Sizes) -> None:
    dtype = torch.float32 if ctx.device == "cpu" else torch.bfloat16  # the flash kernel takes halves
    model = model.to(ctx.device, dtype)
    batches = {
        key: batch.to(ctx.device) for key, batch in batches_of(sizes, next_token=isinstance(model, Decoder)).items()
    }
    torch._dynamo.reset()
    report, first = Report(), next(key for key in batches if key.startswith("60"))
    stock = compile_afresh(model, "inductor", {})
    ours = compile_afresh(model, Backend(), {"options": {"packpass.eliminate_padding": True}})
    compiles = _compat.dynamo_counters("aot_autograd")
    ctx.progress(f"{name}: stock torch.compile")
    stock_error = error_of(model, stock, batches[first])
    ctx.progress(f"{name}: packpass")
    before, started = compiles["total"], time.perf_counter()
    with collecting(report):
        found = {key: Found(batch, error_of(model, ours, batch)) for key, batch in batches.items()}
    graphs, checked = compiles["total"] - before, time.perf_counter() - started
    ctx.progress(f"{name}: compiled and checked in {checked:.0f} s; timing")

    parameters = list(model.parameters())
    ways: dict[str, Callable[[], object]] = {STOCK: functools.partial(step, stock, batches[first], parameters)}
    if name == HEADLINE:
        ways[EAGER] = functools.partial(step, model, batches[first], parameters)
    for key, batch in batches.items():
        ways[key] = functools.partial(step, ours, batch, parameters)
    timings = interleave(ways, budget=sizes.budget, min_rounds=3 if ctx.quick else 4)
    peak = profile(ways[STOCK]).peak_bytes
    if name == HEADLINE:
        alike = {
            EAGER: (EAGER, None, 0.0),
            STOCK: (STOCK, None, stock_error),
            PACKPASS: (first, graphs, found[first].error),
        }
        figures = {}
        for way, (key, made, error) in alike.items():
            over = timings.quotient(key, EAGER)
            ratio, spread = (over.ratio, over.spread) if over else (None, 0.0)
            figures[way] = Figures(ratio, spread, made, peak_bytes=profile(ways[key]).peak_bytes, error=error)
        detail = f"{name}, {sizes.rows} rows of {sizes.length} slots of which 60 % are padding, forward + backward"
        of = "largest relative error at real tokens and in gradients"
        result.gains = [Gain("padded model", detail, figures[EAGER], figures[STOCK], figures[PACKPASS], of, ctx.device)]
    for key, entry in found.items():
        over = timings.quotient(key, STOCK)
        assert over is not None  # they share every round
        entry.seconds, entry.over_stock, entry.spread = timings[key].seconds, over.ratio, over.spread
        entry.peak = profile(ways[key]).peak_bytes
    _tables(result, name, sizes, found, (timings[STOCK].seconds, peak, stock_error))
    _plots(result, name, {key: entry for key, entry in found.items() if key != TEXT}, peak)
    _targets(result, name, found, peak, TOLERANCE[dtype], graphs, report)


def step(call: Call, batch: Batch, parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
    """Forward and backward; gradients are not added to any."""
    loss, _ = call(*batch.arguments())
    return torch.autograd.grad(loss, parameters)


def error_of(model: nn.Module, call: Call, batch: Batch) -> float:
    """Largest difference from the model in eager: of the loss, the logits of real tokens and all gradients, each
    divided by its largest value where that is above 1, gradients always."""
    parameters = list(model.parameters())
    seen = []
    for way in (model, call):
        loss, logits = way(*batch.arguments())
        gradients = torch.autograd.grad(loss, parameters)
        seen.append(([loss.detach(), logits.detach()[batch.mask]], gradients))
    (wanted, wanted_gradients), (values, gradients) = seen
    errors = [_difference(b, a) / max(1.0, float(a.abs().max())) for a, b in zip(wanted, values, strict=True)]
    for a, b in zip(wanted_gradients, gradients, strict=True):
        errors.append(_difference(b, a) / max(float(a.abs().max()), torch.finfo(a.dtype).tiny))
    return max(errors)


def _difference(one: Tensor, other: Tensor) -> float:
    largest = float((one.float() - other.float()).abs().max())
    return float("inf") if largest != largest else largest


# === What is shown ===========================================================================================


def _tables(
    result: CaseResult, name: str, sizes: Sizes, found: dict[str, Found], stock: tuple[float, int, float]
) -> None:
    seconds, peak, stock_error = stock
    title = f"{name}, {sizes.rows} x {sizes.length} slots, hidden {sizes.config.hidden}, {sizes.config.layers} layers"
    rows = []
    for key, entry in found.items():
        label = f"{key} ({entry.batch.padding:.0%})" if key == TEXT else key
        rows.append([label, str(entry.batch.tokens), f"{entry.error:.1e}"])
    headers = ["padding", "tokens", f"{PACKPASS}: largest error at real tokens and in gradients"]
    result.tables.append(Table(f"{title}: correctness ({STOCK} differs by {stock_error:.1e})", headers, rows))
    rows = []
    for key, entry in found.items():
        rows.append(
            [
                f"{key} ({entry.batch.padding:.0%})" if key == TEXT else key,
                seconds_text(seconds),
                seconds_text(entry.seconds),
                f"{entry.over_stock:.2f}x",
                f"{entry.batch.tokens / seconds:.0f}",
                f"{entry.batch.tokens / entry.seconds:.0f}",
                bytes_text(peak),
                bytes_text(entry.peak),
                f"{entry.peak / peak:.2f}x",
                f"{fitting(peak, sizes.rows)} -> {fitting(entry.peak, sizes.rows)}",
            ]
        )
    headers = [
        "padding",
        "step, stock",
        "packpass",
        "of stock",
        "tokens/s, stock",
        "packpass",
        "peak, stock",
        "packpass",
        "of stock",
        f"rows in {bytes_text(BUDGET)}",
    ]
    result.tables.append(Table(f"{title}: step", headers, rows))
    note = (
        f"rows in {bytes_text(BUDGET)}: the budget over the measured peak of a step per row; nothing that large is run"
    )
    if note not in result.notes:
        result.notes.append(note)
    result.data[title] = {
        "stock": {"seconds": seconds, "peak_bytes": peak, "error": stock_error},
        **{
            key: {
                "tokens": entry.batch.tokens,
                "padding": entry.batch.padding,
                "error": entry.error,
                "seconds": entry.seconds,
                "over_stock": entry.over_stock,
                "peak_bytes": entry.peak,
            }
            for key, entry in found.items()
        },
    }


def fitting(peak: int, rows: int) -> int:
    """The largest batch whose activations fit `BUDGET`, if ``rows`` take ``peak`` bytes."""
    return BUDGET * rows // max(peak, 1)


def _plots(result: CaseResult, name: str, found: dict[str, Found], peak: int) -> None:
    ideal = [(entry.batch.padding, 1 - entry.batch.padding) for entry in found.values()]
    for what, values in (
        ("step time", [entry.over_stock for entry in found.values()]),
        ("peak memory", [entry.peak / peak for entry in found.values()]),
    ):
        points = [(entry.batch.padding, value) for entry, value in zip(found.values(), values, strict=True)]
        result.plots.append(
            Lines(
                f"{name}: {what}",
                "share of padding",
                "of stock torch.compile",
                {
                    STOCK: [(at, 1.0) for at, _ in ideal],
                    PACKPASS: points,
                    "real tokens": ideal,
                },
                log_x=False,
                log_y=False,
            )
        )


def _targets(
    result: CaseResult, name: str, found: dict[str, Found], peak: int, tolerance: float, graphs: int, report: Report
) -> None:
    packed = [item for item in report.rewrites if item.rule == "eliminate_padding"]
    refused = "; ".join(f"[{item.code}] {item.reason}" for item in report.refusals if item.rule == "eliminate_padding")
    worst = max(found, key=lambda key: found[key].error)
    at = {round(entry.batch.padding, 1): entry for key, entry in found.items() if key != TEXT}
    result.targets += [
        Target(f"{name}: models rewritten", len(packed), 1, "exactly", refused),
        Target(f"{name}: largest error at real tokens and in gradients", found[worst].error, tolerance, note=worst),
        Target(f"{name}: step at 60 % padding, of stock", at[0.6].over_stock, STEP_AT_60, spread=at[0.6].spread),
        Target(f"{name}: step at 0 % padding, of stock", at[0.0].over_stock, STEP_AT_0, spread=at[0.0].spread),
        Target(f"{name}: peak memory at 60 % padding, of stock", at[0.6].peak / peak, MEMORY_AT_60),
        Target(f"{name}: graphs for all batches", graphs, GRAPHS),
    ]
    if found[worst].error > tolerance:
        result.wrong.append(f"{name}, padding {worst}: differs from eager by {found[worst].error:.1e}")
