"""A race: several ways to compute the same thing, checked against each other, then timed side by side.

Built on the measuring core of ``packpass.compare``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from packpass.decisions.records import collecting
from packpass.engine.backend import Backend
from packpass.engine.compile import compile_afresh
from packpass.measuring.compare_render import kernels_text, seconds_text
from packpass.measuring.measure import Quotient, Timing, Timings, interleave
from packpass.measuring.variants import CodeCount, Row, Workload, examine, examine_compiled
from packpass.reports.report import Report
from perf.registry import Context
from perf.results import CaseResult, Figures, Gain, Kind, Table, Target

LOOP, STOCK, PACKPASS, FLOOR = "eager loop", "torch.compile", "packpass", "clone"
HAND = "roll + index_fill_"
CALL = "clone, compiled"
OP = "packed_roll, eager"
SHORT_CALL = "a call of some microseconds: guards and the check of the boundaries are most of it"

SHORT = 50e-6
"""A copy that takes less than this: calling compiled code takes as long, whatever the code does."""

HEADERS = ["way", "result", "time", "of the clones", "over the loop", "first call", "graphs", "kernels", "host syncs"]


@dataclasses.dataclass
class Way:
    """One competitor. ``model`` is called with the race's arguments; ``compiler`` says who compiles it first."""

    name: str
    model: Callable[..., Any]
    compiler: str | None = None
    fullgraph: bool = False

    def make(self) -> Callable[..., Any]:
        return compile_afresh(
            self.model, Backend() if self.compiler == PACKPASS else self.compiler, {"fullgraph": self.fullgraph}
        )


@dataclasses.dataclass
class Race:
    """The result: rows of all ways, timings of the floors (the first is the reference) and the ways that are right,
    packpass's report."""

    rows: dict[str, Row]
    floors: dict[str, Timing]
    report: Report
    timings: Timings

    def ratio(self, name: str, over: str = FLOOR) -> float | None:
        """Time of ``name`` over that of another way (or of the floor); None where either is missing or wrong."""
        found = self.timings.quotient(name, over)
        return found.ratio if found else None

    def target(
        self,
        name: str,
        limit: float,
        *,
        over: str = FLOOR,
        way: str = PACKPASS,
        kind: Kind = "at most",
        reason: str = "",
    ) -> Target:
        """A limit on the time of ``way`` over that of another."""
        reason = reason or (self._slow_calls() if PACKPASS in (way, over) and CALL not in (way, over) else "")
        return target_on(name, self.timings.quotient(way, over), limit, kind=kind, reason=reason)

    def _slow_calls(self) -> str:
        """What a call of stock's compiled code costs on this machine, where that is more than what it does.

        Threads that wait are not the cause: a copy of int64 took 8 times as long as ``clone()`` with one thread,
        on a CPU with AVX2, where stock loads integers by way of a buffer on the stack.
        """
        over = self.ratio(CALL) if CALL in self.floors else None
        if over is None or over < 1.5:
            return ""
        return f"stock's compiled clone, a mere copy, takes {over:.1f} times as long as clone() on this machine"

    def hand_target(self, title: str) -> Target:
        """packpass against what is written by hand; where that takes no longer than a call of compiled code, against a
        compiled clone, which does nothing but the call and a copy."""
        if CALL in self.floors and self.floors[FLOOR].seconds < SHORT:
            # Where the compiled copy alone takes long, the call is not what the time goes to.
            reason = SHORT_CALL if self.floors[CALL].seconds < SHORT else ""
            return self.target(f"{title}: over a compiled clone", 1.5, over=CALL, reason=reason)
        return self.target(f"{title}: over roll + index_fill_ (5 % noise allowed)", 1.05, over=HAND)

    def gain(self, workload: str, detail: str, device: str, *, eager: str, not_run: str = "not run") -> Gain:
        """The race as a line of the headline; ``not_run`` says why stock torch.compile is missing, where it is."""

        def figures(name: str) -> Figures:
            row = self.rows.get(name)
            return figures_of(row, self.timings.quotient(name, eager)) if row else Figures(note=not_run)

        return Gain(workload, detail, figures(eager), figures(STOCK), figures(PACKPASS), device=device)

    def code(self, name: str = PACKPASS) -> CodeCount | None:
        """What was generated for a way; None where nothing was compiled."""
        row = self.rows[name]
        return row.code if row.graphs else None


def target_on(
    name: str, found: Quotient | None, limit: float, *, kind: Kind = "at most", note: str = "", reason: str = ""
) -> Target:
    """A limit on a quotient of times, with its spread."""
    ratio, spread = (found.ratio, found.spread) if found else (None, 0.0)
    return Target(name, ratio, limit, kind, note, spread, reason)


def figures_of(row: Row, over_eager: Quotient | None) -> Figures:
    """A row as figures of the headline."""
    note = row.error or ""
    if not note and row.difference is not None and not row.difference.close:
        note = "other results than eager"
    return Figures(
        ratio=over_eager.ratio if over_eager else None,
        spread=over_eager.spread if over_eager else 0.0,
        graphs=row.graphs,
        collectives=row.profile.collectives if row.profile else None,
        peak_bytes=row.profile.peak_bytes if row.profile else None,
        error=row.difference.largest if row.difference else None,
        note=note,
    )


def run_race(
    ctx: Context,
    ways: Sequence[Way],
    args: tuple[Any, ...],
    floor: Callable[[], Any],
    *,
    compiled_floor: Callable[[], Any] | None = None,
    backward: bool = False,
    budget: float | None = None,
    rounds: int = 7,
    module: torch.nn.Module | None = None,
) -> Race:
    """Check every way against the first one, then time the right ones beside ``floor``.

    ``rounds``: at least so many, however long one takes.
    ``compiled_floor`` shows what a call of compiled code costs before it does anything of its own; ``module`` is the
    one whose parameters get gradients.
    """
    # Otherwise Dynamo takes the second size of a case for a changing one and compiles for every size: another program.
    # What changing sizes cost is the question of the cases compile_time and real_text.
    torch._dynamo.reset()
    report = Report()
    workload = Workload(module, args, {}, backward)
    first = ways[0]
    rows = {first.name: examine(first.name, workload, first.model)}
    if not rows[first.name].ok:
        raise RuntimeError(f"the reference {first.name!r} failed: {rows[first.name].error}")
    expected = workload.observe(first.model)
    calls: dict[str, Callable[..., Any] | None] = {first.name: first.model}
    for way in ways[1:]:
        if way.compiler is None:
            calls[way.name] = way.model
            rows[way.name] = examine(way.name, workload, way.model, expected)
            continue
        with collecting(report if way.compiler == PACKPASS else Report()):
            rows[way.name], calls[way.name] = examine_compiled(way.name, workload, way.make, expected, rows[first.name])
    arguments = workload.arguments()
    timed: dict[str, Callable[[], Any]] = {FLOOR: floor}
    if compiled_floor is not None:
        timed[CALL] = compiled_floor
    floors = list(timed)
    prepare: dict[str, Callable[[], Any]] = {}
    changes = workload.changes_arguments(expected)
    for name, call in calls.items():
        if call is None or not rows[name].ok:
            continue
        if changes:
            timed[name], prepare[name] = functools.partial(workload.step, call), workload.arguments
        else:
            timed[name] = functools.partial(workload.step, call, arguments)
    timings = interleave(timed, prepare=prepare, budget=budget or ctx.budget, min_rounds=3 if ctx.quick else rounds)
    for name, timing in timings.items():
        if name not in floors:
            rows[name].timing = timing
    return Race(rows, {name: timings[name] for name in floors}, report, timings)


def race_table(title: str, race: Race, result: CaseResult) -> Table:
    """The race as a table; wrong or failed ways are also listed in ``result``."""
    lines = []
    loop = next(iter(race.rows))
    for name, timing in race.floors.items():
        lines.append([name, "floor", _time(timing), f"{timing.ratio:.2f}", *[""] * (len(HEADERS) - 4)])
    for name, row in race.rows.items():
        over_floor, over_loop = race.ratio(name), race.ratio(loop, name)
        lines.append(
            [
                name,
                _verdict(row, name == loop),
                _time(row.timing) if row.timing else "",
                f"{over_floor:.2f}" if over_floor else "",
                f"{over_loop:.1f}x" if over_loop and name != loop else "",
                seconds_text(row.first_call) if row.graphs is not None else "",
                "" if row.graphs is None else str(row.graphs),
                kernels_text(row),
                str(row.profile.host_syncs) if row.profile else "",
            ]
        )
        if row.error is not None:
            result.notes.append(f"{title}: {name} failed: {row.error}")
        if row.graphs == 0 and row.ok:
            result.notes.append(f"{title}: {name} compiled nothing and ran eagerly")
        if name != loop and not row.ok and (row.error is None or name.startswith(PACKPASS)):
            result.wrong.append(f"{title}: {name}: {row.error or (row.difference and row.difference.why)}")
    result.data[title] = {
        "rows": {name: row.to_dict() for name, row in race.rows.items()},
        "floors": {name: dataclasses.asdict(timing) for name, timing in race.floors.items()},
        "ratios": {name: race.ratio(name) for name in race.rows},
        "report": race.report.to_dict(),
    }
    return Table(title, HEADERS, lines)


def code_targets(title: str, race: Race, kernels: int, device: str = "cpu", beside: int = 1) -> list[Target]:
    """Targets on what was generated for packpass: one graph, so many kernels, no host sync, no other op.

    The check of the boundaries may be an op of its own: it reads ``cu_seqlens`` only. On a GPU it is a kernel of its
    own, and so is the search for the document of every slot where that serves many features: ``beside`` in all.
    """
    if device != "cpu":
        kernels += beside
    code = race.code()
    note = "" if code else "nothing was compiled"
    others = [name for name in code.externs if "check_cu_seqlens" not in name] if code else []
    return [
        Target(f"{title}: graphs", race.rows[PACKPASS].graphs, 1, "exactly"),
        Target(f"{title}: kernels", code.kernels if code else None, kernels, "exactly", note),
        Target(
            f"{title}: other ops called", len(others) if code else None, 0, note=note or ", ".join(sorted(set(others)))
        ),
        Target(f"{title}: host syncs in the generated code", code.host_syncs if code else None, 0, note=note),
    ]


def _verdict(row: Row, reference: bool) -> str:
    if row.error is not None:
        return "failed"
    if reference:
        return "reference"
    if row.difference is None:
        return ""
    return "equal" if row.difference.equal else "close" if row.difference.close else "WRONG"


def _time(timing: Timing) -> str:
    return f"{seconds_text(timing.seconds)} ±{timing.spread:.0%}"
