"""Programs that must keep eager's results: left alone, replayed or refused with a reason, never silently wrong."""

from __future__ import annotations

import re

import pytest

from .compiling import RULE, compiled, explained, fresh, hold_against_eager
from .harness import Program
from .programs_leave import PROGRAMS

EVERY = list(PROGRAMS.values())

THROUGH_INDUCTOR = [
    "index_multiplies", "break_at_third", "running_sum", "previous_end_as_start", "list_reversed", "leaked_index",
    "writes_attributes", "shifted_view_of_the_source", "suffixes", "count_is_the_batch_size", "zip_with_weights",
    "first_token_broadcast", "no_grad_around_the_write",
    "logical_inside_padded", "detached",
]  # fmt: skip


# Dynamo 2.13 asserts about a guard of its own where sizes come in another order, with any backend.
STOCK_FAILS = ("lengths_as_list_accumulated",)


@pytest.mark.parametrize("prog", EVERY, ids=str)
def test_equals_eager(prog: Program) -> None:
    """At every third size: unrolled loops are compiled anew for each. The test of the odd sizes takes all of them.

    What is slow here runs in `make test-matrix` too, on the oldest and on the newest torch.
    """
    fresh()
    step = 1 if prog.name in STOCK_FAILS else 3
    hold_against_eager(prog, compiled(prog), prog.inputs()[::step])


@pytest.mark.slow
@pytest.mark.parametrize("prog", EVERY, ids=str)
def test_equals_eager_from_the_odd_sizes(prog: Program) -> None:
    fresh()
    hold_against_eager(prog, compiled(prog), reversed(prog.inputs()), grad=False)


@pytest.mark.parametrize("prog", [p for p in EVERY if p.must_refuse or p.refusal], ids=str)
def test_is_refused_with_a_reason(prog: Program) -> None:
    report = explained(prog)
    assert not prog.must_refuse or not [r for r in report.rewrites if r.rule in (RULE, "ragged_grids")], (
        f"rewritten although {prog.why}: {report.rewrites}"
    )
    refusals = report.refusals
    assert refusals or not prog.refusal, (
        f"neither rewritten nor refused, although {prog.why}; breaks: {report.graph_break_reasons}"
    )
    for refusal in refusals:
        assert re.fullmatch(r"[\w.-]+", refusal.code), f"{refusal.code!r} is not greppable"
        assert len(refusal.reason) > 8
        assert refusal.location.rpartition(":")[2].isdigit()


@pytest.mark.parametrize("name", THROUGH_INDUCTOR)
def test_through_inductor(name: str) -> None:
    fresh()
    prog = PROGRAMS[name]
    hold_against_eager(prog, compiled(prog, inner="inductor"), prog.inputs()[:3], exact=False)
