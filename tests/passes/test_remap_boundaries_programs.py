"""More programs: what is remapped with the boundaries, and what keeps them from being remapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass import ops
from tests.passes import expansion_callers as callers
from tests.passes import expansion_programs as programs
from tests.passes.expansion_data import LONGER, ONE, OPTIONS, ROW, Documents, codes, explained, remaps

ARGS, (BEFORE, AFTER) = ROW.arguments(), ROW.boundaries()


def left_alone(program: Any, code: str | None, *args: Any) -> packpass.Report:
    """Exactly what eager gives."""
    report = explained(program, *args)
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0, equal_nan=True)
    assert remaps(report) == [] and codes(report) == ([] if code is None else [code])
    return report


# === Remapped =================================================================================================


# What `appended_row` cuts by has no well-known name.
@pytest.mark.parametrize(
    ("make", "use"),
    [(programs.declared, use) for use in callers.CUTS]
    + [(programs.named, use) for use in callers.CUTS if use is not callers.appended_row],
    ids=lambda f: f.__name__,
)
def test_cuts(make: Any, use: Any) -> None:
    program = make(programs.last_slots, use)
    report = explained(program, *ARGS, BEFORE)
    torch.testing.assert_close(report.result, program(*ARGS, BEFORE, AFTER))
    assert len(remaps(report)) == 1 and codes(report) == []


@pytest.mark.parametrize("use", [callers.repeated_starts, callers.compared_with_slots], ids=lambda f: f.__name__)
def test_cuts_for_all_lengths(use: Any) -> None:
    """Boundaries that count expanded tokens already come in between, and stay."""
    torch._dynamo.reset()
    program = programs.named(programs.last_slots, use)
    compiled = torch.compile(program, backend=packpass.backend, fullgraph=True, options=OPTIONS)
    for documents in (ROW, LONGER, ONE):
        args, (before, after) = documents.arguments(), documents.boundaries()
        want = program(*args, after)
        torch.testing.assert_close(compiled(*args, before), want)
        torch.testing.assert_close(compiled(*args, after), want)


def test_documents_of_both_rows() -> None:
    report = explained(callers.both_rows, *ARGS, BEFORE)
    torch.testing.assert_close(report.result, callers.both_rows(*ARGS, BEFORE, AFTER))
    assert [rewrite.details["evidence"] for rewrite in remaps(report)] == ["use"] and codes(report) == []


PADDED_IDS, WIDTHS = torch.tensor([[3, 0, 4, 9, 5, 6, 7, 9, 0, 2, 0, 9]]), torch.tensor([3, 2, 4])
LOGICAL, SLOTS = torch.tensor([0, 3, 6, 9]), torch.tensor([0, 4, 8, 12])


def padded_arguments() -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Ids, features and sizes of documents that are padded; their boundaries after expansion."""
    features = torch.randn(9, programs.WIDTH, generator=torch.Generator().manual_seed(0))
    widths = programs.widths_of(PADDED_IDS, WIDTHS)[0]
    return (PADDED_IDS, features, WIDTHS), ops.remap_cu_seqlens(LOGICAL, widths, cu_seqlens_padded=SLOTS)


@pytest.mark.parametrize("by", ["name", "declaration"])
@pytest.mark.parametrize("shared", [True, False])
def test_four_sets_of_boundaries(by: str, shared: bool) -> None:
    """Queries' and keys', in tokens and in slots; each is remapped in its way."""

    def program(
        input_ids: Tensor,
        features: Tensor,
        sizes: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_kv: Tensor,
        cu_seqlens_q_padded: Tensor,
        cu_seqlens_kv_padded: Tensor,
    ) -> Tensor:
        if by == "declaration":
            input_ids = packpass.packed(input_ids, cu_seqlens_q, cu_seqlens_padded=cu_seqlens_q_padded)
        q = programs.heads(programs.last_slots(input_ids, features, sizes))
        if shared:
            cu_seqlens_kv, cu_seqlens_kv_padded = cu_seqlens_q, cu_seqlens_q_padded
        sets = cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded
        return callers.thd_attention(q, 2 * q, q + 1, *sets)

    args, (cu, padded) = padded_arguments()
    report = explained(program, *args, LOGICAL, LOGICAL.clone(), SLOTS, SLOTS.clone())
    torch.testing.assert_close(report.result, program(*args, cu, cu, padded, padded))
    assert len(remaps(report)) == 1 and codes(report) == []


def test_shifts_of_both_rows() -> None:
    """Each by its own boundaries."""
    program = callers.shifted_labels
    report = explained(program, *ARGS, BEFORE)
    _, next_ids, labels = report.result
    widths = programs.widths_of(ARGS[0], ARGS[2])[0]
    assert torch.equal(next_ids, ops.packed_roll(ARGS[0][0], BEFORE, -1, fill=-100))
    assert torch.equal(labels, ops.packed_roll(torch.repeat_interleave(ARGS[0][0], widths), AFTER, -1, fill=-100))
    assert [rewrite.rule for rewrite in report.rewrites] == ["remap_boundaries", "pack_shifts", "pack_shifts"]


# === Left alone ===============================================================================================


@pytest.mark.parametrize("use", callers.MIXED, ids=lambda f: f.__name__)
def test_made_of_the_old_length(use: Any) -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> Tensor:
        return use(programs.last_slots(packpass.packed(ids, cu), features, sizes), cu, ids)

    left_alone(program, "expansion-use", *ARGS, BEFORE)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_table_of_the_length_that_is_given(dynamic: bool | None) -> None:
    """As a number in the graph, and as a symbol."""

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, max_seqlen: int) -> Tensor:
        x = programs.last_slots(packpass.packed(ids, cu), features, sizes)
        at = ops.position_ids(cu, x.shape[1]).clamp(max=max_seqlen - 1)
        return callers.bounded(x, cu, max_seqlen) + torch.arange(max_seqlen)[at][:, None, None]

    torch._dynamo.reset()
    args = (*ARGS, BEFORE, 5)
    report = packpass.explain(program, fullgraph=True, dynamic=dynamic, options=OPTIONS)(*args)
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0, equal_nan=True)
    assert remaps(report) == [] and codes(report) == ["expansion-use"]


def test_scaled_by_the_code_itself() -> None:
    left_alone(callers.scaled, "expansion-use", *ARGS, BEFORE)


def test_positions_that_do_not_start_at_zero() -> None:
    left_alone(callers.displaced, None, *ARGS, BEFORE)


def test_two_steps_without_evidence() -> None:
    """A row that may be cut by stale boundaries is no evidence for what the next expansion makes of it."""
    ids = torch.tensor([[1, 0, 2, 9, 4, 5, 0, 6, 9, 7]])
    left_alone(callers.two_steps, "collapsed-or-expanded", ids, torch.tensor([0, 4, 7, 10]))


@pytest.mark.parametrize("program", [callers.one_row, callers.one_row_no_names, callers.one_row_by_sums])
def test_documents_are_no_placeholders(program: Any) -> None:
    """`repeat_interleave` of documents' numbers: the row that it makes is the one that the boundaries cut."""
    left_alone(program, None, ARGS[0], BEFORE)


def test_documents_by_lengths_are_no_placeholders() -> None:
    left_alone(callers.one_row_by_lengths, None, ARGS[0], BEFORE.diff())


def test_keys_of_another_row() -> None:
    """Text attends to the images of its document, whose boundaries count features."""

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, cu_seqlens_kv: Tensor) -> Tensor:
        x = programs.last_slots(packpass.packed(ids, cu), features, sizes)
        q, k = programs.heads(x), programs.heads(features[None])
        return callers.thd_attention(q, k, k, cu, cu_seqlens_kv, cu, cu_seqlens_kv)

    images = torch.tensor([0, 3, 5, 13, 14, 15], dtype=torch.int32)
    left_alone(program, "two-boundaries", *ARGS, BEFORE, images)


def test_padding_that_the_declaration_does_not_know() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, slots: Tensor) -> Tensor:
        q = programs.heads(programs.last_slots(packpass.packed(ids, cu), features, sizes))
        return callers.thd_attention(q, q, q, cu, cu, slots, slots)

    args, _ = padded_arguments()
    report = left_alone(program, "two-boundaries", *args, LOGICAL, SLOTS)
    assert "cu_seqlens_padded" in report.refusals[0].reason


@pytest.mark.parametrize("cu", [BEFORE, AFTER], ids=["before", "after"])
def test_no_shift_by_boundaries_in_doubt(cu: Tensor) -> None:
    """Attention is cut as the code says; what the code does not cut is not cut by what may be stale."""
    report = left_alone(callers.shifted_labels_no_names, "collapsed-or-expanded", *ARGS, cu)
    assert report.rewrites == []


@pytest.mark.parametrize("program", [callers.shifted_labels, callers.shifted_row], ids=lambda f: f.__name__)
def test_no_shift_by_values_in_doubt(program: Any) -> None:
    """One document whose image comes early: the values could mean either row, so labels are shifted as the code
    does it, over the whole row. Boundaries that count expanded tokens are beyond doubt."""
    documents = Documents((".3......",))
    args, (before, after) = documents.arguments(), documents.boundaries()
    for cu in (before, after):
        for got, want in zip(explained(program, *args, cu).result, program(*args, cu), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
