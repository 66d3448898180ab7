"""Boundaries that count tokens before expansion cut the expanded row where its documents end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass import ops
from tests.passes import expansion_programs as programs
from tests.passes.expansion_data import (
    EMPTY,
    EQUAL,
    LONGER,
    ONE,
    OPTIONS,
    ROW,
    TAILS,
    Documents,
    codes,
    explained,
    first,
    remaps,
)  # fmt: skip


def check(program: Any, documents: Documents, evidence: str, dtype: torch.dtype = torch.int32) -> packpass.Report:
    """Rewritten once, and then as with the right boundaries, which the stale ones do not give."""
    args, (before, after) = documents.arguments(), documents.boundaries(dtype)
    want, stale = first(program(*args, before, after)), first(program(*args, before))
    report = explained(program, *args, before)
    torch.testing.assert_close(first(report.result), want)
    assert not torch.equal(stale, want), "nothing to see"
    (rewrite,) = remaps(report)
    assert rewrite.details["evidence"] == evidence
    assert codes(report) == [] and report.graphs == 1
    return report


@pytest.mark.parametrize("expand", programs.EXPANSIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("evidence", ["declared", "named"])
def test_expansions(expand: Any, evidence: str) -> None:
    make, kind = {"declared": (programs.declared, "declared"), "named": (programs.named, "input")}[evidence]
    check(make(expand, programs.attend), ROW, kind)


@pytest.mark.parametrize("use", programs.USES, ids=lambda f: f.__name__)
def test_uses(use: Any) -> None:
    check(programs.declared(programs.last_slots, use), ROW, "declared")


@pytest.mark.parametrize("use", [programs.attend, programs.block_diagonal, programs.positions_by_hand])
def test_proof_by_use(use: Any) -> None:
    report = check(programs.used(programs.repeated, use), TAILS, "use")
    args, (before, _) = TAILS.arguments(), TAILS.boundaries()
    assert torch.equal(report.result[1], ops.packed_roll(args[0], before, -1, fill=-100))


@pytest.mark.parametrize("documents", [EMPTY, ONE, TAILS, LONGER], ids=["empty", "one", "tails", "longer"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_documents(documents: Documents, dtype: torch.dtype) -> None:
    check(programs.declared(programs.last_slots, programs.attend), documents, "declared", dtype)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True)
def test_merge_of_llava() -> None:
    """The number of text tokens is a size that depends on data."""
    check(programs.named(programs.llava_merge, programs.attend), EQUAL, "input")


def test_labels_that_are_rolled() -> None:
    """`pack_shifts` sees the new boundaries, also where no attention tells it."""

    def program(ids: Tensor, features: Tensor, sizes: Tensor, cu: Tensor, after: Tensor | None = None) -> Tensor:
        ids = packpass.packed(ids, cu)
        widths = programs.widths_of(ids, sizes)[0]
        labels = torch.repeat_interleave(ids[0], widths, output_size=programs.total_of(ids, features, sizes))
        at = ops.position_ids(cu if after is None else after, labels.shape[0])
        y = torch.roll(labels, -1)
        y[-1] = -100
        return y * 1000 + at

    args, (before, after) = ROW.arguments(), ROW.boundaries()
    report = explained(program, *args, before)
    labels = torch.repeat_interleave(args[0][0], programs.widths_of(args[0], args[2])[0])
    want = ops.packed_roll(labels, after, -1, fill=-100) * 1000 + ops.position_ids(after, labels.shape[0])
    assert torch.equal(report.result, want)
    assert [rewrite.rule for rewrite in report.rewrites] == ["remap_boundaries", "pack_shifts"]


@pytest.mark.parametrize("make", [programs.declared, programs.named])
def test_positions_before_the_row_is_there(make: Any) -> None:
    """The boundaries are used before anything says how wide tokens become: that moves to the front."""

    def expand(ids: Tensor, features: Tensor, sizes: Tensor) -> Tensor:
        return ids, features, sizes  # type: ignore[return-value]

    def use(row: tuple[Tensor, Tensor, Tensor], cu: Tensor) -> Tensor:
        at = ops.position_ids(cu, programs.total_of(*row))[:, None, None]
        return programs.attend(programs.last_slots(*row), cu) * at

    check(make(expand, use), ROW, "declared" if make is programs.declared else "input")


def test_padded_boundaries() -> None:
    """Documents with slots that hold no token: both sets are remapped, each in its way."""

    def program(
        ids: Tensor, widths: Tensor, cu: Tensor, padded: Tensor, after: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        ids = packpass.packed(ids, cu, cu_seqlens_padded=padded)
        x = torch.repeat_interleave(ids, widths, output_size=25)
        cu, padded = after or (cu, padded)
        return ops.packed_roll(x, cu, -1, fill=-1, cu_seqlens_padded=padded)

    ids, widths = torch.arange(12), torch.tensor([1, 3, 1, 1, 1, 4, 1, 5, 1, 1, 1, 5])
    cu, padded = torch.tensor([0, 3, 6, 9]), torch.tensor([0, 4, 8, 12])
    right = ops.remap_cu_seqlens(cu, widths, cu_seqlens_padded=padded)
    report = explained(program, ids, widths, cu, padded)
    assert torch.equal(report.result, program(ids, widths, cu, padded, right))
    assert not torch.equal(report.result, program(ids, widths, cu, padded))
    assert remaps(report)[0].details["padded"]


@pytest.mark.parametrize("rank", [0, 1])
def test_partition_over_ranks(rank: int) -> None:
    """The zigzag shard is cut from the documents as they are after expansion, and so is what is done to it."""

    def use(x: Tensor, cu: Tensor) -> Tensor:
        shard = torch.ops.packpass.cp_partition.default(x, cu, 1, rank, 2)
        return shard * 2

    check(programs.declared(programs.last_slots, use), Documents(("..5.", "5...", ".5.5")), "declared")


@torch.library.custom_op("packpass_tests::flash_varlen", mutates_args=())
def flash_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int
) -> Tensor:
    """Somebody's kernel: its launch covers the longest document, as it is told."""
    longest = min(max_seqlen_q, max_seqlen_k)
    out = ops.varlen_attention(q, k, v, cu_seqlens_q, cu_seqlens_k)
    return torch.where((ops.position_ids(cu_seqlens_q, q.shape[0]) < longest)[:, None, None], out, torch.nan)


@flash_varlen.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(q)


def test_the_longest_document_is_stale_as_well() -> None:
    def program(
        input_ids: Tensor, features: Tensor, sizes: Tensor, cu_seq_lens_q: Tensor, cu_seq_lens_k: Tensor, longest: int
    ) -> Tensor:
        q = programs.heads(programs.last_slots(input_ids, features, sizes))
        return flash_varlen(q, q, q, cu_seq_lens_q, cu_seq_lens_k, longest, longest)

    args, (before, after) = ROW.arguments(), ROW.boundaries()
    report = explained(program, *args, before, before.clone(), 5)
    torch.testing.assert_close(report.result, program(*args, after, after, 12))
    assert len(remaps(report)) == 1


@pytest.mark.parametrize("make", [programs.declared, programs.named])
def test_two_graphs_for_all_lengths(make: Any) -> None:
    """N = 1 included; the values of every call, not only of the first."""
    torch._dynamo.reset()
    program = make(programs.last_slots, programs.early_positions)
    compiled = torch.compile(program, backend=packpass.backend, fullgraph=True, options=OPTIONS)
    torch._dynamo.utils.counters.clear()
    for documents in (ROW, LONGER, ONE, EMPTY):
        args, (before, after) = documents.arguments(), documents.boundaries()
        torch.testing.assert_close(compiled(*args, before), program(*args, before, after))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_inductor_forward_and_backward() -> None:
    torch._dynamo.reset()
    program = programs.named(programs.last_slots, programs.attend)
    compiled = torch.compile(program, backend=packpass.backend, fullgraph=True)
    (ids, features, sizes), (before, after) = ROW.arguments(), ROW.boundaries()
    grads = []
    for fn, boundaries in ((compiled, (before,)), (program, (before, after))):
        leaf = features.clone().requires_grad_()
        out = fn(ids, leaf, sizes, *boundaries)
        (out * out.detach().cos()).sum().backward()
        grads += [out.detach(), leaf.grad]
    torch.testing.assert_close(grads[0], grads[2])
    torch.testing.assert_close(grads[1], grads[3])


def test_another_documents_nan_stays_there() -> None:
    program = programs.declared(programs.last_slots, programs.attend)
    (ids, features, sizes), (before, after) = ROW.arguments(), ROW.boundaries()
    features[:3] = torch.nan  # the first document's image
    out = explained(program, ids, features, sizes, before).result
    assert out[: after[1]].isnan().any() and not out[after[1] :].isnan().any()


def test_report_names_lines() -> None:
    report = check(programs.declared(programs.last_slots, programs.attend), ROW, "declared")
    (rewrite,) = remaps(report)
    assert "expansion_programs.py:" in rewrite.location and "remap_cu_seqlens" in rewrite.after
    assert rewrite.details["source"].startswith("packpass.packed at ")
    assert "expansion_programs.py:" in rewrite.details["expansion"]


def test_features_that_do_not_match_placeholders() -> None:
    """A declared row: an error with numbers, before tokens are put behind the end of the row."""
    program = programs.declared(programs.last_slots, programs.attend)
    (ids, features, sizes), (before, _) = ROW.arguments(), ROW.boundaries()
    compiled = torch.compile(program, backend=packpass.backend, fullgraph=True, options=OPTIONS)
    with pytest.raises(ValueError, match=r"13 tokens expand to 23 slots, 14 of them for 4 placeholders, but .* has 21"):
        compiled(ids, features[:-2], sizes, before)
    with pytest.raises(ValueError, match=r"token 1 expands to -3 slots"):
        compiled(ids, features, -sizes, before)
