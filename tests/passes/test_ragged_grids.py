"""`passes.ragged_grids`: what is refused and why, sizes that do not fit, real code, the real compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from tests.loops import leave_grids, rewrite_grids
from tests.loops.compiling import compiled, explained, fresh, hold_against_eager
from tests.loops.harness import LEAVE, REWRITE

CODES = {
    leave_grids.selected_twice: ("ragged_grids", "no-rule"),
    leave_grids.selected_and_turned_around: ("ragged_grids", "no-rule"),
    leave_grids.multiples_of_the_last: ("ragged_grids", "no-rule"),
    leave_grids.the_last_elsewhere: ("ragged_grids", "no-rule"),
    leave_grids.entries_of_a_running_list: ("capture", "list-use"),
    leave_grids.largest_so_far: ("capture", "carried-state"),
    leave_grids.noise_of_each_image: ("ragged_grids", "no-rule"),
    leave_grids.marked_corners: ("ragged_grids", "outer-tensor-write"),
    leave_grids.first_and_last: ("capture", "list-use"),
}
GRID = torch.tensor([[1, 4, 6], [2, 2, 4]])


@pytest.mark.parametrize("program", CODES, ids=lambda program: program.__name__)
def test_refused_by_code(program: Callable[..., Any]) -> None:
    report = explained(LEAVE[program.__name__])
    refusals = {(refusal.rule, refusal.code): refusal for refusal in report.refusals}
    assert CODES[program] in refusals, report.refusals
    refusal = refusals[CODES[program]]
    assert refusal.location.startswith("tests/loops/leave_grids.py:")


def test_one_refusal_for_one_loop() -> None:
    """The pass that cuts rows by boundaries has nothing to say about a loop over rows of sizes."""
    report = explained(LEAVE["marked_corners"])
    assert [r.rule for r in report.refusals if r.rule != "capture"] == ["ragged_grids"]


def test_what_does_not_read_rows_is_left_to_others() -> None:
    def total(x: Tensor, cu: Tensor) -> Tensor:
        return torch.cat([x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])

    fresh()
    args = torch.randn(9), torch.tensor([0, 4, 9])
    report = packpass.explain(total, options={"packpass.inner_backend": "eager"})(*args)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"]


@pytest.mark.parametrize("name", ["in_merge_order", "merge_sizes_of_each"])
def test_sizes_that_do_not_divide_name_the_image(name: str) -> None:
    fresh()
    fn = compiled(REWRITE[name])
    fn(GRID)
    with pytest.raises(ValueError, match=r"document 1: a reshape to another number of slots \(20, 16\)"):
        fn(torch.tensor([[1, 4, 6], [1, 4, 5]]))


def test_negative_sizes_name_the_image() -> None:
    fresh()
    fn = compiled(REWRITE["rows_and_columns"])
    fn(GRID)
    with pytest.raises((ValueError, RuntimeError), match="document 0: a size is negative"):
        fn(torch.tensor([[1, -4, 6], [1, 4, 5]]))


def test_a_split_that_does_not_add_up() -> None:
    fresh()
    fn = compiled(REWRITE["parts_of_a_row"])
    fn(torch.randn(32, 6), GRID)
    with pytest.raises(RuntimeError, match="the lengths of a split do not add up"):
        fn(torch.randn(30, 6), GRID)


def test_images_without_patches() -> None:
    fresh()
    fn = compiled(REWRITE["rows_and_columns"])
    for rows in ([[1, 4, 6], [2, 2, 4]], [[1, 0, 4], [1, 2, 2]], [[0, 2, 2], [1, 0, 4]]):
        grid = torch.tensor(rows)
        assert torch.equal(fn(grid), rewrite_grids.rows_and_columns(grid))


def test_int32_sizes() -> None:
    fresh()
    fn = compiled(REWRITE["rows_and_columns"])
    assert torch.equal(fn(GRID.int()), rewrite_grids.rows_and_columns(GRID.int()))


def test_not_when_the_sizes_change_meanwhile() -> None:
    """``for row in grid`` holds views: what is written to the grid is seen by the next row."""

    def program(grid: Tensor) -> Tensor:
        out = []
        for t, h, w in grid:
            grid.add_(1)
            out.append(torch.arange(h * w) + t)
        return torch.cat(out)

    fresh()
    fn = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    assert torch.equal(fn(GRID.clone()), program(GRID.clone()))


def test_numbers_of_before_the_sizes_changed() -> None:
    """``tolist()`` holds the numbers that were there."""

    def program(grid: Tensor) -> Tensor:
        rows, areas, out = grid.tolist(), (grid[:, 1] * grid[:, 2]).tolist(), []
        grid.mul_(2)
        for (t, h, w), area in zip(rows, areas):
            out.append(torch.arange(h * w).repeat(t) + area)
        return torch.cat(out) + grid.sum()

    fresh()
    fn = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    assert torch.equal(fn(GRID.clone()), program(GRID.clone()))


def test_only_what_is_multiplied_again_is_known_to_divide() -> None:
    """That ``h`` is even says nothing of ``w``."""

    def program(grid: Tensor) -> Tensor:
        out = []
        for _, h, w in grid.tolist():
            x = torch.arange(h * (w // 2)).reshape(h // 2, 2, w // 2)
            out.append(torch.cat([x.permute(2, 0, 1).reshape(-1), torch.arange(w)]))
        return torch.cat(out)

    fresh()
    grid = torch.tensor([[1, 4, 5], [1, 6, 3], [1, 2, 7]])
    fn = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    assert torch.equal(fn(grid), program(grid))


def test_disabled() -> None:
    fresh()
    fn = compiled(REWRITE["rows_and_columns"], **{"packpass.disable": ["ragged_grids"]})
    assert torch.equal(fn(GRID), rewrite_grids.rows_and_columns(GRID))
    assert not torch._dynamo.utils.counters["packpass"]["rewrite:ragged_grids"]


def test_verified() -> None:
    fresh()
    fn = compiled(REWRITE["rows_of_a_table"], **{"packpass.verify": True})
    table = torch.randn(64, 4)
    assert torch.equal(fn(GRID, table), rewrite_grids.rows_of_a_table(GRID, table))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["merge_sizes_of_each", "rows_of_a_table", "padded_to_windows", "window_order"])
def test_through_inductor(name: str) -> None:
    fresh()
    prog = REWRITE[name]
    hold_against_eager(prog, compiled(prog, inner="inductor"), prog.inputs()[:3])
