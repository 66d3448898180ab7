"""Programs that must be rewritten: equal to eager bit for bit, rewritten where they stand, one graph for every N."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from .compiling import compiled, explained, fresh, graphs, hold_against_eager, located
from .harness import COUNTED, Program, Shape, build, outcome
from .programs_rewrite import PROGRAMS

EVERY = list(PROGRAMS.values())
DEMANDED = [p for p in EVERY if p.demand]
CAT = [p for p in EVERY if not p.tail and p.name not in ("into_empty_like", "running_start")]

# A sample through the real compiler: one per kind of body, accumulator and form.
THROUGH_INDUCTOR = [
    "range_len", "zip_views_item", "list_pairs", "diff_split_cat", "append_then_cat", "ModuleForward", "in_dataclass",
    "roll_beyond_documents", "roll_two_fill_one", "shift_by_subslices", "whole_row_weight", "positions",
    "jagged_of_rolled", "every_third_token", "halves_the_other_way_round", "gates_behind_a_branch",
    "parts_cut_and_joined", "layer_if_long", "table_for_its_own_size",
    "bfloat16_hidden", "in_place_slice", "three_fields", "chain_of_three", "loss_mask_last_token",
    "flat_table_between_bounds", "branch_on_a_size", "places_of_a_document",
    "lengths_of_parts", "first_and_last_part",
]  # fmt: skip
OTHERS_THROUGH_INDUCTOR = sorted(PROGRAMS.keys() - {*THROUGH_INDUCTOR})[::25]


@pytest.mark.parametrize("prog", EVERY, ids=str)
def test_equals_eager(prog: Program) -> None:
    """With few graphs over the first sizes, which are plain ones (of those at which eager runs)."""
    fresh()
    fn = compiled(prog)
    hold_against_eager(prog, fn, [shape for shape in COUNTED if prog.shapes is None or shape in prog.shapes])
    assert not prog.demand or 1 <= graphs() <= prog.graphs
    hold_against_eager(prog, fn, [shape for shape in prog.inputs() if shape not in COUNTED])


@pytest.mark.slow
@pytest.mark.parametrize("prog", EVERY, ids=str)
def test_equals_eager_from_the_odd_sizes(prog: Program) -> None:
    """First compiled at the strangest size (no document, empty ones, one token each), without gradients."""
    fresh()
    hold_against_eager(prog, compiled(prog), reversed(prog.inputs()), grad=False)


@pytest.mark.parametrize("prog", DEMANDED, ids=str)
def test_is_rewritten(prog: Program) -> None:
    report = explained(prog)
    rewrites = [r for r in report.rewrites if r.rule == prog.rule]
    assert rewrites, f"not rewritten; refusals: {report.refusals}; breaks: {report.graph_break_reasons}"
    assert report.graph_breaks == 0, report.graph_break_reasons
    assert report.graphs == 1
    for rewrite in rewrites:
        assert located(prog, rewrite.location), f"{rewrite.location} is not in {prog.spans()}"
        assert rewrite.before != rewrite.after
    after = sum(record.host_syncs_after for record in report.graph_records)
    assert after == prog.reads, f"{after} host reads are left in the rewritten graph"


@pytest.mark.parametrize("prog", CAT, ids=str)
def test_cat_with_a_tail(prog: Program) -> None:
    """Documents that do not cover the row: eager's (shorter) result, eager's error, or an error that says why."""
    fresh()
    fn = compiled(prog)
    outcome(fn, build(prog, COUNTED[0]))
    for shape in (Shape(4, 30, "tail"), Shape(3, 26, "gap")):
        want, got = _shapes_or_error(prog, prog.instance(), shape), _shapes_or_error(prog, fn, shape)
        if isinstance(got, str):
            assert isinstance(want, str) or "cu_seqlens" in got or "boundaries" in got, got
        else:
            assert got == want


def _shapes_or_error(prog: Program, fn: Callable[..., Any], shape: Shape) -> list[torch.Size] | str:
    try:
        result = outcome(fn, build(prog, shape))
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        return str(error)
    return [t.shape for _, t in result.outputs if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("name", THROUGH_INDUCTOR)
def test_through_inductor(name: str) -> None:
    fresh()
    prog = PROGRAMS[name]
    shapes = [s for s in prog.inputs() if s.docs in (1, 3, 4, 7)][:5]
    hold_against_eager(prog, compiled(prog, inner="inductor"), shapes, exact=prog.exact)
    _no_frame_is_lost()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS_THROUGH_INDUCTOR)
def test_others_through_inductor(name: str) -> None:
    """At two sizes: it lays out, fuses and asks in ways of its own, whatever the program."""
    fresh()
    prog = PROGRAMS[name]
    shapes = [s for s in prog.inputs() if s.docs in (3, 7)][:2] or list(prog.inputs())[:1]
    hold_against_eager(prog, compiled(prog, inner="inductor"), shapes, exact=False)
    _no_frame_is_lost()


def _no_frame_is_lost() -> None:
    """What Inductor cannot compile runs eagerly, which no result shows."""
    assert not counters["packpass"]["refusal:frame-not-compiled"]


def test_user_checks_survive() -> None:
    """A check that the user wrote still fires in the rewritten graph."""
    fresh()
    prog = PROGRAMS["user_torch_check"]
    fn = compiled(prog)
    outcome(fn, build(prog, COUNTED[0]))
    x, cu = build(prog, COUNTED[0], grad=False).args
    with pytest.raises(RuntimeError, match="boundaries beyond the row"):
        fn(x[:, :-3], cu)


def test_user_assert_survives() -> None:
    fresh()
    prog = PROGRAMS["user_assert"]
    fn = compiled(prog)
    x, cu = build(prog, COUNTED[0], grad=False).args
    fn(x, cu)
    with pytest.raises(AssertionError, match="empty row"):
        fn(x[:, :0], cu * 0)
