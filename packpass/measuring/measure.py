"""Measuring two or more ways to do the same thing, side by side, so that only ratios matter.

Times are taken in interleaved rounds (a, b, c, a, b, c, ...): what slows the machine down slows all of them down.
Figures are medians over rounds; spread is half the interquartile range over the median.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from packpass import _compat

HOST_SYNCS = frozenset(
    {
        "aten::_local_scalar_dense",  # item(), int(t), bool(t), if t:
        "aten::nonzero",  # also x[mask]
        "aten::masked_select",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::equal",
    }
)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call: one median per way, and per-round ratios to the first way given to :func:`interleave`."""

    seconds: float
    spread: float
    ratio: float
    rounds: int


@dataclasses.dataclass(frozen=True)
class Quotient:
    """Time of one way over that of another: the median over the rounds that both took part in; ``spread`` is half the
    interquartile range over the median."""

    ratio: float
    spread: float


class Timings(dict[str, Timing]):
    """A timing per way, the reference first, made of samples: by way, seconds per call by round.

    What two ways have to do with each other is taken round by round: what slowed down both is in neither's spread.
    """

    def __init__(self, samples: Mapping[str, Mapping[int, float]]) -> None:
        reference = next(iter(samples.values()), {})
        super().__init__({name: _timing(values, reference) for name, values in samples.items()})
        self._samples = samples

    def quotient(self, name: str, over: str) -> Quotient | None:
        """Time of ``name`` over that of ``over``; None where one is missing or they share no round."""
        one, other = self._samples.get(name, {}), self._samples.get(over, {})
        values = [one[done] / other[done] for done in one if done in other]
        return Quotient(*_middle(values)) if values else None


@dataclasses.dataclass(frozen=True)
class Profile:
    """One run under the profiler.

    ``host_syncs`` counts ops that make the host wait for a device value (``aten::_local_scalar_dense`` and relatives),
    ``collectives`` collective calls that were issued, ``peak_bytes`` the most memory allocated above the start,
    according to ``memory_source`` ("profiler" on CPU, "CUDA allocator" on a GPU).
    """

    host_syncs: int
    collectives: int
    peak_bytes: int
    memory_source: str


@contextlib.contextmanager
def same_randomness(seed: int = 0) -> Iterator[None]:
    """Seed Python's and torch's generators inside the block; put their states back after it."""
    python = random.getstate()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)


def synchronize() -> None:
    """Wait for the GPU, if there is one that was used."""
    if _gpu_in_use():
        torch.cuda.synchronize()


def _gpu_in_use() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def interleave(
    ways: Mapping[str, Callable[[], Any]],
    *,
    prepare: Mapping[str, Callable[[], Any]] | None = None,
    min_rounds: int = 7,
    max_rounds: int = 200,
    min_sample: float | None = None,
    budget: float = 5.0,
) -> Timings:
    """Time each way in interleaved rounds; ``budget`` is the wall time in seconds for all of them together.

    A sample repeats a call until it lasts ``min_sample`` seconds (by default 2 ms, and 20 ms with a GPU: its end is a
    wait for the device, of tens of microseconds, and its first call finds the device idle). Ways with an entry in
    ``prepare`` are called with its result, made anew outside the timed part for every single call (for calls that
    change their arguments), and are never repeated inside a sample. A way so slow that it alone would eat up the budget
    takes part in the first two rounds only. The first way is the reference of the ratios.
    """
    prepare = prepare or {}
    if min_sample is None:
        min_sample = 2e-2 if _gpu_in_use() else 2e-3
    once = {name: _once(way, prepare.get(name)) for name, way in ways.items()}
    repeats = {
        name: 1 if name in prepare else max(1, min(1000, round(min_sample / max(seconds, 1e-7))))
        for name, seconds in once.items()
    }
    slow = {name for name, seconds in once.items() if seconds * min_rounds > budget}
    samples: dict[str, dict[int, float]] = {name: {} for name in ways}
    started = time.perf_counter()
    for done in range(max_rounds):
        if done >= min_rounds and time.perf_counter() - started > budget:
            break
        # Neighbours influence each other (caches): rotate who follows whom.
        names = list(ways)
        names = names[done % len(names) :] + names[: done % len(names)]
        for name in names:
            if name not in slow or done < 2:
                samples[name][done] = _sample(ways[name], prepare.get(name), repeats[name])
        if slow == set(ways) and done == 1:
            break
    return Timings(samples)


def _once(way: Callable[..., Any], prepare: Callable[[], Any] | None) -> float:
    """Warm up, and say how long one call takes."""
    first = _sample(way, prepare, 1)
    # Whatever takes this long needs no second look to be called slow.
    return first if first > 0.5 else min(_sample(way, prepare, 1) for _ in range(2))


def _sample(way: Callable[..., Any], prepare: Callable[[], Any] | None, repeats: int) -> float:
    arguments = () if prepare is None else (prepare(),)
    synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        way(*arguments)
    synchronize()
    return (time.perf_counter() - started) / repeats


def _timing(samples: Mapping[int, float], reference: Mapping[int, float]) -> Timing:
    middle, spread = _middle(list(samples.values()))
    ratio = statistics.median(samples[done] / reference[done] for done in samples if done in reference)
    return Timing(middle, spread, ratio, len(samples))


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and half the interquartile range over it."""
    middle = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (middle, middle, middle)
    return middle, (high - low) / 2 / middle if middle else 0.0


def profile(call: Callable[[], Any], *, eager: bool = False) -> Profile:
    """Run ``call`` once under the profiler and count what it did.

    ``eager=True`` also counts ``tolist()``, which reads memory without an op the profiler could see; compiled code must
    run without the mode that does this, or it would be compiled again under it.
    """
    cuda = _gpu_in_use()
    start = 0
    if cuda:
        synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
    reads = _ListReads()
    with reads if eager else contextlib.nullcontext():
        events = _compat.profile_cpu(call)
    peak, source = _peak(events), "profiler"
    if cuda:
        synchronize()
        peak, source = torch.cuda.max_memory_allocated() - start, "CUDA allocator"
    syncs = sum(event.name in HOST_SYNCS for event in events) + reads.count
    return Profile(syncs, sum(is_collective(event.name) for event in events), peak, source)


class _ListReads(TorchFunctionMode):
    """Counts calls of ``Tensor.tolist`` and ``Tensor.numpy``."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            self.count += 1
        return func(*args, **(kwargs or {}))


def is_collective(event: str) -> bool:
    """Whether a profiler event is a collective or point-to-point call (functional collectives end in these ops too)."""
    return event.startswith("c10d::") and not event.startswith(("c10d::barrier", "c10d::monitored_barrier"))


def _peak(events: Sequence[_compat.ProfilerEvent]) -> int:
    current = peak = 0
    for event in events:
        current += event.allocated_bytes
        peak = max(peak, current)
    return peak
