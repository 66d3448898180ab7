"""Code as it is found: whole vision towers, and helpers of RL frameworks, against eager and stock torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from perf.models.wild import (
    Tower,
    images,
    mean_of_sample_means,
    packed_rope,
    packed_rope_by_hand,
    padded_rows,
    padded_rows_by_hand,
)
from perf.programs import boundaries
from perf.race import LOOP, PACKPASS, STOCK, Race, Way, race_table, run_race
from perf.registry import Context, case
from perf.results import CaseResult, Target

DOCUMENTS, TOTAL = 256, 16_384
HEADLINE_TOWER = "Qwen2-VL"
BY_HAND = "whole row, by hand"
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::mkldnn_convolution", "aten::convolution_backward")
NOT_RUN = "not run: it compiles a graph per piece between its breaks, for minutes (--full)"
SMALL, LARGE = (4, 8), (4, 16)
"""Sides of images, in patches."""


@case("wild", "vision towers of transformers, RL helpers and packed RoPE, unmodified")
def run(ctx: Context, result: CaseResult) -> None:
    _helpers(ctx, result)
    try:
        _towers(ctx, result)
    except ImportError as error:
        result.notes.append(f"towers are not run: {error}; pip install transformers")


def _towers(ctx: Context, result: CaseResult) -> None:
    """``--full``: both towers, 1, 8 and 64 images, forward alone as well, wide layers, stock torch. That compiles a
    graph per piece between its breaks, and the 256 turns of a helper's loop one by one."""
    names = ("Qwen2-VL", "Qwen2.5-VL") if ctx.full else ("Qwen2-VL",)
    counts = (1, 8, 64) if ctx.full else (64,)
    kinds = [(64, SMALL), (64, LARGE), (512, LARGE)] if ctx.full else [(64, SMALL)]
    for name in names:
        for width, sides in kinds:
            tower = Tower(name, width, 2 if ctx.full else 1).to(ctx.device)
            for count in counts if width == 64 else counts[-1:]:
                for backward in (False, True) if ctx.full else (True,):
                    _tower(ctx, result, name, tower, count, sides, width, backward)


def _tower(
    ctx: Context,
    result: CaseResult,
    name: str,
    tower: Tower,
    count: int,
    sides: tuple[int, int],
    width: int,
    backward: bool,
) -> None:
    pixels, grid = (x.to(ctx.device) for x in images(count, sides))
    what = "forward and backward" if backward else "forward"
    title = f"{name} tower, width {width}, {count} images of {sides[0]} to {sides[1]} patches a side, {what}"
    race = _race(ctx, result, title, [Way(LOOP, tower)], (pixels, grid), backward, tower)
    if count == 64 and backward and width == 64 and sides == SMALL:
        _targets(result, title, race, 3, _same_for_all(ctx, race, lambda: tower(pixels, grid).backward()))
        tower.zero_grad()
        if name == HEADLINE_TOWER:
            result.gains.append(race.gain("vision tower", title, ctx.device, eager=LOOP, not_run=NOT_RUN))


def _same_for_all(ctx: Context, race: Race, step: Callable[[], Any]) -> str:
    """How much of packpass's step nothing can be gained of: the products of matrices, which every way computes."""
    with torch.profiler.profile() as seen:  # of every device that is here
        step()
    ours = race.rows[PACKPASS].timing
    timed = "self_device_time_total" if ctx.device == "cuda" else "self_cpu_time_total"
    spent = sum(getattr(event, timed) for event in seen.key_averages() if event.key in PRODUCTS) / 1e6
    if ours is None or not spent:
        return ""
    share = spent / ours.seconds
    return f"matrix products and the convolution of patches, as in eager, take {share:.0%} of packpass's step"


def _helpers(ctx: Context, result: CaseResult) -> None:
    cu = boundaries(DOCUMENTS, TOTAL, ctx.device)
    generator = torch.Generator().manual_seed(0)
    log_probs, advantages = (torch.randn(TOTAL, generator=generator).to(ctx.device) for _ in range(2))
    mask = (torch.rand(TOTAL, generator=generator) > 0.3).float().to(ctx.device)
    x = torch.randn(TOTAL, 4, 32, generator=generator).to(ctx.device)
    angles = torch.randn(TOTAL, 1, 32, generator=generator).to(ctx.device)
    width = int(cu.diff().max())
    rows = log_probs.detach().requires_grad_(), cu, width
    cases: list[tuple[str, list[Callable[..., Any]], tuple[Any, ...]]] = [
        ("mean of sample means", [mean_of_sample_means], (log_probs.requires_grad_(), advantages, mask, cu)),
        ("padded rows", [padded_rows, padded_rows_by_hand], rows),
        ("packed RoPE", [packed_rope, packed_rope_by_hand], (x.requires_grad_(), cu, angles)),
    ]
    for name, functions, args in cases:
        title = f"{name}, T={TOTAL}, N={DOCUMENTS}, forward and backward"
        ways = [Way(way, function) for way, function in zip((LOOP, BY_HAND), functions, strict=False)]
        race = _race(ctx, result, title, ways, args, True)
        by_hand = race.ratio(LOOP, BY_HAND)
        _targets(result, title, race, 10, f"by hand, without a loop, it is {by_hand:.1f}x as fast" if by_hand else "")
        if functions == [mean_of_sample_means]:
            result.gains.append(race.gain("RL loss", title, ctx.device, eager=LOOP, not_run=NOT_RUN))


def _race(
    ctx: Context,
    result: CaseResult,
    title: str,
    eager: Sequence[Way],
    args: tuple[Any, ...],
    backward: bool,
    module: torch.nn.Module | None = None,
) -> Race:
    """The first of the eager ways is what packpass and stock torch compile."""
    ctx.progress(title)
    call = eager[0].model
    ways = [*eager, Way(PACKPASS, call, PACKPASS)]
    if ctx.full:
        ways.append(Way(STOCK, call, "inductor"))
    race = run_race(ctx, ways, args, args[0].detach().clone, backward=backward, module=module)
    result.tables.append(race_table(title, race, result))
    return race


def _targets(result: CaseResult, title: str, race: Race, least: float, reason: str) -> None:
    graphs = race.rows[PACKPASS].graphs
    result.targets.append(Target(f"{title}: graphs", graphs, 1, "exactly"))
    for name in (LOOP, STOCK):
        if name in race.rows:
            title_of = f"{title}: times faster than {name}"
            result.targets.append(race.target(title_of, least, way=name, over=PACKPASS, kind="at least", reason=reason))
