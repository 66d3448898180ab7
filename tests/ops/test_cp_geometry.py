"""Where the slots of a context-parallel group lie, and what the CP ops check, in one process without a group."""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from packpass.ops import _cp_halo, _cp_layout
from tests.ops import reference

OPS = torch.ops.packpass


def rows_by_definition(cu: list[int], total: int, size: int, inverse: bool, zigzag: bool = True) -> Tensor:
    """The docstring of `_cp_layout`, with the tails."""
    shards: list[list[int]] = [[] for _ in range(size)]
    for i, (start, stop) in enumerate(pairwise([0, *cu, total])):
        tail = i in (0, len(cu)) or not zigzag
        parts = size if tail else 2 * size
        length = (stop - start) // parts
        chunks = [list(range(start + c * length, start + (c + 1) * length)) for c in range(parts)]
        for r in range(size):
            shards[r] += chunks[r] if tail else chunks[r] + chunks[2 * size - 1 - r]
    slots = torch.tensor([slot for shard in shards for slot in shard], dtype=torch.int64)
    return slots if inverse else slots.argsort()


def boundaries(
    size: int, lengths: list[int], head: int = 0, dtype: torch.dtype = torch.int32, zigzag: bool = True
) -> Tensor:
    """Documents of ``2 * size * length`` slots (without zigzag, ``size * length``) behind ``head * size`` of tail."""
    chunks = size * (1 + zigzag)
    return torch.tensor([head * size, *(chunks * n for n in lengths)], dtype=dtype).cumsum(0, dtype=dtype)


CASES = {
    "one document": ([3], 0, 0),
    "documents": ([2, 5, 1, 4], 0, 0),
    "empty documents": ([0, 2, 0, 0, 1, 0], 0, 0),
    "tails": ([2, 1], 3, 5),
    "only tails": ([0], 2, 3),
    "no document": ([], 2, 1),
    "nothing": ([], 0, 0),
}


@pytest.mark.parametrize("zigzag", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("case", CASES)
def test_rows(case: str, size: int, zigzag: bool) -> None:
    lengths, head, tail = CASES[case]
    for dtype, inverse in itertools.product((torch.int32, torch.int64), (False, True)):
        cu = boundaries(size, lengths, head, dtype, zigzag)
        total = int(cu[-1]) + tail * size
        expected = rows_by_definition(cu.tolist(), total, size, inverse, zigzag)
        assert torch.equal(OPS.shard_rows(cu, total // size, size, inverse, zigzag), expected)
        assert torch.equal(OPS.host_shard_rows(cu, total // size, size, inverse, zigzag), expected)
        assert torch.equal(_cp_layout.tensor_form(cu, total // size, size, inverse, zigzag), expected)
        if total:
            assert torch.equal(_cp_layout.search_form(cu, total // size, size, inverse, zigzag), expected)


@pytest.mark.parametrize("form", [_cp_layout.search_form, OPS.shard_rows])
def test_both_directions_undo_each_other(form) -> None:  # type: ignore[no-untyped-def]
    cu = boundaries(4, [2, 0, 7, 1], 1)
    local = int(cu[-1]) // 4 + 2
    rows, slots = form(cu, local, 4, False), form(cu, local, 4, True)
    assert torch.equal(rows[slots], torch.arange(4 * local))


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _cp_layout._native() is not None
    cu = boundaries(2, [1, 3], 1)
    expected = OPS.shard_rows(cu, 10, 2, True)
    monkeypatch.setattr(_cp_layout, "_native", lambda: None)
    assert torch.equal(OPS.shard_rows(cu, 10, 2, True), expected)


WRONG = {
    "divides by the size only": ([0, 8, 12, 20], "document 1 has 4 slots .* 2 \\* the .* size = 8"),
    "divides by nothing": (
        [0, 8, 16, 23],
        "document 2 has 7 slots .cu_seqlens.2. = 16, cu_seqlens.3. = 23",
    ),
    "first document": ([0, 5, 13], "document 0 has 5 slots"),
    "falling": ([0, 16, 8], "cu_seqlens\\[2\\] = 8 is smaller than cu_seqlens\\[1\\] = 16"),
    "too long": ([0, 32], "cu_seqlens\\[1\\] = 32 is beyond the 24 slots"),
    "negative": ([-8, 8], "cu_seqlens\\[0\\] = -8 is negative"),
    "head": ([2, 10], "cu_seqlens\\[0\\] = 2 does not divide by .* size 4"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_boundaries_name_the_document(case: str) -> None:
    cu, message = torch.tensor(WRONG[case][0], dtype=torch.int32), WRONG[case][1]
    for check in (
        lambda: OPS.check_shards(cu, 6, 4),
        lambda: OPS.shard_rows(cu, 6, 4, False),
        lambda: OPS.host_shard_rows(cu, 6, 4, True),
    ):
        with pytest.raises(ValueError, match=message):
            check()
    with pytest.raises(RuntimeError, match="packpass: "):  # what a GPU asserts asynchronously
        _cp_layout.assert_shards(cu, 6, 4)
    for inverse in (False, True):  # no index that leaves the row, whatever the boundaries
        slots = _cp_layout.search_form(cu, 6, 4, inverse)
        assert 0 <= int(slots.min()) <= int(slots.max()) < 24


def test_pieces_divide_by_the_size_only() -> None:
    good, wrong = torch.tensor([0, 4, 24], dtype=torch.int32), torch.tensor([0, 4, 10, 24], dtype=torch.int32)
    OPS.shard_rows(good, 6, 4, False, False)
    for op in (OPS.shard_rows, OPS.host_shard_rows):
        with pytest.raises(ValueError, match="document 1 has 6 slots .* by the .* size = 4"):
            op(wrong, 6, 4, False, False)
    with pytest.raises(RuntimeError, match="packpass: every document's length must divide by the .* size = 4"):
        _cp_layout.assert_shards(wrong, 6, 4, False)


def test_good_boundaries_pass() -> None:
    for cu in (boundaries(4, [1, 0, 2]), boundaries(4, []), boundaries(4, [2], 1)):
        OPS.check_shards(cu, 7, 4)
        _cp_layout.assert_shards(cu, 7, 4)


def test_opcheck() -> None:
    cu = boundaries(2, [1, 2], 1)
    for op in (OPS.shard_rows.default, OPS.host_shard_rows.default):
        torch.library.opcheck(op, (cu, 9, 2, True))
        torch.library.opcheck(op, (cu, 9, 2, True, False))
    torch.library.opcheck(OPS.check_shards.default, (cu, 9, 2))


def test_check_is_impure() -> None:
    graph = torch.fx.Graph()
    cu = graph.placeholder("cu")
    for op in (OPS.check_shards.default, OPS.host_check_shards.default):
        assert graph.call_function(op, (cu, 4, 2)).is_impure()


# === Rolls ======================================================================================================


def test_every_slot_is_found() -> None:
    """`locate` against the shards by definition, inside of documents and around them."""
    size, lengths = 3, [2, 1, 0, 4]
    cu = boundaries(size, lengths)
    total = int(cu[-1])
    rows = rows_by_definition(cu.tolist(), total, size, False)
    shards = _cp_halo.shards_of(cu, size)
    for d, n in enumerate(lengths):
        if n == 0:
            continue
        positions = torch.arange(-5, 2 * size * n + 5).expand(len(cu), -1)
        found = _cp_halo.locate(positions, shards, size)
        slots = cu[d] + positions[d] % (2 * size * n)
        assert torch.equal(found.rank[d] * (total // size) + found.slot[d], rows[slots])
        assert torch.equal(found.exists[d], (positions[d] >= 0) & (positions[d] < 2 * size * n))


def test_chunk_edges() -> None:
    assert _cp_halo.chunk_edges(boundaries(2, [1, 0, 3], 1), 2).tolist() == [1, 2, 3, 3, 3, 6, 9, 9]


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.uint16,
    ],
)  # fmt: skip
def test_words_keep_every_bit(dtype: torch.dtype) -> None:
    x = reference.sample(dtype, 6)
    if dtype.is_floating_point and dtype.itemsize > 1:
        x = torch.cat([-x, torch.tensor([float("nan"), float("inf"), -0.0]).to(dtype)])
    words = _cp_halo._as_words(x)
    assert words.dtype is torch.int64
    assert reference.same(_cp_halo._from_words(words, dtype), x)
