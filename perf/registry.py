"""The cases, and what each is given."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
import time
from collections.abc import Callable

from perf.results import CaseResult


@dataclasses.dataclass(frozen=True)
class Context:
    """How to measure: on which device, and whether only to try everything out (``quick``) or to sweep
    further than the report needs (``full``)."""

    device: str = "cpu"
    quick: bool = False
    full: bool = False

    @property
    def budget(self) -> float:
        """Seconds for the timed rounds of one race."""
        return 0.3 if self.quick else 1.0

    def progress(self, text: str) -> None:
        """One line on standard error."""
        print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    title: str
    run: Callable[[Context, CaseResult], None]
    devices: tuple[str, ...] = ("cpu", "cuda")
    on_request: bool = False


_CASES: dict[str, Case] = {}


def case(
    name: str, title: str, devices: tuple[str, ...] = ("cpu", "cuda"), on_request: bool = False
) -> Callable[[Callable[[Context, CaseResult], None]], Callable[..., None]]:
    """Register the decorated function, which fills in a :class:`CaseResult`; ``devices`` are those it can measure.
    ``on_request``: it runs only where it is asked for by its name, as the report has no time for it."""

    def register(run: Callable[[Context, CaseResult], None]) -> Callable[..., None]:
        if name in _CASES:
            raise ValueError(f"two cases are called {name!r}")
        _CASES[name] = Case(name, title, run, devices, on_request)
        return run

    return register


# What people look for first comes first, also because the last may not be run on a slow machine (`--limit`); cases that
# are not listed follow in the order of their names.
ORDER = [
    "roll_tokens",
    "roll_hidden",
    "roll_mtp",
    "compile_time",
    "megatron",
    "real_text",
    "mtp",
    "mtp_training",
    "wild",
    "padding",
    "cp_layer",
    "cp_exchange",
    "cp_roll",
    "isolate",
    "expansion",
    "pack_ops",
    "no_match",
    "segment_rules",
]


def cases() -> dict[str, Case]:
    """All cases by name, in the order of the report."""
    package = importlib.import_module("perf.cases")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"perf.cases.{module.name}")
    rank = {name: index for index, name in enumerate(ORDER)}
    return dict(sorted(_CASES.items(), key=lambda item: (rank.get(item[0], len(ORDER)), item[0])))
