"""A short, repeatable run of the loop fuzzer; the long one is ``python -m tests.loops.fuzz --minutes 5``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from .fuzz import as_program, check, defined_in_eager, sizes
from .generate import Generated, generate, random_program
from .harness import build, outcome

T = TypeVar("T")


class _Drawn:
    """Decisions drawn by hypothesis, which shrinks them towards the first option and towards False."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, options: Sequence[T]) -> T:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 - percent


@st.composite
def programs(draw: st.DrawFn, poison: int) -> Generated:
    """A generated loop program."""
    return generate(_Drawn(draw), poison)


_SETTINGS = hypothesis.settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def _run(case: Generated, order: int) -> None:
    hypothesis.assume(defined_in_eager(case, order))
    difference = check(case, order)
    assert not difference, f"arguments {case.args}, poisons {case.poisons}\n{case.source}\n{difference}"


@_SETTINGS
@hypothesis.given(case=programs(poison=0), order=st.integers(0, 3))
def test_plain_programs(case: Generated, order: int) -> None:
    _run(case, order)


@_SETTINGS
@hypothesis.given(case=programs(poison=12), order=st.integers(0, 3))
def test_poisoned_programs(case: Generated, order: int) -> None:
    _run(case, order)


@pytest.mark.parametrize("poison", [0, 12])
def test_generated_programs_are_worth_running(poison: int) -> None:
    """Most programs run in eager at all sizes, and hardly any is the identity."""
    cases = [random_program(seed, poison) for seed in range(80)]
    defined = [(c, k) for k, c in enumerate(cases) if defined_in_eager(c, k)]
    assert len(defined) >= 50
    assert len({c.source for c in cases}) >= 75
    changed = 0
    for case, order in defined:
        prog = as_program(case, "worth")
        shape = sizes(case, order)[0]
        got = outcome(prog.target, build(prog, shape))
        inputs = [t for _, t in got.inputs if isinstance(t, torch.Tensor)]
        outputs = [t for _, t in got.outputs if isinstance(t, torch.Tensor)]
        changed += any(all(t.shape != i.shape or not t.equal(i) for i in inputs) for t in outputs)
    assert changed >= 0.9 * len(defined)
    assert poison == 0 or sum(bool(c.poisons) for c, _ in defined) >= 20
