"""What only looks like a naive shift is left alone: bit for bit what it is without packpass, with a reason."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.shifts import look_alikes, more_look_alikes, positions, turned  # noqa: F401  (they register their programs)
from tests.shifts.harness import LEAVE, Program, compiled, cotangents, differences, explained, inputs, run

PROGRAMS = list(LEAVE.values())


@pytest.mark.parametrize("prog", PROGRAMS, ids=str)
def test_is_what_it_was(prog: Program) -> None:
    torch._dynamo.reset()
    counters.clear()
    module = prog.instance()
    fn = compiled(module)
    for row in prog.rows:
        got = run(fn, inputs(prog, row), module, cotangents(row))
        eager = prog.instance()
        stock = run(eager, inputs(prog, row), eager, cotangents(row))
        assert differences(stock, got, row, exact=True) == [], row
    graphs = counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()
    plain = torch.compile(prog.instance(), backend="eager")
    for row in prog.rows:
        plain(**inputs(prog, row))
    assert graphs <= max(counters["stats"]["unique_graphs"], 2)


@pytest.mark.parametrize("prog", PROGRAMS, ids=str)
def test_the_report_says_why(prog: Program) -> None:
    report = explained(prog, prog.rows[0])
    assert [r for r in report.rewrites if r.rule == "pack_shifts"] == []
    codes = {r.code for r in report.refusals if r.rule == "pack_shifts"}
    assert codes == ({prog.code} if prog.code else set())
    for refusal in report.refusals:
        assert refusal.location == "<inputs>" or ".py:" in refusal.location
