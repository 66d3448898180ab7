"""Boundaries that are not, or not provably, those of the row before expansion stay; so does all that they cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import packpass
from packpass import ops
from tests.passes import expansion_programs as programs
from tests.passes.expansion_data import EMPTY, LONGER, ROW, TAILS, codes, explained, first, remaps

attend, last_slots, repeated = programs.attend, programs.last_slots, programs.repeated
EXPANDED = ROW.boundaries()[1]


def check(program: Any, code: str | None, *boundaries: Tensor, **options: Any) -> packpass.Report:
    """Left alone, with this code, and exactly what eager gives."""
    args = (*ROW.arguments(), *(boundaries or (ROW.boundaries()[0],)))
    report = explained(program, *args, **options)
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0)
    assert remaps(report) == []
    assert codes(report) == ([] if code is None else [code])
    return report


# === Nothing says what they count =============================================================================


def test_no_name_no_declaration() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> Tensor:
        return attend(last_slots(ids, features, sizes), cu)

    report = check(program, "collapsed-or-expanded")
    assert "packpass.packed(ids, cu_seqlens)" in report.refusals[0].reason


def test_inputs_of_both_rows() -> None:
    """Labels of the expanded row come in with the ids: names alone could mean either row."""

    def program(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor, labels: Tensor) -> Tensor:
        return attend(last_slots(input_ids, features, sizes), cu_seqlens) + labels[0][:, None, None]

    before, _ = ROW.boundaries()
    report = check(program, "collapsed-or-expanded", before, torch.arange(23)[None])
    assert "may have different lengths" in report.refusals[0].reason


@pytest.mark.parametrize("make", [programs.named, programs.used], ids=["named", "used"])
def test_declared_only(make: Any) -> None:
    program = make(last_slots, attend)
    check(program, "collapsed-or-expanded", fix_shifts="declared")


def test_declared_counts_under_declared_only() -> None:
    args, (before, after) = ROW.arguments(), ROW.boundaries()
    program = programs.declared(last_slots, attend)
    report = explained(program, *args, before, fix_shifts="declared")
    torch.testing.assert_close(report.result, program(*args, before, after))


@pytest.mark.parametrize("options", [{"fix_shifts": "off"}, {"disable": ["remap_boundaries"]}])
def test_off(options: dict[str, Any]) -> None:
    check(programs.declared(last_slots, attend), None, **options)


# === They count expanded tokens ===============================================================================


def test_declared_on_the_expanded_row() -> None:
    def program(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = packpass.packed(last_slots(input_ids, features, sizes), cu_seqlens, dim=1)
        return attend(x, cu_seqlens)

    check(program, None, EXPANDED)


@pytest.mark.parametrize("documents", [ROW, EMPTY, LONGER], ids=["row", "empty", "longer"])
@pytest.mark.parametrize("expand", [last_slots, repeated], ids=lambda f: f.__name__)
def test_values_by_name(documents: Any, expand: Any) -> None:
    """Never twice: the graph is rewritten, the boundaries that arrive count expanded tokens."""
    program = programs.named(expand, attend)
    args, (_, after) = documents.arguments(), documents.boundaries()
    report = explained(program, *args, after)
    torch.testing.assert_close(report.result, program(*args, after), rtol=0, atol=0)


def test_values_with_a_tail_by_name() -> None:
    """Slots behind the last document: the values could mean either row, so they stay."""
    program = programs.named(last_slots, attend)
    args, (before, after) = TAILS.arguments(), TAILS.boundaries()
    for cu in (before, after):
        report = explained(program, *args, cu)
        torch.testing.assert_close(report.result, program(*args, cu), rtol=0, atol=0)


def test_values_behind_the_row_by_use() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        document = torch.bucketize(torch.arange(ids.shape[1]), cu, right=True)
        return attend(last_slots(ids, features, sizes), cu), document * ids

    args = (*ROW.arguments(), EXPANDED)
    report = explained(program, *args)
    assert len(remaps(report)) == 1
    for got, want in zip(report.result, program(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_no_text_expands() -> None:
    """Every image has one token: both rows are one length, and the boundaries are right as they are."""
    from tests.passes.expansion_data import Documents

    documents = Documents((".1..", "1", "...1"))
    program = programs.named(last_slots, attend)
    args, (before, after) = documents.arguments(), documents.boundaries()
    assert torch.equal(before, after)
    torch.testing.assert_close(explained(program, *args, before).result, program(*args, before), rtol=0, atol=0)


def test_placeholders_for_every_token() -> None:
    """The ids hold as many placeholders as there are features: nothing expands."""

    def program(input_ids: Tensor, features: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = programs.embed(input_ids)
        x = x.masked_scatter((input_ids == programs.IMAGE)[..., None], features)
        return attend(x + input_ids.cumsum(-1)[..., None], cu_seqlens)

    ids = torch.tensor([[1, 0, 0, 4, 5, 0, 7, 8]])
    args = ids, torch.randn(3, programs.WIDTH), torch.tensor([0, 4, 8])
    report = explained(program, *args)
    assert remaps(report) == [] == codes(report)
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0)


def test_remapped_by_the_user() -> None:
    def program(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> Tensor:
        widths = programs.widths_of(input_ids, sizes)
        cu = ops.remap_cu_seqlens(cu_seqlens, widths)
        return attend(last_slots(input_ids, features, sizes), cu)

    check(program, None)


def test_remapped_by_the_users_own_sums() -> None:
    def program(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> Tensor:
        ends = F.pad(programs.widths_of(input_ids, sizes)[0].cumsum(0), (1, 0))
        return attend(last_slots(input_ids, features, sizes), ends[cu_seqlens.long()])

    check(program, None)


def test_documents_that_are_expanded_like_tokens() -> None:
    """The number of a token's document goes the way of the token: the mask is right."""

    def program(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> Tensor:
        document = torch.bucketize(torch.arange(input_ids.shape[1]), cu_seqlens, right=True)
        total = programs.total_of(input_ids, features, sizes)
        document = torch.repeat_interleave(document, programs.widths_of(input_ids, sizes)[0], output_size=total)
        q = programs.heads(repeated(input_ids, features, sizes)).transpose(0, 1)[None]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=document[:, None] == document[None])

    check(program, None)


# === Only the row before expansion is cut =====================================================================


def test_cut_before_expansion_only() -> None:
    def program(input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        ids = ops.packed_roll(input_ids, cu_seqlens, -1, fill=5)
        return ops.position_ids(cu_seqlens, ids.shape[1]), last_slots(input_ids, features, sizes)

    args = (*ROW.arguments(), ROW.boundaries()[0])
    report = explained(program, *args)
    assert remaps(report) == [] == codes(report)


def test_another_row() -> None:
    """The vision tower has packed rows of its own."""

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = last_slots(ids, attend(features[None], cu_seqlens).flatten(1), sizes)
        return x * 2

    check(program, None, torch.tensor([0, 3, 7, 12, 14]))


def test_a_number_of_tokens_is_just_a_number() -> None:
    """Boundaries that divide a loss do not change with those that cut the row."""

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, after: Tensor | None = None) -> Tensor:
        ids = packpass.packed(ids, cu)
        return attend(last_slots(ids, features, sizes), cu if after is None else after).sum() / cu[-1]

    args, (before, after) = ROW.arguments(), ROW.boundaries()
    report = explained(program, *args, before)
    torch.testing.assert_close(report.result, program(*args, before, after))


# === Not understood ===========================================================================================


def declared(use: Any, expand: Any = last_slots) -> Any:
    return programs.declared(expand, use)


def test_a_number_that_scales_the_row() -> None:
    check(declared(lambda x, cu: attend(x, cu) * cu[-1]), "expansion-use")


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_boundaries_read_on_the_host() -> None:
    def use(x: Tensor, cu: Tensor) -> Tensor:
        end = int(cu[-1].item())
        torch._check(end >= 0)
        torch._check(end <= x.shape[1])
        return attend(x, cu).narrow(0, 0, end)

    check(declared(use), "expansion-use")


def test_two_sets_of_boundaries_in_one_call() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, others: Tensor) -> Tensor:
        x = last_slots(packpass.packed(ids, cu), features, sizes)
        q = programs.heads(x)
        return ops.varlen_attention(q, q, q, cu, others)

    before, after = ROW.boundaries()
    args = (*ROW.arguments(), before, after)
    report = explained(program, *args)
    assert remaps(report) == [] and codes(report)
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0)


def test_a_subgraph_on_both_sides() -> None:
    def both(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
        return attend(x, cu), ops.packed_roll(ids, cu, -1)

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> Any:
        ids = packpass.packed(ids, cu)
        return first(checkpoint(both, last_slots(ids, features, sizes), ids, cu, use_reentrant=False))

    check(program, "expansion-use")


def test_lengths_that_are_used_on_their_own() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, lengths: Tensor) -> Tensor:
        cu = F.pad(lengths.cumsum(0), (1, 0))
        x = last_slots(packpass.packed(ids, cu), features, sizes)
        document = torch.repeat_interleave(torch.arange(lengths.shape[0]), lengths, output_size=ids.shape[1])
        return attend(x, cu) + document.sum()

    check(program, "expansion-use", ROW.boundaries()[0].diff())


def test_two_widths() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, others: Tensor) -> Tensor:
        ids = packpass.packed(ids, cu)
        x = repeated(ids, features, sizes)
        return attend(x + torch.repeat_interleave(ids, others, dim=1, output_size=x.shape[1])[..., None], cu)

    args, (before, _) = ROW.arguments(), ROW.boundaries()
    others = programs.widths_of(args[0], args[2])[0].flip(0)
    report = explained(program, *args, before, others)
    assert remaps(report) == [] and set(codes(report)) == {"expansion-widths"}
    torch.testing.assert_close(report.result, program(*args, before, others), rtol=0, atol=0)


def test_several_rows() -> None:
    def program(ids: Tensor, widths: Tensor, cu: Tensor) -> Tensor:
        at = widths.cumsum(-1) - 1
        x = torch.zeros(2, 9)
        x[torch.arange(2)[:, None], at] = ids.float()
        return x + ops.position_ids(cu, 9) + packpass.packed(ids, cu).sum()

    args = torch.arange(8).view(2, 4), torch.tensor([[1, 4, 1, 3], [2, 2, 2, 3]]), torch.tensor([0, 2, 4])
    report = explained(program, *args)
    assert remaps(report) == [] and codes(report) == ["ambiguous-rows"]
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0)


def test_widths_that_are_known_too_late() -> None:
    """They depend on what the boundaries cut."""

    def program(ids: Tensor, sizes: Tensor, cu: Tensor) -> Tensor:
        ids = packpass.packed(ids, cu)
        at = ops.position_ids(cu, 23)
        widths = programs.widths_of(ids, sizes)[0] + at[0]
        return torch.repeat_interleave(ids[0], widths, output_size=23) * at

    ids, _, sizes = ROW.arguments()
    args = ids, sizes, ROW.boundaries()[0]
    report = explained(program, *args)
    assert remaps(report) == []
    assert codes(report) == ["boundaries-late"]
    assert torch.equal(report.result, program(*args))


def test_boundaries_that_are_written() -> None:
    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor) -> Tensor:
        ids = packpass.packed(ids, cu)
        cu = cu.clone()
        cu[0] = 1
        return attend(last_slots(ids, features, sizes), cu)

    args = (*ROW.arguments(), ROW.boundaries()[0])
    report = explained(program, *args)
    assert remaps(report) == [] and codes(report)
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0)


def test_widths_that_are_written_afterwards() -> None:
    def program(ids: Tensor, widths: Tensor, cu: Tensor) -> Tensor:
        ids = packpass.packed(ids, cu)
        widths = widths.clone()
        x = torch.repeat_interleave(ids, widths, output_size=9)
        widths[0] = 7
        return x + ops.position_ids(cu, 9) + widths.sum()

    args = torch.arange(4), torch.tensor([1, 4, 1, 3]), torch.tensor([0, 2, 4])
    report = explained(program, *args)
    assert remaps(report) == [] and codes(report) == ["boundaries-written"]
    assert torch.equal(report.result, program(*args))


def moved_in_place(at: Tensor) -> Tensor:
    moved = at.view(2, 2)
    moved[1] += 5
    return at


@pytest.mark.parametrize(
    "at",
    [
        lambda w: w.cumsum(0),  # behind the token's slots
        lambda w: w.cumsum(0) - 2,
        lambda w: 2 * w.cumsum(0) - 2,
        lambda w: (w.cumsum(0) - 1).flip(0),
        lambda w: torch.roll(w.cumsum(0), 1),
        lambda w: (w.cumsum(0) - 1).add_(3),
        lambda w: moved_in_place(w.cumsum(0) - 1),
        lambda w: (w.cumsum(0) - 1).clamp(max=9),
    ],
)
def test_other_arithmetic(at: Any) -> None:
    """No proof of where tokens go, so nothing is known about the row."""

    def program(ids: Tensor, widths: Tensor, cu: Tensor) -> Tensor:
        x = torch.zeros(40).index_copy(0, at(widths), packpass.packed(ids, cu).float())
        return x + ops.position_ids(cu, 40)

    args = torch.arange(4), torch.tensor([2, 4, 3, 3]), torch.tensor([0, 2, 4])
    report = explained(program, *args)
    assert remaps(report) == []
    torch.testing.assert_close(report.result, program(*args), rtol=0, atol=0)
