"""The runner of programs: what it calls right, wrong and raised, and that no program can stop it."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
import torch

from tests.loops import compiling, programs_leave, programs_rewrite
from tests.matrix import corpus, programs
from tests.matrix.verdicts import Verdict, read
from tests.shifts import harness as shifts


def test_every_program_is_a_job() -> None:
    jobs = corpus.jobs()
    assert len(jobs) == sum(
        map(len, (programs_rewrite.PROGRAMS, programs_leave.PROGRAMS, shifts.REWRITE, shifts.LEAVE))
    )


def test_verdicts_of_programs() -> None:
    jobs = corpus.jobs()
    rewritten, left = jobs["loops/roll_keywords"](), jobs["loops/running_sum"]()
    assert (rewritten.outcome, rewritten.demanded, rewritten.rewrites, rewritten.graphs) == ("right", True, 1, 1)
    assert (left.outcome, left.rewrites) == ("right", 0)
    assert left.refusals
    fixed, alike = jobs["shifts/by_a_helper"](), jobs["shifts/look_ahead"]()
    assert (fixed.outcome, fixed.rewrites, fixed.refusals) == ("right", 3, ())
    assert (alike.outcome, alike.rewrites, alike.refusals) == ("right", 0, ("no-fill",))


LOOP = programs_rewrite.PROGRAMS["roll_keywords"]


def compiled_to(result: Any) -> Any:
    """A stand-in for compilation that calls the program and hands on another result, or raises."""

    def compiled(target: Any) -> Any:
        def fn(*args: Any, **kwargs: Any) -> Any:
            if isinstance(result, Exception):
                raise result
            return result((target.instance() if hasattr(target, "instance") else target)(*args, **kwargs))

        return fn

    return compiled


@pytest.mark.parametrize(
    ("result", "outcome"),
    [(lambda x: x, "right"), (lambda x: x + 1, "wrong"), (RuntimeError("no such op"), "raised")],
)
def test_wrong_and_raised(monkeypatch: pytest.MonkeyPatch, result: Any, outcome: str) -> None:
    monkeypatch.setattr(compiling, "compiled", compiled_to(result))
    verdict = corpus.run_loop(LOOP)
    assert (verdict.outcome, verdict.rewrites) == (outcome, 0)
    assert "no such op" in verdict.detail or outcome != "raised"
    monkeypatch.setattr(shifts, "compiled", compiled_to(result))
    shift = corpus.run_shift(shifts.LEAVE["look_ahead_filled"]) if outcome != "wrong" else None
    assert shift is None or shift.outcome == outcome


def test_what_stock_torch_cannot_do_is_not_held_against_packpass(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = compiled_to(RuntimeError("stock"))
    monkeypatch.setattr(compiling, "compiled", broken)
    monkeypatch.setattr(corpus, "_stock", broken)
    assert corpus.run_loop(LOOP).outcome == "stock fails"
    monkeypatch.setattr(shifts, "compiled", broken)
    monkeypatch.setattr(corpus, "_stock_shift", broken)
    assert corpus.run_shift(shifts.REWRITE["by_a_helper"]).outcome == "stock fails"


def test_a_shift_that_is_not_found_is_lost_and_one_that_is_half_right_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    prog = shifts.REWRITE["by_a_helper"]
    monkeypatch.setattr(shifts, "compiled", compiled_to(lambda x: x))
    lost = corpus.run_shift(prog)
    assert (lost.outcome, lost.rewrites) == ("right", 0)
    monkeypatch.setattr(corpus, "_done", lambda rule: {"rewrites": 1})
    assert corpus.run_shift(prog).outcome == "wrong"


def test_what_must_not_be_rewritten_is_wrong_if_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden = next(prog for prog in programs_leave.PROGRAMS.values() if prog.must_refuse)
    held = corpus._loop_held

    def rewritten(*args: Any) -> corpus.Found:
        found = held(*args)
        torch._dynamo.utils.counters["packpass"][f"rewrite:{compiling.RULE}"] += 1
        return found

    monkeypatch.setattr(corpus, "_loop_held", rewritten)
    verdict = corpus.run_loop(forbidden)
    assert verdict.outcome == "wrong"
    assert forbidden.why in verdict.detail


def test_a_program_has_its_time_and_no_more() -> None:
    def quick() -> Verdict:
        return Verdict("loops", "quick", False, "right")

    def endless() -> Verdict:
        try:
            time.sleep(60)
        except Exception:  # what a program catches does not keep it going
            time.sleep(60)
        raise AssertionError("the alarm did not ring")

    lines = io.StringIO()
    programs.run({"loops/endless": endless, "loops/quick": quick, "loops/again": endless}, lines, 1)
    promised, found = read(lines.getvalue().splitlines())
    assert promised == ["loops/endless", "loops/quick", "loops/again"]
    assert [(v.name, v.outcome, v.detail) for v in found] == [
        ("endless", "raised", "stopped after 3 s"),
        ("quick", "right", ""),
        ("again", "raised", "stopped after 1 s"),
    ]


@pytest.mark.parametrize("text", ["2/2", "1", "a/b", "-1/2", "0/0"])
def test_a_share_of_the_programs_must_exist(text: str) -> None:
    for option in ("part", "share"):
        with pytest.raises(SystemExit):
            programs.main([f"--{option}={text}"])
