"""Races among ranks, from the process that starts them: prepare every way, time the right ones, make tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from packpass.measuring.compare_render import bytes_text, seconds_text
from packpass.measuring.measure import Quotient, Timing, Timings
from perf.cp.programs import Setup
from perf.cp.ranks import Ranks, RanksFailed
from perf.cp.timing import timings_of
from perf.cp.work import FLOOR, HAND, HAND_COMPILED, NAIVE, OPS, PACKPASS, STOCK, Found, measure, prepare, warm_up
from perf.registry import Context
from perf.results import CaseResult, Figures, Gain, Table

UNCERTAIN = (STOCK, PACKPASS)
"""Ways that compile naive code: it may take very long. They are tried first, because their ranks are lost then."""
CERTAIN_S, UNCERTAIN_S = 120.0, 90.0


@dataclasses.dataclass
class Entry:
    """One way in one race. ``found`` has an item per rank."""

    name: str
    exact: bool
    found: list[Found] = dataclasses.field(default_factory=list)
    error: str | None = None
    forward: Timing | None = None
    both: Timing | None = None

    @property
    def right(self) -> bool:
        return self.error is None and all(f.equal if self.exact else f.close for f in self.found)

    @property
    def rewritten(self) -> bool:
        return self.error is None and all(f.rewrites for f in self.found)

    @property
    def verdict(self) -> str:
        if self.error is not None:
            return self.error if self.error.startswith("did not end") else "failed"
        if self.name == NAIVE:
            return "reference"
        if not self.right:
            return "WRONG"
        return "equal" if all(f.equal for f in self.found) else "close"

    def most(self, field: str) -> Any:
        """The largest of a field of :class:`Found` over the ranks; None where there is none."""
        values = [v for f in self.found if (v := getattr(f, field)) is not None]
        return max(values, default=None)


class Race(dict[str, Entry]):
    """Entries by way, and the times of those that are right: of the forward, and of forward and backward."""

    forward = Timings({})
    both = Timings({})


class Races:
    """Races on one set of ranks. A way that did not end is not tried again, nor packpass on what it leaves alone."""

    def __init__(self, ctx: Context, result: CaseResult, ranks: Ranks) -> None:
        self.ctx, self.result, self.ranks = ctx, result, ranks
        self._given_up: dict[tuple[str, str], str] = {}
        self._left_alone: set[str] = set()
        self._notes: set[str] = set()
        ranks.call(warm_up, timeout_s=CERTAIN_S)

    def run(self, setup: Setup, ways: Sequence[str], *, exact: bool = True, budget: float = 1.0) -> Race:
        """Check ``ways`` against naive eager, and time those that are right.

        ``budget`` is in seconds for the timed rounds of the forward, and again of forward and backward; a way that does
        not fit in it five times is timed once. Where packpass leaves the program as it is, its ops are raced instead.
        """
        self.ctx.progress(title_of(setup))
        if setup.program in self._left_alone:
            ways = [OPS if way == PACKPASS else way for way in ways]
        tried_first = sorted(ways, key=lambda way: way not in UNCERTAIN)
        race = Race({way: self._prepare(setup, way, exact) for way in tried_first})
        if PACKPASS in race and not race[PACKPASS].rewritten:
            if race[PACKPASS].error is None:
                self._left_alone.add(setup.program)
            race[OPS] = self._prepare(setup, OPS, exact)
        race = Race({way: race[way] for way in (NAIVE, STOCK, HAND, HAND_COMPILED, OPS, PACKPASS) if way in race})
        if not race[NAIVE].right:
            raise RuntimeError(f"{title_of(setup)}: the reference failed: {race[NAIVE].error}")
        timed = [way for way, entry in race.items() if entry.right]
        rounds, budget = (2, budget / 5) if self.ctx.quick else (5, budget)
        samples = [s for s in self.ranks.call(measure, setup, timed, budget, rounds, timeout_s=CERTAIN_S) if s]
        race.forward = timings_of([s[0] for s in samples])
        if backward := [s[1] for s in samples if s[1] is not None]:
            race.both = timings_of(backward)
        race[FLOOR] = Entry(FLOOR, exact)
        for way, entry in race.items():
            entry.forward, entry.both = race.forward.get(way), race.both.get(way)
        self._record(setup, race)
        return race

    def leaves_alone(self, program: str) -> bool:
        """Whether packpass did not rewrite the naive form of a program that was raced."""
        return program in self._left_alone or (program, PACKPASS) in self._given_up

    def _prepare(self, setup: Setup, way: str, exact: bool) -> Entry:
        tried = (setup.program, way)
        if tried in self._given_up:
            return Entry(way, exact, error=self._given_up[tried])
        limit = UNCERTAIN_S if way in UNCERTAIN else CERTAIN_S
        try:
            found = [f for f in self.ranks.call(prepare, setup, way, timeout_s=limit) if f is not None]
        except RanksFailed as fault:
            self._given_up[tried] = f"did not end in {limit:.0f} s" if fault.timed_out else str(fault)
            self.ranks.call(warm_up, timeout_s=CERTAIN_S)
            return Entry(way, exact, error=self._given_up[tried])
        return Entry(way, exact, found, next((f.error for f in found if f.error), None))

    def _record(self, setup: Setup, race: Race) -> None:
        title = title_of(setup)
        for way, entry in race.items():
            if entry.error is not None:
                self._note(f"{title}: {way}: {entry.error.strip().splitlines()[-1][:300]}")
            elif not entry.right:
                self.result.wrong.append(f"{title}: {way} differs by up to {entry.most('largest')}")
            if way == PACKPASS and entry.error is None and not entry.rewritten:
                self._note(f"packpass left the naive {setup.program} alone: {'; '.join(_reasons(entry))}")
        self.result.data[title] = {way: dataclasses.asdict(entry) for way, entry in race.items()}

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self.result.notes.append(text)


def _reasons(entry: Entry) -> list[str]:
    reasons = dict.fromkeys(r for f in entry.found for r in (*f.refusals, *f.graph_breaks))
    return [reason.strip().splitlines()[0][:200] for reason in reasons][:3] or ["no reason recorded"]


def title_of(setup: Setup) -> str:
    return f"{setup.program}, cp={setup.cp}, {setup.dtype}, N={setup.documents}"


def oversubscribed(cp: int) -> str:
    """A remark where the ranks outnumber the cores."""
    import os

    cores = os.cpu_count() or 1
    return f"{cp} ranks on {cores} cores" + (": oversubscribed" if cp > cores else "")


# === Tables =====================================================================================================


def overview(title: str, races: dict[str, Race]) -> Table:
    """Ways by setups: forward / forward and backward, as ratios to the floor."""
    ways = dict.fromkeys(way for race in races.values() for way in race)
    rows = []
    for way in (FLOOR, *(w for w in ways if w != FLOOR)):
        rows.append([way, *(_ratios(race.get(way)) for race in races.values())])
    return Table(title, ["of the floor: forward / forward + backward", *races], rows)


def _ratios(entry: Entry | None) -> str:
    if entry is None:
        return ""
    timings = [t for t in (entry.forward, entry.both) if t is not None]
    if not timings:
        return entry.verdict
    return " / ".join(seconds_text(t.seconds) if entry.name == FLOOR else f"{t.ratio:.2f}" for t in timings)


DETAILS = ["way", "result", "forward", "forward + backward", "of the floor", "over naive", "collectives", "peak memory"]
DETAILS += ["first call", "graphs"]


def details(title: str, race: Race, *, floor: bool = True) -> Table:
    """One race with everything that was counted; collectives and memory are those of one step of one rank."""
    rows = []
    for way in (*((FLOOR,) if floor else ()), *(w for w in race if w != FLOOR)):
        entry = race[way]
        gain, over = speed_up(race, way), entry.both or entry.forward
        compiled = entry.most("graphs") is not None
        rows.append(
            [
                way,
                "floor" if way == FLOOR else entry.verdict,
                _time(entry.forward),
                _time(entry.both),
                f"{over.ratio:.2f}" if floor and over else "",
                f"{gain:.1f}x" if gain is not None and way not in (NAIVE, FLOOR) else "",
                str(entry.most("collectives")) if entry.found else "",
                bytes_text(entry.most("peak_bytes")) if entry.found else "",
                seconds_text(entry.most("first_call")) if compiled else "",
                str(entry.most("graphs")) if compiled else "",
            ]
        )
    return Table(title, DETAILS, rows)


def _time(timing: Timing | None) -> str:
    if timing is None:
        return ""
    return seconds_text(timing.seconds) + (f" ±{timing.spread:.0%}" if timing.rounds > 1 else ", once")


def quotient(race: Race, way: str, over: str = FLOOR, *, both: bool = True) -> Quotient | None:
    """Time of a way over that of another; None where one was not timed."""
    return (race.both if both else race.forward).quotient(way, over)


def ratio(race: Race, way: str, over: str = FLOOR, *, both: bool = True) -> float | None:
    """The same without its spread."""
    found = quotient(race, way, over, both=both)
    return found.ratio if found else None


def gain_of(race: Race, workload: str, detail: str, not_run: str) -> Gain:
    """The race as a line of the headline; ``not_run`` says why stock torch.compile was not timed, where it was not."""

    def figures(way: str) -> Figures:
        entry = race.get(way)
        if entry is None or entry.error is not None:
            return Figures(note=not_run if entry is None else entry.verdict)
        over = quotient(race, way, NAIVE) or quotient(race, way, NAIVE, both=False)
        return Figures(
            over.ratio if over else None,
            over.spread if over else 0.0,
            entry.most("graphs"),
            entry.most("collectives"),
            entry.most("peak_bytes"),
            entry.most("largest"),
            "" if entry.right else "other results than eager",
        )

    return Gain(workload, detail, figures(NAIVE), figures(STOCK), figures(PACKPASS))


def rewritten(race: Race) -> Entry | None:
    """Packpass's entry, if it is there and packpass rewrote the naive program."""
    entry = race.get(PACKPASS)
    return entry if entry and entry.rewritten else None


def speed_up(race: Race, way: str) -> float | None:
    """How many times as fast as naive eager, forward and backward where there is a backward."""
    slow = ratio(race, way, NAIVE)
    if slow is None:
        slow = ratio(race, way, NAIVE, both=False)
    return 1 / slow if slow else None
