"""remap_cu_seqlens: against sums in loops, in every form of boundaries and widths, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from packpass.ops import _remap_cu_seqlens as remap
from packpass.ops import remap_cu_seqlens, segment_ids
from tests.ops.test_packed_roll import NoHostSync

OPS = torch.ops.packpass
WIDTHS = torch.tensor([1, 4, 1, 0, 1, 1, 9, 1, 2, 1])
CASES = {
    "documents": ([0, 3, 5, 10], [0, 6, 7, 21]),
    "tails": ([1, 3, 7], [1, 6, 17]),
    "empty documents": ([0, 0, 2, 2, 10, 10], [0, 0, 5, 5, 21, 21]),
    "a document that vanishes": ([0, 3, 4, 10], [0, 6, 6, 21]),
    "no document": ([4], [6]),
    "one token each": (list(range(11)), [0, 1, 5, 6, 6, 7, 8, 17, 18, 20, 21]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.int16])
def test_sums(case: str, dtype: torch.dtype, kind: torch.dtype) -> None:
    given, expected = CASES[case]
    cu = torch.tensor(given, dtype=dtype)
    for widths in (WIDTHS.to(kind), WIDTHS.to(kind).view(1, -1)):
        new = remap_cu_seqlens(cu, widths)
        assert new.dtype is dtype
        assert new.tolist() == expected
    assert remap._kernel(cu, WIDTHS.to(kind)).tolist() == expected


def test_the_expansion_itself() -> None:
    """The documents' ids, expanded as the tokens are, are those of the new boundaries."""
    cu = torch.tensor([1, 3, 3, 4, 9], dtype=torch.int32)
    new = remap_cu_seqlens(cu, WIDTHS)
    expanded = torch.repeat_interleave(segment_ids(cu, 10), WIDTHS)
    # An empty document has no token to tell it by; a document of none after expansion has none left.
    assert torch.equal(segment_ids(new, 21), expanded)


def test_dropped_tokens() -> None:
    keep = torch.tensor([True, False, True, True, False])
    assert remap_cu_seqlens(torch.tensor([0, 2, 5]), keep).tolist() == [0, 1, 3]


def test_padded() -> None:
    """5 of 6 and 3 of 4 slots hold tokens; what pads stays as it is and counts in slots alone."""
    cu, padded = torch.tensor([0, 5, 8], dtype=torch.int32), torch.tensor([0, 6, 10], dtype=torch.int32)
    new, new_padded = remap_cu_seqlens(cu, WIDTHS, cu_seqlens_padded=padded)
    assert new.tolist() == [0, 7, 7 + 12]
    assert new_padded.tolist() == [0, 8, 21]
    same, same_padded = remap_cu_seqlens(cu, torch.ones(10, dtype=torch.int64), cu_seqlens_padded=padded)
    assert torch.equal(same, cu)
    assert torch.equal(same_padded, padded)


def test_no_host_sync() -> None:
    with NoHostSync():
        remap._kernel(torch.tensor([1, 4, 9]), WIDTHS)
        remap._kernel(torch.tensor([1, 4, 9]), WIDTHS, torch.tensor([1, 5, 10]))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_one_graph_for_all_sizes(backend: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    def program(cu: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return remap_cu_seqlens(cu, torch.where(ids == 7, 5, 1)), ids + 1

    compiled = torch.compile(program, backend=counter, fullgraph=True, dynamic=True)
    for total, documents in ((20, 4), (33, 1), (21, 2), (40, 7)):
        ids = torch.arange(total) % 9
        cu = torch.linspace(0, total, documents + 1).int()
        assert torch.equal(compiled(cu, ids)[0], program(cu, ids)[0])
    assert counter.frame_count == 1
    if backend == "inductor":
        with pytest.raises((ValueError, RuntimeError), match="nondecreasing|beyond the 20 slots"):
            compiled(torch.tensor([0, 99], dtype=torch.int32), torch.arange(20))


OPCHECKS = {
    "remap_cu_seqlens": (torch.tensor([0, 3, 9]), WIDTHS),
    "remap_cu_seqlens padded": (torch.tensor([0, 3, 9]), WIDTHS, torch.tensor([0, 4, 10])),
    "host_remap_cu_seqlens": (torch.tensor([0, 3, 9], dtype=torch.int32), WIDTHS),
}


@pytest.mark.parametrize("case", OPCHECKS)
def test_opcheck(case: str) -> None:
    torch.library.opcheck(getattr(OPS, case.split()[0]).default, OPCHECKS[case])


CU = torch.tensor([0, 3, 10], dtype=torch.int32)
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "boundary beyond": (lambda: remap_cu_seqlens(CU + 1, WIDTHS), ValueError, r"cu_seqlens\[2\] = 11 is beyond the 10"),
    "boundaries fall": (lambda: remap_cu_seqlens(CU.flip(0), WIDTHS), ValueError, r"cu_seqlens\[1\] = 3 is smaller"),
    "negative": (lambda: remap_cu_seqlens(CU, WIDTHS - 1), ValueError, r"widths\[3\] = -1 is negative"),
    "int32": (lambda: remap_cu_seqlens(CU, WIDTHS * 2**30), ValueError, "do not fit cu_seqlens of dtype torch.int32"),
    "float": (lambda: remap_cu_seqlens(CU, WIDTHS.float()), TypeError, "widths must be int or bool, got torch.float32"),
    "list": (lambda: remap_cu_seqlens(CU, [1, 2]), TypeError, "widths must be a Tensor, got list"),  # type: ignore[call-overload]
    "batch": (lambda: remap_cu_seqlens(CU, WIDTHS.view(2, 5)), ValueError, r"\[T\] or \[1, T\], got shape \(2, 5\)"),
    "documents": (
        lambda: remap_cu_seqlens(CU, WIDTHS, cu_seqlens_padded=CU[:2]), ValueError, "as many entries as cu_seqlens"
    ),
    "room": (
        lambda: remap_cu_seqlens(CU - CU % 2, WIDTHS, cu_seqlens_padded=torch.tensor([0, 1, 10], dtype=torch.int32)),
        ValueError, "document 0 has 2 tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call()


def test_asserted_where_values_cannot_be_read() -> None:
    with pytest.raises(RuntimeError, match="widths must be 0 or more"):
        remap._kernel(CU, WIDTHS - 1)
    with pytest.raises(RuntimeError, match="do not fit the dtype"):
        remap._kernel(CU, WIDTHS * 2**30)
