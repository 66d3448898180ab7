"""Properties of pack, unpack, remap_cu_seqlens and cp_partition for any batch, found by hypothesis."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from packpass.ops import _pack_plan as plans
from packpass.ops import _remap_cu_seqlens as remap
from packpass.ops import cp_partition, pack, position_ids, remap_cu_seqlens, unpack
from tests.dist import naive
from tests.ops import packing, reference

MANY = settings(max_examples=100, deadline=None, derandomize=True)


@st.composite
def masks(draw: st.DrawFn, longest: int = 12) -> Tensor:
    """Left, right, holes: any bits at all, with full and empty rows more often than chance has it."""
    rows, length = draw(st.integers(0, 5)), draw(st.integers(1, longest))
    row = st.one_of(
        st.lists(st.booleans(), min_size=length, max_size=length),
        st.integers(0, length).map(lambda n: [s < n for s in range(length)]),
        st.integers(0, length).map(lambda n: [s >= n for s in range(length)]),
    )
    return torch.tensor([draw(row) for _ in range(rows)], dtype=torch.bool).reshape(rows, length)


@MANY
@given(masks(), st.integers(1, 9), st.none() | st.integers(0, 20), st.sampled_from([(), (2,)]))
def test_pack_is_the_loop(keep: Tensor, multiple: int, spare: int | None, inner: tuple[int, ...]) -> None:
    x = reference.sample(torch.int64, *keep.shape, *inner)
    total = None if spare is None else len(packing.expected(x, keep, multiple).packed) + spare
    want = packing.expected(x, keep, multiple, -1, total)
    packed, batch = pack(x, keep, multiple_of=multiple, fill=-1, total=total)
    assert torch.equal(packed, want.packed)
    packing.check_fields(batch, want)
    for ours, generic in zip(
        plans.pack_plan_op(keep, multiple, len(packed)), plans._kernel(keep, multiple, len(packed)), strict=True
    ):
        assert torch.equal(ours, generic)


@MANY
@given(masks(), st.integers(1, 9))
def test_there_and_back(keep: Tensor, multiple: int) -> None:
    x = reference.sample(torch.float32, *keep.shape, 2)
    packed, batch = pack(x, keep, multiple_of=multiple)
    assert torch.equal(unpack(packed, batch, fill=-1), torch.where(keep.unsqueeze(2), x, -1.0))
    again, _ = pack(unpack(packed, batch), keep, multiple_of=multiple)
    assert torch.equal(again, packed)
    real = ~batch.padding_mask
    assert torch.equal(batch.position_ids[real], position_ids(batch.cu_seqlens_padded, len(packed))[real])
    assert int(real.sum()) == int(batch.cu_seqlens[-1]) == int(keep.sum())
    assert int(batch.position_ids.max()) < keep.shape[1] if len(packed) else True


@MANY
@given(masks(), st.integers(1, 5), st.integers(0, 9))
def test_backward_is_the_adjoint(keep: Tensor, multiple: int, spare: int) -> None:
    """<pack(x), g> = <x, backward(g)>, and the same of unpack; exact, because all values are small integers."""
    total = len(packing.expected(keep.float(), keep, multiple).packed) + spare
    x = reference.sample(torch.float64, *keep.shape).requires_grad_()
    packed, batch = pack(x, keep, multiple_of=multiple, total=total)
    g = reference.sample(torch.float64, total).flip(0)
    (grad,) = torch.autograd.grad(packed, x, g)
    assert (packed.detach() * g).sum() == (x.detach() * grad).sum()
    row = g.clone().requires_grad_()
    back = unpack(row, batch)
    (grad,) = torch.autograd.grad(back, row, x.detach())
    assert (back.detach() * x.detach()).sum() == (g * grad).sum()


@MANY
@given(masks(longest=6), st.booleans(), st.booleans())
def test_attention_masks_mean_what_they_are_made_of(keep: Tensor, causal: bool, hidden_queries: bool) -> None:
    mask = packing.attention(keep, causal, hidden_queries=hidden_queries)
    for form in (mask, packing.additive(mask, torch.float32, torch.finfo(torch.float32).min)):
        found = pack(torch.zeros(keep.shape), form)[1]
        assert torch.equal(found.slots >= 0, keep)


@st.composite
def expansions(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    """Padded boundaries, logical boundaries, widths of the slots."""
    total = draw(st.integers(0, 20))
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    padded = torch.tensor(sorted(draw(st.lists(st.integers(0, total), min_size=1, max_size=7))), dtype=dtype)
    lengths = [draw(st.integers(0, room)) for room in padded.diff().tolist()]
    start = draw(st.integers(0, int(padded[0])))
    cu = torch.tensor([start, *lengths], dtype=dtype).cumsum(0, dtype=dtype)
    return padded, cu, draw(st.lists(st.integers(0, 5), min_size=total, max_size=total))


@MANY
@given(expansions())
def test_remap_is_the_loop(case: tuple[Tensor, Tensor, list[int]]) -> None:
    padded, cu, widths = case
    tensor = torch.tensor(widths, dtype=torch.int64)
    expected_padded = [sum(widths[:boundary]) for boundary in padded.tolist()]
    expected = [int(cu[0])]
    for d, (start, stop) in enumerate(pairwise(cu.tolist())):
        first = int(padded[d])
        expected.append(expected[-1] + sum(widths[first : first + stop - start]))
    assert remap_cu_seqlens(padded, tensor).tolist() == expected_padded
    new, new_padded = remap_cu_seqlens(cu, tensor, cu_seqlens_padded=padded)
    assert (new.tolist(), new_padded.tolist()) == (expected, expected_padded)
    assert remap._kernel(cu, tensor, padded).tolist() == expected
    assert remap._kernel(padded, tensor).tolist() == expected_padded
    assert new.dtype == cu.dtype


@MANY
@given(masks(), st.integers(1, 4), st.integers(0, 3))
def test_packed_batches_feed_context_parallel_code(keep: Tensor, cp: int, spare: int) -> None:
    """Aligned rows are cut without a remainder, by the definition of the layout, and nothing is lost."""
    x = reference.sample(torch.float32, *keep.shape, 2)
    least = len(packing.expected(x, keep, 2 * cp).packed)
    packed, batch = pack(x, keep, multiple_of=2 * cp, total=least + spare * cp)
    cu = batch.cu_seqlens_padded
    for rank in range(cp):
        shard = cp_partition(packed, cu, (rank, cp))
        assert torch.equal(shard, naive.shard(packed, cu.tolist(), cp, rank))
