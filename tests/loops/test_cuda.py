"""Loop programs with tensors on a GPU: equal to eager there, and rewritten as on a CPU."""

from __future__ import annotations

import pytest
import torch

from .compiling import compiled, fresh, hold_against_eager
from .harness import Program, build, outcome
from .programs_leave import PROGRAMS as LEAVE
from .programs_rewrite import PROGRAMS as REWRITE
from .test_rewrite import THROUGH_INDUCTOR

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

pytestmark = pytest.mark.cuda

EVERY = [*REWRITE.values(), *LEAVE.values()]


def _hold(prog: Program, inner: str) -> None:
    """Sums are in another order there, so that values need only be close."""
    if prog.unfit:
        pytest.skip("a check that fails on a GPU ends the work of the process there")
    fresh()
    shapes = prog.inputs()[: 12 if inner == "eager" else 4]
    try:
        eager = prog.instance("cuda")
        for shape in shapes:
            outcome(eager, build(prog, shape, device="cuda"), prog.observe)
    except Exception as error:
        pytest.skip(f"written for a CPU: {error}")
    hold_against_eager(prog, compiled(prog, inner, "cuda"), shapes, exact=False, device="cuda")


@pytest.mark.parametrize("prog", EVERY, ids=str)
def test_equals_eager(prog: Program) -> None:
    _hold(prog, "eager")


@pytest.mark.parametrize("name", THROUGH_INDUCTOR)
def test_through_inductor(name: str) -> None:
    _hold(REWRITE[name], "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("prog", [prog for prog in REWRITE.values() if prog.demand], ids=str)
def test_every_program_through_inductor(prog: Program) -> None:
    _hold(prog, "inductor")
