"""One process per world size with a fake process group: nothing is sent, everything else is as on that many ranks.

``python -m perf.cp.scale WORLD_SIZE WAY DOCUMENTS CPU_SECONDS`` prints one JSON line.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

TOKENS = 256
"""Per rank."""
FEATURES = 14_336
SECTIONS = [2048, 2048, 4096, 4096, 1024, 1024]
EAGER, UNROLLED, PACKPASS, OPS = "naive eager", "naive, unrolled by torch.compile", "packpass", "packpass ops, compiled"


@dataclasses.dataclass(frozen=True)
class Counted:
    """Of one rank and one step, forward and backward; ``sent_bytes`` leave the rank; CPU seconds of the first step."""

    world_size: int
    way: str
    collectives: int = 0
    sent_bytes: int = 0
    first_step_s: float = 0.0
    graphs: int = 0
    rewritten: bool = False
    why_not: str = ""


def _sent_eagerly(step: Callable[[], Any]) -> list[int]:
    """Bytes of each all-to-all that eager code starts: a profile of naive code would have millions of events."""
    import torch.distributed as dist

    sizes: list[int] = []
    original = dist.all_to_all_single

    def counting(output: Any, given: Any, *arguments: Any, **keywords: Any) -> Any:
        sizes.append(given.nbytes)
        return original(output, given, *arguments, **keywords)

    dist.all_to_all_single = counting  # type: ignore[assignment]
    try:
        step()
    finally:
        dist.all_to_all_single = original
    return sizes


def _sent_compiled(step: Callable[[], Any]) -> list[int]:
    """Bytes of each all-to-all that a compiled float32 step executes."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    return [4 * math.prod(e.input_shapes[1]) for e in profiler.events() or () if e.name == "c10d::alltoall_base_"]


def count(world_size: int, way: str, documents: int) -> Counted:
    """Run one step of cp_to_hp as one of ``world_size`` ranks; its process group stays: for a process of its own."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from packpass import ops
    from packpass._compat import dynamo_counters, empty_compile_caches
    from packpass.decisions.records import collecting
    from packpass.engine.backend import Backend
    from packpass.reports.report import Report
    from perf.cp import naive

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=world_size)
    group = dist.group.WORLD
    total = TOKENS * world_size
    unit = 2 * world_size
    lengths = [total // documents // unit * unit] * (documents - 1)
    cu = torch.tensor([0, *lengths, total - sum(lengths)]).cumsum(0).to(torch.int32)
    x = torch.randn(TOKENS, FEATURES, requires_grad=True)
    form = ops.cp_to_hp if way == OPS else naive.cp_to_hp

    def program(x: torch.Tensor, cu_seqlens: Any) -> torch.Tensor:
        out: torch.Tensor = form(x, cu_seqlens, group, SECTIONS)
        return out

    call: Any = program
    if way == UNROLLED:
        call = torch.compile(program, fullgraph=True)
    elif way != EAGER:
        call = torch.compile(program, backend=Backend())
    # Dynamo unrolls a loop over Python numbers; over a tensor's it would run it eagerly.
    boundaries: Any = cu.tolist() if way == UNROLLED else cu

    def step() -> None:
        torch.autograd.grad(call(x, boundaries).sum(), x)

    report, stats = Report(), dynamo_counters("stats")
    with empty_compile_caches(), collecting(report):
        started = sum(os.times()[:4])  # of this process and the compilers that it starts
        step()
        took = sum(os.times()[:4]) - started
    rewritten = way == OPS or bool(report.rewrites)
    sizes: list[int] = []
    if way == EAGER:
        sizes = _sent_eagerly(step)
    elif rewritten or way == UNROLLED:
        sizes = _sent_compiled(step)
    reasons = [f"[{item.code}] {item.reason}" for item in report.refusals]
    # What host memory exchanges leaves out what stays on the rank.
    leaving = sum(sizes) if rewritten else sum(sizes) // world_size * (world_size - 1)
    return Counted(
        world_size, way, len(sizes), leaving, took, stats["unique_graphs"],
        rewritten, "; ".join(reasons)[:300],
    )  # fmt: skip


def main() -> None:
    world_size, way, documents, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # Not a core file for every way that does not end.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    print(json.dumps(dataclasses.asdict(count(world_size, way, documents))), flush=True)


if __name__ == "__main__":
    main()
