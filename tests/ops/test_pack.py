"""pack and unpack in eager mode against loops over rows: masks, alignment, capacity, fields, dtypes, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import packpass
from packpass.ops import PackedBatch, _pack_plan, _pack_rows, pack, unpack
from tests.ops import packing, reference
from tests.ops.test_packed_roll import DTYPES, NoHostSync


def field(keep: Tensor, *inner: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return reference.sample(dtype, *keep.shape, *inner)


@pytest.mark.parametrize("name", packing.MASKS)
@pytest.mark.parametrize("multiple", [1, 2, 4, 7])
@pytest.mark.parametrize("spare", [None, 0, 1, 9])
def test_against_loops(name: str, multiple: int, spare: int | None) -> None:
    keep = packing.mask_of(name)
    for x in (field(keep), field(keep, 3)):
        least = packing.expected(x, keep, multiple, -3).packed.shape[0]
        total = None if spare is None else least + spare
        want = packing.expected(x, keep, multiple, -3, total)
        packed, batch = pack(x, keep, multiple_of=multiple, fill=-3, total=total)
        assert torch.equal(packed, want.packed)
        packing.check_fields(batch, want)
        lengths = [b - a for a, b in zip(want.cu, want.cu[1:], strict=False)]
        assert batch.max_seqlen == (max(lengths, default=0) if total is None else keep.shape[1])
        assert (batch.batch_size, batch.seq_len) == tuple(keep.shape)
        back = unpack(packed, batch, fill=8)
        assert torch.equal(back, packing.back(packed, keep, want.cu_padded, 8))
        assert packed.is_contiguous()
        assert back.is_contiguous()


@pytest.mark.parametrize("kind", [torch.bool, torch.int32, torch.int64, torch.uint8, torch.int8])
def test_masks_of_every_kind(kind: torch.dtype) -> None:
    keep = packing.mask_of("holes")
    mask = (keep * 5).to(kind)
    packed, batch = pack(field(keep), mask)
    packing.check_fields(batch, packing.expected(field(keep), keep))
    strided = mask.t().contiguous().t()
    assert torch.equal(pack(field(keep), strided)[0], packed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inner", [(), (3,), (2, 2)])
def test_dtypes(dtype: torch.dtype, inner: tuple[int, ...]) -> None:
    """By the bits, also of the fill in slots and padding."""
    keep = packing.mask_of("both sides")
    x = field(keep, *inner, dtype=dtype)
    packed, batch = pack(x, keep, multiple_of=4, fill=1)
    filled = torch.ones(keep.shape).view(*keep.shape, *[1] * len(inner)).expand(x.shape).to(dtype)

    def bits(t: Tensor) -> Tensor:
        return t.unsqueeze(-1).contiguous().view(torch.uint8)

    real = (~batch.padding_mask).view(-1, *[1] * (len(inner) + 1))
    ones = packing.expected(bits(filled), torch.ones(3, 5), total=packed.shape[0] + 7).packed[: packed.shape[0]]
    want = packing.expected(bits(x), keep, 4).packed
    assert torch.equal(bits(packed), torch.where(real, want, ones))
    back = packing.back(bits(packed), keep, batch.cu_seqlens_padded.tolist())
    hidden = (keep == 0).view(3, 5, *[1] * (len(inner) + 1))
    assert torch.equal(bits(unpack(packed, batch, fill=1)), torch.where(hidden, bits(filled), back))


def test_views_that_are_not_plain_memory() -> None:
    keep = packing.mask_of("holes")
    x = torch.randn(3, 5, 4, dtype=torch.complex64)
    cases = [
        x.conj(),
        x.conj().imag,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x[..., ::2],
        x[..., :1].expand(-1, -1, 6),
    ]
    for case in cases:
        plain = case.clone().resolve_conj().resolve_neg()
        packed, batch = pack(case, keep)
        assert torch.equal(packed, packing.expected(plain, keep).packed)
        assert torch.equal(
            unpack(packed.t() if packed.dim() == 1 else packed, batch),
            packing.back(packed, keep, batch.cu_seqlens.tolist()),
        )
    wide = torch.randn(8, 4)
    narrow = wide[:, ::2]
    batch = pack(field(keep), keep, total=9)[1]
    with pytest.raises(ValueError, match="must have the 9 slots"):
        unpack(narrow, batch)
    narrow = torch.randn(9, 4)[:, ::2]
    assert torch.equal(unpack(narrow, batch), packing.back(narrow, keep, batch.cu_seqlens.tolist()))


# === The kernels: C++, torch on any device, the forms of generated code =========================================


def plans(keep: Tensor, multiple: int, total: int) -> list[tuple[Tensor, ...]]:
    cu, cu_padded = _pack_plan._boundaries(keep, multiple)
    return [
        _pack_plan.pack_plan_op(keep, multiple, total),
        _pack_plan._kernel(keep, multiple, total),
        _pack_plan._plan(keep, cu, cu_padded, total),
    ]


@pytest.mark.parametrize("name", packing.MASKS)
@pytest.mark.parametrize("multiple", [1, 4])
def test_all_kernels_are_one(name: str, multiple: int) -> None:
    keep = packing.mask_of(name) != 0
    total = int(_pack_plan.pack_sizes_op(keep, multiple)[0]) + 3
    assert torch.equal(_pack_plan._sizes(keep, multiple), _pack_plan.pack_sizes_op(keep, multiple))
    ours, *others = plans(keep, multiple, total)
    for other in others:
        for mine, theirs in zip(ours, other, strict=True):
            assert reference.same(mine, theirs)
    cu, cu_padded, source, slots, *_ = ours
    plan = (source, slots, cu, cu_padded)
    for dtype, inner in ((torch.float32, ()), (torch.bfloat16, (3,)), (torch.complex128, ()), (torch.bool, (2, 1))):
        x = field(keep, *inner, dtype=dtype)
        (packed,) = torch.ops.packpass.pack(*([x], *plan), [1])
        assert reference.same(packed, _pack_rows._pack([x], *plan, [1])[0])
        assert reference.same(
            torch.ops.packpass.unpack([packed], *plan, [1])[0], _pack_rows._unpack([packed], *plan, [1])[0]
        )


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = packing.mask_of("holes")
    x = field(keep, 2)
    packed, batch = pack(x, keep, multiple_of=4)
    for module in (_pack_plan, _pack_rows):
        monkeypatch.setattr(module, "native", lambda name: None)
    plain, plain_batch = pack(x, keep, multiple_of=4)
    assert torch.equal(packed, plain)
    assert torch.equal(batch.slots, plain_batch.slots)
    assert torch.equal(unpack(plain, plain_batch), unpack(packed, batch))


@pytest.mark.parametrize("threads", [1, 3])
def test_large_batches(threads: int) -> None:
    """Several blocks per row, and enough bytes for threads."""
    generator = torch.Generator().manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for shares in ((0.0, 0.7), (0.02, 1.0)):
            keep = torch.rand(7, 300, generator=generator) > shares[0]
            keep &= torch.arange(300) < (torch.rand(7, 1, generator=generator) * 300 * shares[1])
            for inner in ((), (70,)):
                x = torch.randn(7, 300, *inner, generator=generator)
                packed, batch = pack(x, keep, multiple_of=8, total=2400)
                order = keep.flatten().nonzero().squeeze(1)
                assert torch.equal(packed[~batch.padding_mask], x.flatten(0, 1)[order])
                assert not packed[batch.padding_mask].any()
                back = unpack(packed, batch, fill=2)
                assert torch.equal(back, torch.where(keep.view(7, 300, *[1] * len(inner)), x, 2.0))
    finally:
        torch.set_num_threads(before)


def test_alignment_that_hides_a_hole() -> None:
    """A slot that pads stands exactly where one padded token was left out: sources keep step across it."""
    keep = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    x = torch.arange(8.0).view(2, 4)
    packed, batch = pack(x, keep, multiple_of=2, fill=-1)
    assert packed.tolist() == [0, 1, 2, -1, 4, 5, 6, 7]
    assert unpack(packed, batch, fill=-2).tolist() == [[0, 1, 2, -2], [4, 5, 6, 7]]


def test_changed_boundaries_never_reach_outside() -> None:
    """A batch whose boundaries were replaced moves by its indices alone, or as if they were right; nothing worse."""
    keep = packing.mask_of("right")
    x = field(keep)
    packed, batch = pack(x, keep, total=12)
    for cu in ([0, 900, 901, 902], [5, 4, 3, 2], [-7, 0, 4, 5], [0, 0, 0, 12]):
        changed = torch.tensor(cu, dtype=torch.int32)
        other = dataclasses.replace(batch, cu_seqlens=changed, cu_seqlens_padded=changed)
        assert unpack(packed, other).shape == keep.shape


# === Without a host sync, or with one ===========================================================================


def test_no_host_sync_with_a_capacity() -> None:
    keep = packing.mask_of("holes") != 0
    with NoHostSync():
        plan = _pack_plan._kernel(keep, 4, 20)
        packed = _pack_rows._pack([field(keep, 2)], plan[2], plan[3], *plan[:2], [0])
        _pack_rows._unpack(packed, plan[2], plan[3], *plan[:2], [0])
        pack(field(keep), keep, multiple_of=4, total=20)
        four = packing.attention(keep, True)
        pack(field(keep), four, total=20)


@pytest.mark.parametrize("four", [False, True])
def test_one_host_sync_without(four: bool) -> None:
    keep = packing.mask_of("holes")
    fetched: list[Any] = []
    tolist = Tensor.tolist

    def spy(self: Tensor) -> Any:
        fetched.append(self.shape)
        return tolist(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "tolist", spy)
        pack(field(keep), packing.attention(keep, False) if four else keep)
    assert len(fetched) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "tolist", spy)
        pack(field(keep), keep, total=20)
    assert len(fetched) == 1


# === Several fields =============================================================================================


def test_fields() -> None:
    keep = packing.mask_of("left")
    ids, labels, hidden = field(keep, dtype=torch.int64), field(keep, dtype=torch.int32), field(keep, 4)
    one = pack(ids, keep, multiple_of=4)[0]
    (a, b, c), batch = pack((ids, labels, hidden), keep, multiple_of=4, fill=(0, -100, 0.5))
    assert torch.equal(a, one)
    assert torch.equal(b, packing.expected(labels, keep, 4, -100).packed)
    assert torch.equal(c, packing.expected(hidden, keep, 4, 0.5).packed)
    as_list, _ = pack([ids, labels], keep, multiple_of=4, fill=7)
    assert isinstance(as_list, list)
    assert torch.equal(as_list[1], packing.expected(labels, keep, 4, 7).packed)
    named, _ = pack({"ids": ids, "labels": labels}, keep, multiple_of=4, fill={"labels": -100})
    assert list(named) == ["ids", "labels"]
    assert torch.equal(named["ids"], a)
    assert torch.equal(named["labels"], b)
    back = unpack({"ids": a, "h": c}, batch, fill={"h": 2})
    assert torch.equal(back["ids"], packing.back(a, keep, batch.cu_seqlens_padded.tolist()))
    assert torch.equal(back["h"], packing.back(c, keep, batch.cu_seqlens_padded.tolist(), 2))
    assert isinstance(unpack((a,), batch), tuple)


def test_packed_batch() -> None:
    keep = packing.mask_of("holes")
    assert packpass.PackedBatch is PackedBatch
    packed, batch = pack(field(keep), keep)
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.max_seqlen = 3  # type: ignore[misc]
    leaves, spec = pytree.tree_flatten(batch)
    assert sum(isinstance(leaf, Tensor) for leaf in leaves) == 6
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, PackedBatch)
    assert torch.equal(unpack(packed, again), unpack(packed, batch))


# === Gradients ==================================================================================================


def test_gradients() -> None:
    keep = packing.mask_of("both sides")
    x = torch.randn(3, 5, 2, dtype=torch.double, requires_grad=True)
    y = torch.randn(12, 2, dtype=torch.double, requires_grad=True)
    batch = pack(x.detach(), keep, multiple_of=4, total=12)[1]

    def both(x: Tensor) -> Any:
        return pack([x, x * 2], keep, multiple_of=4, total=12, fill=[0.5, 1])[0]

    assert torch.autograd.gradcheck(both, x)
    assert torch.autograd.gradgradcheck(both, x)
    assert torch.autograd.gradcheck(lambda y: unpack(y, batch, fill=3), y)
    assert torch.autograd.gradgradcheck(lambda y: unpack(y, batch, fill=3), y)


def test_backward_of_one_is_the_other() -> None:
    keep = packing.mask_of("holes")
    x = torch.randn(3, 5, 2, requires_grad=True)
    unused = torch.randn(3, 5, requires_grad=True)
    ids = torch.arange(15).view(3, 5)
    (packed, _, moved), batch = pack([x, unused, ids], keep, multiple_of=4)
    assert not moved.requires_grad
    seen: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(str(func))
            if str(func) == "packpass.unpack.default":
                seen.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    weights = torch.randn_like(packed)
    with Record():
        (grad, none) = torch.autograd.grad(packed, [x, unused], weights, allow_unused=True)
    assert none is None
    assert torch.equal(grad, packing.back(weights, keep, batch.cu_seqlens_padded.tolist()))
    assert [name for name in seen if "packpass" in str(name)] == ["packpass.unpack.default"]
    assert seen[seen.index("packpass.unpack.default") + 1] == 1  # gradients that there are, and no zeros for others
    assert not any("scatter" in str(n) or "index_add" in str(n) or "index_put" in str(n) for n in seen)


def test_nothing_leaks_from_padding() -> None:
    keep = packing.mask_of("holes") != 0
    x = torch.randn(3, 5, 2)
    poisoned = torch.where(keep.unsqueeze(2), x, torch.nan).requires_grad_()
    packed, batch = pack(poisoned, keep, multiple_of=4)
    assert packed.isfinite().all()
    holes = torch.where(batch.padding_mask.unsqueeze(1), torch.inf, packed)
    assert unpack(holes, batch).isfinite().all()
    weights = torch.where(batch.padding_mask.unsqueeze(1), torch.nan, torch.ones(12, 2))
    (grad,) = torch.autograd.grad(packed, poisoned, weights)
    assert torch.equal(grad, keep.unsqueeze(2).float().expand(3, 5, 2))


KEEP = packing.mask_of("both sides") != 0
PLAN = _pack_plan.pack_plan_op(KEEP, 2, 11)
MOVES = (PLAN[2], PLAN[3], PLAN[0], PLAN[1])
OPCHECKS = {
    "pack_plan": (KEEP, 2, 11),
    "host_pack_plan": (KEEP, 2, 11),
    "pack_sizes": (KEEP, 2),
    "host_pack_sizes": (KEEP, 2),
    "pack": ([torch.randn(3, 5, 2, requires_grad=True), torch.arange(15).view(3, 5)], *MOVES, [0.5, -100]),
    "pack strided": ([torch.randn(5, 3, requires_grad=True).t()], *MOVES, [0]),
    "host_pack": ([torch.randn(3, 5, 2)], *MOVES, [0]),
    "unpack": ([torch.randn(11, 2, requires_grad=True), torch.arange(11)], *MOVES, [0, 1]),
    "host_unpack": ([torch.randn(11)], *MOVES, [0]),
    "real_tokens": (packing.attention(KEEP, True), True),
    "real_tokens 0 and 1": (KEEP.float(), True),
    "host_real_tokens": (packing.attention(KEEP, False), False),
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_opcheck(case: str) -> None:
    op = getattr(torch.ops.packpass, case.split()[0]).default
    torch.library.opcheck(op, OPCHECKS[case])


# === Errors =====================================================================================================

X, MASK = torch.zeros(3, 5), packing.mask_of("right")
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "capacity": (
        lambda: pack(X, MASK, total=8), ValueError,
        "row 2 with 5 real tokens needs 5 slots behind the 4 of the rows before it, but total is 8; all 3 rows need 9",
    ),
    "capacity, aligned": (
        lambda: pack(X, MASK, total=9, multiple_of=4), ValueError, "row 2 with 5 real tokens needs 8 slots behind the 8"
    ),
    "no capacity": (lambda: pack(X, MASK, total=-1), ValueError, "total must be 0 or more slots, got -1"),
    "kind of capacity": (lambda: pack(X, MASK, total=4.0), TypeError, "total must be an int"),  # type: ignore[arg-type]
    "multiple": (lambda: pack(X, MASK, multiple_of=0), ValueError, "multiple_of must be at least 1, got 0"),
    "shape of the mask": (
        lambda: pack(X, MASK[:2]), ValueError,
        "x must be [B, S, ...] = [2, 5, ...] as the mask (2, 5) has it, got shape (3, 5)",
    ),
    "length of the mask": (lambda: pack([X, X[:, :4]], MASK), ValueError, "x[1] must be"),
    "one dimension": (lambda: pack(X, MASK[0]), ValueError, "mask must be [B, S] (real tokens) or [B, H, S, S]"),
    "three dimensions": (lambda: pack(X, MASK[None]), ValueError, "got shape (1, 3, 5)"),
    "queries and keys": (lambda: pack(X, torch.ones(3, 1, 2, 5).bool()), ValueError, "2 queries and 5 keys"),
    "complex mask": (lambda: pack(X, MASK.to(torch.complex64)), TypeError, "bool, int or floating point, got torch.c"),
    "no tensor": (lambda: pack(X, MASK.tolist()), TypeError, "mask must be a Tensor, got list"),  # type: ignore[arg-type]
    "no field": (lambda: pack([], MASK), ValueError, "x must hold at least one tensor"),
    "kind of field": (lambda: pack(["a"], MASK), TypeError, "x[0] must be a Tensor, got str"),  # type: ignore[list-item]
    "kind of fields": (lambda: pack(3, MASK), TypeError, "x must be a Tensor or a list"),  # type: ignore[type-var]
    "fills": (lambda: pack([X, X], MASK, fill=[0]), ValueError, "got 1 for 2"),
    "name of a fill": (
        lambda: pack({"a": X}, MASK, fill={"b": 1}), ValueError, "fill names 'b', which is none of the fields ['a']"
    ),
    "no fill": (lambda: pack(X, MASK, fill=None), TypeError, "fill must be a number, got None"),  # type: ignore
    "fill of a dtype": (lambda: pack(X.byte(), MASK, fill=-100), ValueError, "fill must be an integer in [0, 255]"),
    "slots": (
        lambda: unpack(torch.zeros(4), pack(X, MASK)[1]), ValueError,
        "packed must have the 9 slots of the batch first, got shape (4,)",
    ),
    "no batch": (lambda: unpack(torch.zeros(4), MASK), TypeError, "batch must be the PackedBatch"),  # type: ignore[arg-type]
    "device": (lambda: pack(X.to("meta"), MASK), ValueError, "x must be on the device of the mask (cpu), got meta"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind) as error:
        call()
    assert message in str(error.value)


def test_capacity_is_asserted_where_values_cannot_be_read() -> None:
    with pytest.raises(RuntimeError, match="do not fit the total number of slots"):
        _pack_plan._kernel(MASK != 0, 1, 8)
    with pytest.raises(ValueError, match="does not fit the plan"):
        torch.ops.packpass.pack([torch.zeros(2, 2)], *MOVES, [0])
