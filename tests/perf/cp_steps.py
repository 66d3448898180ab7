"""What the ranks run for test_cp_ranks.py: results of the measured programs, for the parent to check."""

from __future__ import annotations

import dataclasses

import torch
import torch.distributed as dist
from torch import Tensor

from packpass.measuring.trees import tensors
from perf.cp.programs import Setup, inputs_of, ways_of
from perf.cp.timing import Samples, interleave_ranks


@dataclasses.dataclass(frozen=True)
class Step:
    """Of one rank: what went in, what came out, and the gradient of the first input (cotangents are the results)."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    gradient: Tensor | None


def step(setup: Setup, form: str) -> Step:
    group = dist.group.WORLD
    inputs = inputs_of(setup, group)
    outputs = [t for _, t in tensors(getattr(ways_of(setup, group), form)(*inputs.arguments))]
    gradient = None
    if inputs.wanted:
        (gradient,) = torch.autograd.grad(outputs, inputs.wanted[:1], [t.detach() for t in outputs])
    ins = [t.detach() for _, t in tensors(inputs.arguments)]
    return Step(ins, [t.detach() for t in outputs], gradient)


def unequal(seconds: float) -> Samples:
    """Samples where one rank is slower than the other: both must do the same number of rounds."""
    pause = seconds * (1 + dist.get_rank())

    def way() -> None:
        torch.rand(1).item()
        dist.barrier()
        if pause:
            import time

            time.sleep(pause)

    return interleave_ranks({"one": way, "other": dist.barrier}, dist.group.WORLD, budget=0.2, min_rounds=3)
