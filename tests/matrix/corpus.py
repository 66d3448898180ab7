"""The loop and shift programs of the test suite as jobs: each runs at a few sizes and says what became of the program.

Every program is compiled with the eager inner backend and held against eager results, gradients included, as in the
tests of the corpora. What packpass did is read from ``torch._dynamo.utils.counters`` after the first size, so that no
program is compiled once more for its report.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.loops import compiling, programs_leave, programs_rewrite
from tests.loops import harness as loops
from tests.matrix.verdicts import EAGER, RAISED, RIGHT, STOCK, WRONG, Verdict
from tests.shifts import batches, codebases, look_alikes, models, more_look_alikes, positions, spellings, turned  # noqa: F401
from tests.shifts import harness as shifts

Job = Callable[[], Verdict]
Compile = Callable[[Any], Callable[..., Any]]


def jobs() -> dict[str, Job]:
    """All programs by ``corpus/name``, in the order of the corpora."""
    made: dict[str, Job] = {}
    for loop in (*programs_rewrite.PROGRAMS.values(), *programs_leave.PROGRAMS.values()):
        made[f"loops/{loop}"] = lambda prog=loop: run_loop(prog)  # type: ignore[misc]
    for shift in (*shifts.REWRITE.values(), *shifts.LEAVE.values()):
        made[f"shifts/{shift}"] = lambda prog=shift: run_shift(prog)  # type: ignore[misc]
    return made


@dataclasses.dataclass
class Found:
    """What came out, and what packpass did at the first size, where nothing has been compiled before."""

    outcome: str = RIGHT
    detail: str = ""
    done: dict[str, Any] = dataclasses.field(default_factory=dict)


def _done(rule: str) -> dict[str, Any]:
    ours, prefix = counters["packpass"], "refusal:"
    return {
        "rewrites": ours[f"rewrite:{rule}"],
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "refusals": tuple(sorted(key[len(prefix) :] for key in ours if key.startswith(prefix))),
    }


def _words(error: BaseException) -> str:
    """The type and the first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}"


# === Loops ===================================================================================================

STRANGE = ("tail", "gap_empty", "lead_empty", "inner_empty", "ones")


def run_loop(prog: loops.Program) -> Verdict:
    started = time.perf_counter()
    shapes = _shapes(prog)
    found = Found()
    try:
        for shape in shapes:
            loops.outcome(prog.instance(), loops.build(prog, shape), prog.observe)
    except Exception as error:
        found = Found(EAGER, _words(error))
    else:
        found = _loop_held(prog, compiling.compiled, shapes)
        forbidden = prog.must_refuse and counters["packpass"][f"rewrite:{prog.rule}"]
        if found.outcome != RIGHT and _loop_held(prog, _stock, shapes).outcome == found.outcome:
            found.outcome = STOCK
        elif forbidden:
            found.outcome, found.detail = WRONG, f"rewritten although {prog.why}"
    seconds = round(time.perf_counter() - started, 2)
    return Verdict("loops", prog.name, prog.demand, found.outcome, found.detail, **found.done, seconds=seconds)


def _shapes(prog: loops.Program) -> list[loops.Shape]:
    """Two plain sizes and a strange one, one plain one less where no rewrite is demanded."""
    allowed = prog.inputs()
    strange = sorted((s for s in allowed if s.kind in STRANGE), key=lambda shape: STRANGE.index(shape.kind))
    plain = [s for s in allowed if s.kind == "plain" and s.docs < 50]
    return [*plain[: 2 if prog.demand else 1], *strange[:1]] or list(allowed[:2])


def _loop_held(prog: loops.Program, compiled: Compile, shapes: list[loops.Shape]) -> Found:
    compiling.fresh()
    fn, eager, found = compiled(prog), prog.instance(), Found()
    for shape in shapes:
        try:
            compiling.hold_against_eager(prog, fn, [shape], eager=eager)
        except AssertionError as error:
            raised = error.__cause__  # the harness chains what the compiled program raised, and nothing else
            found.outcome, found.detail = (RAISED, f"{shape}: {_words(raised)}") if raised else (WRONG, _words(error))
        found.done = found.done or _done(prog.rule)
        if found.outcome != RIGHT or not (prog.demand or found.done["rewrites"]):
            break  # what was left alone is Dynamo's own unrolled code, compiled anew for every size
    return found


def _stock(prog: loops.Program) -> Callable[..., Any]:
    """The same program as plain Dynamo runs it."""
    target = prog.instance()
    if isinstance(target, nn.Module):
        target.compile(backend="eager")
        return target
    return torch.compile(target, backend="eager")


# === Shifts ==================================================================================================

SHIFT_RULE = "pack_shifts"


def run_shift(prog: shifts.Program) -> Verdict:
    started = time.perf_counter()
    tails = shifts.TAILS[:1] if prog.tails and prog.rewrites else ()
    rows = (*prog.rows[: 2 if prog.rewrites else 1], *tails)
    try:
        for row in rows:
            _shift_eager(prog, row)
    except Exception as error:
        found = Found(EAGER, _words(error))
    else:
        found = _shift_held(prog, shifts.compiled, rows)
        forbidden = not prog.rewrites and counters["packpass"][f"rewrite:{SHIFT_RULE}"]
        if found.outcome == RAISED and _shift_held(prog, _stock_shift, rows).outcome == RAISED:
            found.outcome = STOCK
        elif forbidden:
            found.outcome, found.detail = WRONG, "rewritten although it only looks like a shift"
    seconds = round(time.perf_counter() - started, 2)
    return Verdict("shifts", prog.name, prog.rewrites > 0, found.outcome, found.detail, **found.done, seconds=seconds)


def _shift_eager(prog: shifts.Program, row: shifts.Row) -> shifts.Seen:
    module = prog.instance()
    return shifts.run(module, shifts.inputs(prog, row), module, shifts.cotangents(row))


def _stock_shift(module: Any) -> Callable[..., Any]:
    return torch.compile(module, backend="eager")


def _shift_held(prog: shifts.Program, compiled: Compile, rows: tuple[shifts.Row, ...]) -> Found:
    torch._dynamo.reset()
    counters.clear()
    module, found = prog.instance(), Found()
    fn = compiled(module)
    for row in rows:
        try:
            got = shifts.run(fn, shifts.inputs(prog, row), module, shifts.cotangents(row))
        except Exception as error:
            found.outcome, found.detail = RAISED, f"{row}: {_words(error)}"
        found.done = found.done or _done(SHIFT_RULE)
        if found.outcome == RIGHT:
            wrong = _differences(prog, row, got, bool(found.done["rewrites"]))
            if wrong:
                count = f"{found.done['rewrites']} of {prog.rewrites} shifts rewritten"
                found.outcome, found.detail = WRONG, f"{count}, {row}: {' '.join(wrong[0].split())[:120]}"
        if found.outcome != RIGHT:
            break
    return found


def _differences(prog: shifts.Program, row: shifts.Row, got: shifts.Seen, rewritten: bool) -> list[str]:
    """Against the documents one by one where a shift was rewritten, else against eager, bit for bit: a shift that is
    not found is lost, not miscompiled."""
    if prog.rewrites and rewritten:
        return shifts.differences(shifts.one_by_one(prog, row, got), got, row)
    return shifts.differences(_shift_eager(prog, row), got, row, exact=True)
