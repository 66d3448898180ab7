"""A shift whose result is copied, or shifted again: everybody sees one row, whichever of the shifts are rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.ops import packed_roll
from tests.shifts.harness import EAGER

CU = torch.tensor([0, 5, 6, 13, 20], dtype=torch.int32)


def shifted(ids: Tensor) -> Tensor:
    labels = torch.roll(ids, -1, 1)
    labels[:, -1] = -100
    return labels


def compiled(program: Callable[..., Any], *args: Any) -> tuple[Any, packpass.Report]:
    torch._dynamo.reset()
    report = packpass.explain(program, options=EAGER)(*args)
    return report.result, report


def rows() -> Tensor:
    return torch.arange(20)[None] + 10


def copy_that_a_loop_adds_to(ids: Tensor, cu: Tensor) -> Any:
    labels = shifted(packpass.packed(ids, cu, 1))
    twice = labels.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        twice[:, s:e] += labels[:, s:e]
    return labels, twice


def view_of_a_view(ids: Tensor, cu: Tensor) -> Any:
    labels = shifted(packpass.packed(ids, cu, 1))
    return labels, labels.flatten().view(labels.shape)


def copy_that_is_compared(ids: Tensor, cu: Tensor) -> Any:
    ids = packpass.packed(ids, cu, 1)
    labels = shifted(ids)
    return labels * 2, labels.clone() == ids


@pytest.mark.parametrize(
    ("program", "meant"),
    [
        (copy_that_a_loop_adds_to, lambda labels, ids: (labels, labels * 2)),
        (view_of_a_view, lambda labels, ids: (labels, labels)),
        (copy_that_is_compared, lambda labels, ids: (labels * 2, labels == ids)),
    ],
)
def test_copies_stop_at_documents_together(program: Callable[..., Any], meant: Callable[..., Any]) -> None:
    got, report = compiled(program, rows(), CU)
    assert any(r.rule == "pack_shifts" for r in report.rewrites)
    for a, b in zip(got, meant(packed_roll(rows(), CU, -1, 1, -100), rows()), strict=True):
        assert torch.equal(a, b)


def copy_that_is_corrected(ids: Tensor, cu: Tensor) -> Any:
    ids = packpass.packed(ids, cu, 1)
    labels = shifted(ids)
    last = torch.isin(torch.arange(ids.shape[1]), cu[1:] - 1)
    return labels + 0, torch.where(last, -100, labels.clone())


def only_compared(ids: Tensor, cu: Tensor) -> Any:
    ids = packpass.packed(ids, cu, 1)
    labels = shifted(ids)
    return labels.clone() == ids, labels != ids


@pytest.mark.parametrize("program", [copy_that_is_corrected, only_compared])
def test_copies_are_left_alone_together(program: Callable[..., Any]) -> None:
    got, report = compiled(program, rows(), CU)
    assert not report.rewrites
    assert report.refusals
    assert {r.code for r in report.refusals} <= {"already-bounded", "look-ahead"}
    for a, b in zip(got, program(rows(), CU), strict=True):
        assert torch.equal(a, b)


def next_is_not_filled(ids: Tensor, cu: Tensor) -> Any:
    labels = shifted(packpass.packed(ids, cu, 1))
    return labels, torch.roll(labels, -1, 1)


def next_is_written_in_parts(ids: Tensor, cu: Tensor) -> Any:
    labels = shifted(packpass.packed(ids, cu, 1))
    further = torch.cat((labels[:, 2:], labels[:, :2]), 1)
    return further, labels


def next_pads_and_is_read_first(ids: Tensor, cu: Tensor) -> Any:
    labels = shifted(packpass.packed(ids, cu, 1))
    padded = F.pad(labels, (-2, 2), value=7)
    wrapped = torch.roll(padded, -1, 1)
    return labels, padded, wrapped


def test_a_shift_that_stays_reads_the_one_that_is_rewritten() -> None:
    ids = rows()
    labels = packed_roll(ids, CU, -1, 1, -100)
    padded = packed_roll(labels, CU, -2, 1, 7)
    for program, meant in (
        (next_is_not_filled, (labels, torch.roll(labels, -1, 1))),
        (next_is_written_in_parts, (torch.cat((labels[:, 2:], labels[:, :2]), 1), labels)),
        (next_pads_and_is_read_first, (labels, padded, torch.roll(padded, -1, 1))),
    ):
        got, report = compiled(program, ids, CU)
        assert any(r.rule == "pack_shifts" for r in report.rewrites), program
        for k, (a, b) in enumerate(zip(got, meant, strict=True)):
            assert torch.equal(a, b), (program, k)


def moved_back(ids: Tensor, cu: Tensor) -> Any:
    wrapped = torch.roll(shifted(packpass.packed(ids, cu, 1)), 1, 1)
    return wrapped, torch.roll(wrapped, -1, 1)


def beyond_a_look_ahead(ids: Tensor, cu: Tensor) -> Any:
    ids = packpass.packed(ids, cu, 1)
    first = shifted(ids)
    return first != ids, shifted(first)


def shifted_after_a_loop(ids: Tensor, cu: Tensor) -> Any:
    """Found by the fuzz: the second shift is of what the loop has written to an alias of a copy of the first one."""
    ids = packpass.packed(ids, cu, 1)
    first = shifted(ids)
    written = first.clone().to(torch.int64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        ordered = first[:, s:e].sort(0, descending=True).values
        first[:, s:e].copy_(ordered)
        written[:, s:e] = torch.where(ordered > 1, ordered, 0)
    total = ids.clone().to(torch.int64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        total[:, s:e] += written[:, s:e]
    return shifted(written), total


def test_a_shift_of_what_a_loop_has_written_to_a_copy_of_a_shift() -> None:
    cu = torch.tensor([0, rows().shape[1]], dtype=torch.int32)  # one document: every shift is what it was
    got, report = compiled(shifted_after_a_loop, rows(), cu)
    assert [r.rule for r in report.rewrites].count("vectorize_segments") == 2
    for a, b in zip(got, shifted_after_a_loop(rows(), cu), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("program", [moved_back, beyond_a_look_ahead])
def test_a_shift_over_a_row_that_stays_is_left_alone(program: Callable[..., Any]) -> None:
    """The last of two moves would stop at documents, and who looks at the row between them would see it cross them."""
    got, report = compiled(program, rows(), CU)
    assert not report.rewrites
    assert {r.code for r in report.refusals} <= {"no-fill", "look-ahead"}
    for a, b in zip(got, program(rows(), CU), strict=True):
        assert torch.equal(a, b)


def moved_back_unseen(ids: Tensor, cu: Tensor) -> Any:
    return torch.roll(torch.roll(shifted(packpass.packed(ids, cu, 1)), 1, 1), -1, 1)


def filled_afterwards(ids: Tensor, cu: Tensor) -> Any:
    rolled = torch.roll(packpass.packed(ids, cu, 1), -1, 1)
    return torch.cat((rolled[:, :-1], torch.full_like(rolled[:, :1], -100)), 1), rolled


@pytest.mark.parametrize("program", [moved_back_unseen, filled_afterwards])
def test_a_row_between_that_nobody_sees_or_that_is_filled_is_no_obstacle(program: Callable[..., Any]) -> None:
    got, report = compiled(program, rows(), CU)
    assert any(r.rule == "pack_shifts" for r in report.rewrites)
    labels = got[0] if isinstance(got, tuple) else got
    assert torch.equal(labels, packed_roll(rows(), CU, -1, 1, -100))
