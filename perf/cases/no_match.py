"""A model with nothing to rewrite: what does having packpass in the way cost?"""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import interleave
from packpass.reports.report import Report
from perf.race import PACKPASS, STOCK, target_on
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


@case("no_match", "a transformer block without loops or shifts")
def run(ctx: Context, result: CaseResult) -> None:
    torch.manual_seed(0)
    block = Block().to(ctx.device)
    x = torch.randn(4, 128, 128, device=ctx.device)
    seconds: dict[str, list[float]] = {PACKPASS: [], STOCK: []}
    sources: dict[str, list[str]] = {}
    calls: dict[str, Any] = {}
    if not ctx.quick:
        # The first compile of such a block also imports what Inductor knows of attention: nobody is charged for that.
        ctx.progress("compile once, uncounted")
        with _compat.empty_compile_caches():
            compile_afresh(block, "inductor", {})(x)
    for turn in range(1 if ctx.quick else 4):  # the C++ compiler's time differs by more than what is looked for
        # Alternate who goes first: the second compile of a pair finds warmer file caches.
        for name in (PACKPASS, STOCK) if turn % 2 == 0 else (STOCK, PACKPASS):
            ctx.progress(f"compile with {name}, round {turn + 1}")
            with _compat.empty_compile_caches(), _compat.generated_code() as code:
                calls[name] = compile_afresh(block, Backend() if name == PACKPASS else "inductor", {})
                started = time.perf_counter()
                calls[name](x)
                seconds[name].append(time.perf_counter() - started)
            sources[name] = [_comparable(source) for source in code]
    if not _same(calls[PACKPASS](x), calls[STOCK](x)):
        result.wrong.append("packpass and stock torch.compile give different results")
    identical = bool(sources[STOCK]) and sources[PACKPASS] == sources[STOCK]
    result.targets.append(Target("generated code identical to stock (1 = yes)", float(identical), 1, "at least"))

    arguments = {
        name: (lambda call=call: call(x)) for name, call in ((STOCK, calls[STOCK]), (PACKPASS, calls[PACKPASS]))
    }
    timings = interleave(arguments, budget=3 * ctx.budget, max_rounds=1000)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    # The least of several rounds: everything that disturbs a compile makes it longer.
    compile_ratio = min(seconds[PACKPASS]) / min(seconds[STOCK])
    rows = [
        [name, seconds_text(middle[name]), seconds_text(timings[name].seconds), f"{timings[name].ratio:.3f}"]
        for name in (STOCK, PACKPASS)
    ]
    result.tables.append(Table("one block [4, 128, 128]", ["way", "first call", "time", "of stock"], rows))
    singles = [a / b for a, b in zip(seconds[PACKPASS], seconds[STOCK], strict=True)]
    spread = (max(singles) - min(singles)) / 2 / compile_ratio
    result.targets += [
        target_on("run time over stock", timings.quotient(PACKPASS, STOCK), 1.01),
        Target("first call over stock, least of the rounds", compile_ratio, 1.01, note=_range(singles), spread=spread),
    ]
    result.data |= {"first_call": seconds, "identical_code": identical}
    _scan(ctx, result)


def _same(found: Tensor, wanted: Tensor) -> bool:
    """In every bit; to rounding on a GPU, where Inductor chooses by timing how a sum is cut into blocks."""
    if found.device.type == "cpu":
        return torch.equal(found, wanted)
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


class TimedBackend(Backend):
    """packpass that notes how long it holds each graph: its own time, where the inner backend does nothing."""

    def __init__(self) -> None:
        self.graphs: list[tuple[int, float]] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        nodes, started = len(gm.graph.nodes), time.perf_counter()
        try:
            return super().__call__(gm, example_inputs, **kwargs)
        finally:
            self.graphs.append((nodes, time.perf_counter() - started))


def _scan(ctx: Context, result: CaseResult) -> None:
    """Time that packpass takes to find nothing, per 1,000 nodes of the captured graph."""
    layers = 8 if ctx.quick else 32
    ctx.progress(f"scan of {layers} blocks")
    model = nn.Sequential(*(Block() for _ in range(layers))).to(ctx.device)
    x = torch.randn(1, 16, 128, device=ctx.device)
    per_thousand, nodes = [], 0
    for _ in range(5):
        backend, report = TimedBackend(), Report()
        with collecting(report):
            compile_afresh(model, backend, {"options": {"packpass.inner_backend": "eager"}})(x)
        nodes = sum(count for count, _ in backend.graphs)
        per_thousand.append(sum(seconds for _, seconds in backend.graphs) / nodes * 1e6)
        if report.rewrites:
            result.wrong.append(f"rewrote something in a model without a match: {report.rewrites}")
    figure = statistics.median(per_thousand)
    spread = (max(per_thousand) - min(per_thousand)) / 2 / figure
    result.targets.append(Target(f"scan in ms per 1,000 nodes ({nodes} nodes)", figure, 2.0, spread=spread))
    result.data["scan_ms_per_1000_nodes"] = per_thousand


def _comparable(source: str) -> str:
    """Generated code without the running number of the compile and where its kernels lie."""
    return re.sub(r"^# (AOT ID|kernel path): .*$", "", source, flags=re.MULTILINE)


def _range(ratios: list[float]) -> str:
    return f"single rounds: {min(ratios):.2f} to {max(ratios):.2f}"
