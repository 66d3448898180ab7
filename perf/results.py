"""What a case hands back: tables, targets, plots and notes, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Target:
    """A figure to reach. ``figure`` is None where it could not be measured; ``note`` then says why."""

    name: str
    figure: float | None
    limit: float
    kind: Literal["at most", "at least", "exactly"] = "at most"
    note: str = ""

    @property
    def hit(self) -> bool | None:
        if self.figure is None:
            return None
        if self.kind == "exactly":
            return self.figure == self.limit
        return self.figure <= self.limit if self.kind == "at most" else self.figure >= self.limit

    @property
    def verdict(self) -> str:
        return {True: "hit", False: "MISSED", None: "not measured"}[self.hit]


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
            entry["hit"] = target.hit
        return plain
