"""What one rank does for a race: compile a way, check it against naive eager, count, time."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from packpass import _compat
from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.engine.explain import new_graph_breaks
from packpass.measuring.measure import Profile, profile
from packpass.measuring.trees import difference, tensors
from packpass.measuring.variants import first_line
from packpass.reports.report import Report
from perf.cp.programs import Inputs, Setup, floor_of, inputs_of, ways_of
from perf.cp.timing import Samples, interleave_ranks

NAIVE, STOCK, PACKPASS = "naive eager", "torch.compile", "packpass"
HAND, HAND_COMPILED, OPS = "hand-fused eager", "hand-fused, compiled", "packpass ops, compiled"
FLOOR = "one all-to-all + one copy"

Call = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Found:
    """What one rank found out about a way. ``equal``: bit for bit that of naive eager, gradients included.

    ``first_call`` is in seconds and includes compiling (the ranks share a compile cache, which starts empty);
    ``graphs`` counts those of all calls of the way so far; ``peak_bytes`` and ``collectives`` (messages too) are of one
    step.
    """

    error: str | None = None
    equal: bool = False
    close: bool = False
    largest: float = 0.0
    first_call: float = 0.0
    graphs: int | None = None
    graph_breaks: tuple[str, ...] = ()
    collectives: int = 0
    peak_bytes: int = 0
    rewrites: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


@functools.cache
def group_of(size: int) -> Any:
    """The first ``size`` ranks as a group. All ranks ask in the same order."""
    return dist.group.WORLD if size == dist.get_world_size() else dist.new_group(list(range(size)))


@functools.cache
def _made(family: Setup, way: str) -> tuple[Call, Report, list[int]]:
    """The callable of a way, for any number of documents; packpass's report; graphs compiled so far."""
    forms = ways_of(family, group_of(family.cp))
    function = {HAND: forms.by_hand, HAND_COMPILED: forms.by_hand, OPS: forms.ops}.get(way, forms.naive)
    if way in (NAIVE, HAND):
        return function, Report(), []
    return compile_afresh(function, Backend() if way in (PACKPASS, OPS) else "inductor", {}), Report(), [0]


def _family(setup: Setup) -> Setup:
    return dataclasses.replace(setup, documents=0)


class _Step:
    """A program on this rank's inputs, forward and (where it has gradients) backward."""

    def __init__(self, setup: Setup, call: Call, inputs: Inputs) -> None:
        self.call, self.inputs = call, inputs
        self.backward = setup.backward and bool(inputs.wanted)
        self._cotangents: list[Tensor] | None = None

    def forward(self) -> Any:
        return self.call(*self.inputs.arguments)

    def __call__(self) -> tuple[Any, tuple[Tensor, ...]]:
        result = self.forward()
        if not self.backward:
            return result, ()
        outputs = [t for _, t in tensors(result) if t.requires_grad]
        if self._cotangents is None:
            generator = torch.Generator().manual_seed(7)
            self._cotangents = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outputs]
        return result, torch.autograd.grad(outputs, self.inputs.wanted, self._cotangents)


@functools.lru_cache(maxsize=1)
def _inputs(setup: Setup) -> Inputs:
    inputs = inputs_of(setup, group_of(setup.cp))
    # Compiled for any number of documents at once; graphs and compile time over several numbers are measured elsewhere.
    torch._dynamo.maybe_mark_dynamic(inputs.arguments[1], 0)
    return inputs


@functools.lru_cache(maxsize=1)
def _reference(setup: Setup) -> tuple[list[Tensor], Profile]:
    """What naive eager gives, and what one step of it does: run once only, it may take seconds."""
    step = _Step(setup, _made(_family(setup), NAIVE)[0], _inputs(setup))
    results: list[Any] = []
    counted = profile(lambda: results.append(step()))
    return _detached(results[0]), counted


def _detached(tree: Any) -> list[Tensor]:
    return [t.detach() for _, t in tensors(tree)]


# === Called on every rank =======================================================================================


def prepare(setup: Setup, way: str) -> Found | None:
    """Make a way ready for this setup (compile it), check it twice and count; None on ranks outside the group."""
    group_of(setup.cp)
    if dist.get_rank() >= setup.cp:
        return None
    try:
        return _prepared(setup, way)
    except Exception as error:
        return Found(error=first_line(error))


def _prepared(setup: Setup, way: str) -> Found:
    expected, counted = _reference(setup)
    if way == NAIVE:
        return Found(equal=True, close=True, collectives=counted.collectives, peak_bytes=counted.peak_bytes)
    call, report, graphs = _made(_family(setup), way)
    step = _Step(setup, call, _inputs(setup))
    stats, breaks = _compat.dynamo_counters("stats"), dict(_compat.dynamo_counters("graph_break"))
    before = stats["unique_graphs"]
    with collecting(report):
        started = time.perf_counter()
        seen = _detached(step())
        first_call = time.perf_counter() - started
        checks = [difference(expected, seen), difference(expected, _detached(step()))]
        counted = profile(step)
    if graphs:
        graphs[0] += stats["unique_graphs"] - before
    return Found(
        equal=all(check.equal for check in checks),
        close=all(check.close for check in checks),
        largest=max(check.largest for check in checks),
        first_call=first_call,
        graphs=graphs[0] if graphs else None,
        graph_breaks=tuple(new_graph_breaks(breaks)),
        collectives=counted.collectives,
        peak_bytes=counted.peak_bytes,
        rewrites=tuple(f"{item.rule}: {item.before} -> {item.after}" for item in report.rewrites),
        refusals=tuple(f"{item.rule} [{item.code}] {item.reason}" for item in report.refusals),
    )


def measure(setup: Setup, ways: Sequence[str], budget: float, min_rounds: int) -> tuple[Samples, Samples | None] | None:
    """Samples of prepared ways and the floor, first: forward; forward and backward."""
    group = group_of(setup.cp)
    if dist.get_rank() >= setup.cp:
        return None
    inputs = _inputs(setup)
    floor = floor_of(setup, inputs, group)
    steps = {way: _Step(setup, _made(_family(setup), way)[0], inputs) for way in ways}
    forward = interleave_ranks(
        {FLOOR: floor, **{way: step.forward for way, step in steps.items()}},
        group,
        budget=budget,
        min_rounds=min_rounds,
    )
    if not (setup.backward and inputs.wanted):
        return forward, None

    def both_ways() -> None:
        floor()
        floor()

    return forward, interleave_ranks({FLOOR: both_ways, **steps}, group, budget=budget, min_rounds=min_rounds)


def first_calls(setup: Setup, way: str, sizes: Sequence[int], then: Sequence[int]) -> tuple[list[float], int] | None:
    """Seconds of the first step in empty caches, compiled afresh for each size; graphs of the last one after ``then``.

    ``sizes`` and ``then`` are numbers of documents.
    """
    group = group_of(setup.cp)
    if dist.get_rank() >= setup.cp:
        return None
    stats = _compat.dynamo_counters("stats")

    def step(call: Call, number: int) -> tuple[float, int]:
        sized = dataclasses.replace(setup, documents=number)
        once = _Step(sized, call, inputs_of(sized, group))
        dist.barrier(group)
        with _compat.empty_compile_caches():
            started, before = time.perf_counter(), stats["unique_graphs"]
            once()
            return time.perf_counter() - started, stats["unique_graphs"] - before

    seconds, graphs = [], 0
    for size in sizes:
        torch._dynamo.reset()
        _made.cache_clear()
        call, *_ = _made(_family(setup), way)
        took, graphs = step(call, size)
        seconds.append(took)
    graphs += sum(step(call, number)[1] for number in then)
    _made.cache_clear()
    return seconds, graphs


@functools.cache
def warm_up() -> None:
    """Load what the first compile loads, and agree on the groups."""
    from packpass.measuring.compare import warm_up as compile_something

    for size in (2, 4):
        if size <= dist.get_world_size():
            group_of(size)
    compile_something("cpu", "inductor")
