"""What a family of random programs is, and the four that there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.loops import fuzz as loops
from tests.loops.generate import random_program

from .found import UNDEFINED, Found

POISON = 6
"""Percentage of features that may forbid a rewrite."""


def loop(seed: int) -> Found:
    """Loops over documents, held against eager bit for bit on four sizes."""
    case = random_program(seed, POISON)
    if not loops.defined_in_eager(case, seed):
        return UNDEFINED
    with collected() as report:
        difference = loops.check(case, seed, f"fuzz-{seed}")
    if not difference:
        return Found("right", bool(report.rewrites))
    small = loops.reduce(case, seed)
    return Found("wrong", True, f"arguments {small.args}\n{small.source}\n{loops.check(small, seed, 'reduced')}")


def collected() -> Any:
    """A report of everything that is compiled inside."""
    from packpass.decisions.records import collecting
    from packpass.reports.report import Report

    return collecting(Report("fuzz"))


def family(name: str) -> Callable[[int], Found]:
    """The function that judges one seed; nothing of another program is left in Dynamo when it starts."""
    from tests.fuzz import mixtures, padding
    from tests.shifts import at_random

    judges = {"loops": loop, "shifts": at_random.judge, "padding": padding.judge, "mixtures": mixtures.judge}

    def judged(seed: int) -> Found:
        torch._dynamo.reset()
        return judges[name](seed)

    return judged


FAMILIES = ("loops", "shifts", "padding", "mixtures")
