"""What only a GPU can show: the rolls against its copy bandwidth, CUDA graphs, exchanges through NCCL."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import seconds_text
from packpass.measuring.measure import interleave
from packpass.measuring.variants import first_line
from perf.cp import naive
from perf.programs import boundaries, mtp_by_hand, mtp_loop, roll_rows_by_hand, roll_rows_loop
from perf.race import HAND, LOOP, PACKPASS, Way, code_targets, race_table, run_race, target_on
from perf.registry import Context, case
from perf.results import CaseResult, Table, Target

GRAPHS = "packpass, CUDA graphs"


@case("gpu", "copy bandwidth, CUDA graphs, and exchanges of one rank through NCCL", devices=("cuda",))
def run(ctx: Context, result: CaseResult) -> None:
    for part in (_bandwidth, _cuda_graphs, _one_rank):
        try:  # one of them may not work on this machine
            part(ctx, result)
        except Exception as error:
            result.wrong.append(f"{part.__name__.strip('_')}: {first_line(error)}")


def _bandwidth(ctx: Context, result: CaseResult) -> None:
    """Hidden states that are larger than every cache."""
    tokens, width = (512, 64) if ctx.quick else (65_536, 4_096)
    title = f"bfloat16 [{tokens}, {width}], forward"
    ctx.progress(title)
    x = torch.randn(tokens, width, device=ctx.device, dtype=torch.bfloat16)
    cu = boundaries(16, tokens, ctx.device)
    ways = [Way(LOOP, roll_rows_loop), Way(PACKPASS, roll_rows_loop, PACKPASS), Way(HAND, roll_rows_by_hand)]
    race = run_race(ctx, ways, (x, cu), x.clone)
    result.tables.append(race_table(title, race, result))
    share = race.timings.quotient("clone", PACKPASS)
    result.targets += [
        target_on(f"{title}: share of the copy bandwidth", share, 0.9, kind="at least"),
        *code_targets(title, race, 1, ctx.device, beside=2),
    ]


def _cuda_graphs(ctx: Context, result: CaseResult) -> None:
    """``mode="reduce-overhead"``: small kernels, whose launches are most of the time."""
    total = 4_096
    title = f"3 depths of 4 fields [1, {total}]: CUDA graphs"
    ctx.progress(title)
    ids = torch.arange(1, total + 1, device=ctx.device)[None]
    arguments = (ids, ids * 2, ids * 3, torch.ones(1, total, device=ctx.device), boundaries(16, total, ctx.device))
    expected = mtp_loop(*arguments)
    ways: dict[str, Callable[[], Any]] = {HAND: functools.partial(mtp_by_hand, *arguments)}
    for name, mode in ((PACKPASS, "default"), (GRAPHS, "reduce-overhead")):
        call = compile_afresh(mtp_loop, Backend(), {"mode": mode, "fullgraph": True})
        for _ in range(3):  # warms up, records, replays
            found = call(*arguments)
        pairs = zip(expected[0] + expected[1], found[0] + found[1], strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            result.wrong.append(f"{title}: {name} differs from the eager loop")
            continue
        ways[name] = functools.partial(call, *arguments)
    timings = interleave(ways, budget=ctx.budget)
    rows = [[name, seconds_text(timing.seconds), f"{timing.ratio:.2f}"] for name, timing in timings.items()]
    result.tables.append(Table(title, ["way", "time", f"of {HAND}"], rows))
    result.targets.append(target_on(f"{title}, over {HAND}", timings.quotient(GRAPHS, HAND), 1.0))


def _one_rank(ctx: Context, result: CaseResult) -> None:
    """A group of one rank: every collective runs, nothing leaves the GPU."""
    ctx.progress("exchange of one rank")
    backend = "nccl" if ctx.device == "cuda" else "gloo"
    made = not dist.is_initialized()
    if made:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        group: Any = dist.group.WORLD
        cu = boundaries(8, 512, ctx.device) * 2
        x = torch.randn(1_024, 96, device=ctx.device, requires_grad=True)

        def program(x: Tensor, cu_seqlens: Tensor) -> Tensor:
            return naive.cp_to_hp(x, cu_seqlens, group, [64, 32])

        call = compile_afresh(program, Backend(), {})
        wanted, found = program(x, cu), call(x, cu)
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (wanted, found)]
        right = torch.equal(wanted, found) and torch.equal(*gradients)
        result.targets.append(Target(f"{backend}, one rank: equal to eager (1 = yes)", float(right), 1, "at least"))
        if not right:
            result.wrong.append(f"{backend}, one rank: differs from eager")
    finally:
        if made:
            dist.destroy_process_group()
