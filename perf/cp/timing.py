"""Timing on several ranks at once: every rank must decide alike how often to run what, or they wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from packpass.measuring.measure import Timings

Samples = dict[str, list[float]]
"""Seconds per call by way, one entry per round."""


def interleave_ranks(
    ways: Mapping[str, Callable[[], Any]],
    group: Any,
    *,
    budget: float,
    min_rounds: int = 5,
    max_rounds: int = 40,
    min_sample: float = 2e-3,
) -> Samples:
    """This rank's samples of each way in interleaved rounds, in about ``budget`` seconds for all of them.

    What is decided follows from the slowest rank, after every round anew: a machine that is busy with other things ends
    up with fewer rounds, at the least two. Ways so slow that they alone would eat up the budget are run once only.
    """
    started = time.perf_counter()
    samples: Samples = {name: [_sample(way, group, 1)] for name, way in ways.items()}
    seconds = dict(zip(ways, _slowest([values[0] for values in samples.values()], group), strict=True))
    repeats = {name: max(1, min(50, round(min_sample / max(s, 1e-6)))) for name, s in seconds.items()}
    quick = [name for name, s in seconds.items() if s * min_rounds <= budget]
    for name in quick:
        samples[name].clear()
    for done in range(max_rounds if quick else 0):
        (elapsed,) = _slowest([time.perf_counter() - started], group)
        if (elapsed > budget and done >= min_rounds) or (elapsed > 3 * budget and done >= 2):
            break
        shift = done % len(quick)  # neighbours influence each other (caches): rotate who follows whom
        for name in quick[shift:] + quick[:shift]:
            samples[name].append(_sample(ways[name], group, repeats[name]))
    return samples


def _slowest(seconds: Sequence[float], group: Any) -> list[float]:
    """The most of all ranks, entry by entry."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
    values: list[float] = most.tolist()
    return values


def _sample(way: Callable[[], Any], group: Any, repeats: int) -> float:
    dist.barrier(group)
    started = time.perf_counter()
    for _ in range(repeats):
        way()
    return (time.perf_counter() - started) / repeats


def timings_of(by_rank: Sequence[Samples]) -> Timings:
    """One timing per way; a round is over when its slowest rank is. The first way is the reference of the ratios."""
    return Timings(
        {
            name: dict(enumerate(max(rank) for rank in zip(*(samples[name] for samples in by_rank), strict=True)))
            for name in by_rank[0]
        }
    )
