"""What a case hands back: gains, tables, targets, plots and notes, as plain data that JSON keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Kind = Literal["at most", "at least", "exactly"]
HIT, NOISE, MISSED, UNMEASURED = "hit", "within noise", "MISSED", "not measured"


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure to reach.

    ``figure`` is None where it could not be measured; ``note`` then says why. ``spread`` is relative to the figure.
    ``reason`` says why the figure lies where it lies, for those who find it beyond the limit.
    """

    name: str
    figure: float | None
    limit: float
    kind: Kind = "at most"
    note: str = ""
    spread: float = 0.0
    reason: str = ""

    @property
    def hit(self) -> bool | None:
        if self.figure is None:
            return None
        if self.kind == "exactly":
            return self.figure == self.limit
        return self.figure <= self.limit if self.kind == "at most" else self.figure >= self.limit

    @property
    def verdict(self) -> str:
        """A figure that lies beyond its limit by less than its own spread is neither hit nor missed."""
        if self.hit is None:
            return UNMEASURED
        if self.hit:
            return HIT
        return NOISE if self._distance <= self.spread * abs(self.figure or 0.0) else MISSED

    @property
    def _distance(self) -> float:
        if self.figure is None or self.kind == "exactly":
            return float("inf")
        return abs(self.figure - self.limit)


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one way costs. ``ratio`` is its time over that of what all ways of a workload are compared with, ``spread``
    relative to it; None is not timed, and ``note`` says why."""

    ratio: float | None = None
    spread: float = 0.0
    graphs: int | None = None
    collectives: int | None = None
    peak_bytes: int | None = None
    error: float | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Gain:
    """One real workload: what people have without packpass, and with it.

    Ratios are times over eager's, whose own is 1. ``error_of`` says what the errors of the three are.
    """

    workload: str
    detail: str
    eager: Figures
    stock: Figures
    packpass: Figures
    error_of: str = "largest difference from eager"
    device: str = "cpu"

    def faster(self, over: Figures) -> float | None:
        """How many times as fast packpass is."""
        return over.ratio / self.packpass.ratio if over.ratio and self.packpass.ratio else None


@dataclasses.dataclass
class Table:
    """A titled table; cells are text as they are to be printed."""

    title: str
    headers: list[str]
    rows: list[list[str]]


@dataclasses.dataclass
class Lines:
    """A line plot: one series of (x, y) per name."""

    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    log_x: bool = True
    log_y: bool = True


@dataclasses.dataclass
class CaseResult:
    """Everything one case found. ``wrong`` lists correctness checks that failed: the report is red then."""

    name: str
    title: str
    gains: list[Gain] = dataclasses.field(default_factory=list)
    tables: list[Table] = dataclasses.field(default_factory=list)
    targets: list[Target] = dataclasses.field(default_factory=list)
    plots: list[Lines] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        for target, entry in zip(self.targets, plain["targets"], strict=True):
            entry["hit"], entry["verdict"] = target.hit, target.verdict
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> CaseResult:
        """What :meth:`to_dict` wrote, perhaps by another version: what is not known is left out."""
        result = cls(**_known(cls, plain))
        result.gains = [
            Gain(**{**_known(Gain, entry), **{way: Figures(**_known(Figures, entry[way])) for way in WAYS}})
            for entry in plain.get("gains", [])
        ]
        result.tables = [Table(**_known(Table, entry)) for entry in plain.get("tables", [])]
        result.targets = [Target(**_known(Target, entry)) for entry in plain.get("targets", [])]
        result.plots = [Lines(**_known(Lines, entry)) for entry in plain.get("plots", [])]
        return result


WAYS = ("eager", "stock", "packpass")


def _known(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in plain.items() if name in names}
