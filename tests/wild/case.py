"""What a case is: a public package's own callable, its batches, and what has to become of it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import Any


class Verdict(str, enum.Enum):
    """What became of a case over all its batches."""

    WHOLE = "rewritten"
    """Every loop over documents (or shift) was rewritten, and no graph break is left."""
    PART = "in part"
    """Something was rewritten; something was refused, or a graph break is left."""
    REFUSED = "refused"
    """Nothing was rewritten, and every refusal says why."""
    UNTOUCHED = "untouched"
    """Nothing was found: right for code without loops over documents."""


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Program:
    """``call`` is the package's own function or module. Each of ``batches`` makes ``(args, kwargs)`` afresh, always
    the same numbers. Gradients of the arguments that require one, and of a module's parameters, are compared too."""

    call: Callable[..., Any]
    batches: Sequence[Callable[[], Arguments]]
    tolerance: float = 1e-4
    backward: bool = True


@dataclasses.dataclass(frozen=True)
class Case:
    """``build`` imports the package and makes the program; it runs in the process of its group.

    ``verdict`` and ``codes`` (of every refusal over all batches) are asserted; ``graphs`` and ``breaks`` are the most
    that may be seen over all batches. ``loops`` says whether there are loops over documents at all; ``why`` says in
    words what is refused, or what there is to see.
    """

    name: str
    package: str
    build: Callable[[], Program]
    verdict: Verdict
    graphs: int
    breaks: int
    codes: frozenset[str]
    loops: bool
    why: str
    group: str

    def __str__(self) -> str:
        return self.name


CASES: dict[str, Case] = {}


def case(
    package: str,
    verdict: Verdict = Verdict.WHOLE,
    *,
    graphs: int = 2,
    breaks: int = 0,
    codes: Sequence[str] = (),
    loops: bool = True,
    why: str = "",
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Register a case; its group is the file it stands in, which runs in one process."""
    if codes and not why:
        raise TypeError("a case with refusals needs a reason in words")

    def add(build: Callable[[], Program]) -> Callable[[], Program]:
        name, group = build.__name__, build.__module__.rpartition(".")[2].removeprefix("cases_")
        if name in CASES:
            raise ValueError(f"two cases are called {name}")
        CASES[name] = Case(name, package, build, verdict, graphs, breaks, frozenset(codes), loops, why, group)
        return build

    return add
