"""Slices by numbers that do not fit are what eager makes of them: in the whole-row form, or document by document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.engine import unfit
from tests.threads import threads

from . import fitting_programs
from .fitting_programs import INPUTS, LEFT, REWRITTEN, Program

EAGER = {"packpass.inner_backend": "eager"}
OF_ONE_WIDTH = (fitting_programs.padded_by_number,)
"""Padded to one width by numbers: one document that is shorter than its number says has another width in eager, and
fails the check here, as two that eager could not stack would."""
MADE_OF_INDUCTOR = ("first_of_each", "last_of_each", "written", "counted", "windows", "falling_joined", "masked_rows")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _outcome(fn: Callable[..., Any], x: Tensor, numbers: Tensor) -> Any:
    """Results and the gradient; None if the call raises."""
    x = x.clone().requires_grad_()
    try:
        out = fn(x, numbers.clone())
    except Exception:
        return None
    results = [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]
    weighted = [(t * torch.arange(1.0, t.numel() + 1).reshape(t.shape)).sum() for t in results]
    if weighted:
        torch.stack(weighted).sum().backward()
    return out, x.grad


def _hold(program: Program, inputs: str, options: dict[str, Any], least: int = 1) -> None:
    run = torch.compile(program, backend=packpass.backend, options=options)
    for number, (x, numbers) in enumerate(INPUTS[inputs]):
        if numbers.shape[0] < least:
            continue
        want, got = _outcome(program, x, numbers), _outcome(run, x, numbers)
        assert (want is None) == (got is None), f"input {number}: eager {want}, compiled {got}"
        if want is not None:
            torch.testing.assert_close(got, want, msg=lambda text, n=number: f"input {n}: {text}")


@pytest.mark.parametrize("program", REWRITTEN, ids=lambda program: program.__name__)
def test_rewritten(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rewritten graph alone. (Torch unrolls a loop over one entry, whose numbers are checked.)"""
    monkeypatch.setattr(unfit, "_OURS", "nothing that a message contains")
    report = packpass.explain(program, options=EAGER)(*INPUTS[REWRITTEN[program]][0])
    assert [r.rule for r in report.rewrites][:1] == ["vectorize_segments"]
    assert not report.refusals
    _hold(program, REWRITTEN[program], EAGER, least=2)


@pytest.mark.parametrize("program", [*LEFT, *REWRITTEN], ids=lambda program: program.__name__)
def test_as_eager(program: Program) -> None:
    _hold(program, {**LEFT, **REWRITTEN}[program], EAGER, least=2 if program in OF_ONE_WIDTH else 1)


@pytest.mark.parametrize("name", MADE_OF_INDUCTOR)
def test_through_inductor(name: str) -> None:
    programs = {program.__name__: inputs for program, inputs in (*REWRITTEN.items(), *LEFT.items())}
    (program,) = (p for p in (*REWRITTEN, *LEFT) if p.__name__ == name)
    _hold(program, programs[name], {})


def test_the_check_stays_where_eager_raises_too() -> None:
    """Its message names the numbers."""

    def f(x: Tensor, cu: Tensor) -> Tensor:
        out = x.clone()
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
            out[s:e] = torch.arange(e - s)
        return out

    run = torch.compile(f, backend=packpass.backend, options=EAGER)
    run(torch.zeros(12), torch.tensor([0, 5, 12]))
    with pytest.raises(ValueError, match=r"cu_seqlens\[2\] = 14 is beyond the 12 slots"):
        run(torch.zeros(12), torch.tensor([0, 5, 14]))


def test_a_call_that_changes_its_argument_is_not_run_again() -> None:
    """What comes before the check may have been done by then."""

    def f(x: Tensor, cu: Tensor) -> Tensor:
        x.add_(1)
        return torch.cat([x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)])

    run = torch.compile(f, backend=packpass.backend, options=EAGER)
    run(torch.zeros(12), torch.tensor([0, 5, 12]))
    with pytest.raises(ValueError, match="must not decrease"):
        run(torch.zeros(12), torch.tensor([0, 7, 3, 12]))


def test_a_fix_is_not_undone() -> None:
    """The graph as it was written would give another result: its shift ignores documents."""

    def f(ids: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        labels = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
        bounds = cu_seqlens.tolist()
        return labels, torch.cat([ids[0, s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:], strict=True)])

    run = torch.compile(f, backend=packpass.backend, options=EAGER)
    ids = torch.arange(12).unsqueeze(0)
    labels, _ = run(ids, torch.tensor([0, 5, 12]))
    assert labels[0, 4] == -100
    with pytest.raises(ValueError, match="must not decrease"):
        run(ids, torch.tensor([0, 7, 3, 12]))


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_assertions_beside_a_rewritten_loop_raise(number: int) -> None:
    """In generated code for several threads they would be thrown out of an OpenMP region, which ends the process."""

    def f(x: Tensor, cu: Tensor) -> Tensor:
        torch._assert_async((cu[-1] == x.shape[0]).all(), "boundaries of another row")
        out = x.clone()
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
            out[s:e] = torch.roll(x[s:e], -1, 0)
        return (out * x.flip(0)).sum()

    x, cu = torch.randn(20_000, 8), torch.tensor([0, 4_000, 20_000])
    with threads(number):
        run = torch.compile(f, backend=packpass.backend, fullgraph=True)
        torch.testing.assert_close(run(x, cu), f(x, cu), rtol=1e-3, atol=1e-2)
        with pytest.raises(RuntimeError, match="boundaries of another row"):
            run(x, torch.tensor([0, 4_000, 19_000]))
