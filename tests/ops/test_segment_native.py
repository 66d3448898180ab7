"""The C++ kernels themselves: threads, sizes, what happens without a compiler; and any documents, by hypothesis."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from torch import Tensor

from packpass.ops import _segment_native as native
from tests.ops import reference
from tests.ops.segments import GENERIC, OPS, close, no_compiler, row
from tests.ops.test_compiled import threads
from tests.ops.test_properties import MANY, rows

CU = torch.tensor([1, 4, 4, 5, 9])


def calls(x: Tensor, cu: Tensor, dim: int) -> dict[str, tuple[object, ...]]:
    """Arguments for every op, from one floating point row."""
    total, rest = x.shape[dim], x.movedim(dim, 0).shape[1:]
    entries = row(x.dtype, (len(cu), *rest))
    positions = row(torch.int64, (len(cu), *rest))
    lines = row(x.dtype, (len(cu) - 1, total, *rest))
    return {
        "segment_reduce": (x, cu, "sum", dim),
        "segment_reduce prod": (x, cu, "prod", dim),
        "segment_reduce amax": (x, cu, "amax", dim),
        "segment_reduce amin": (x, cu, "amin", dim),
        "segment_argmax": (x, cu, True, dim),
        "segment_take": (x, cu, positions, dim),
        "segment_put": (entries, cu, positions, dim, total),
        "segment_spread": (entries, cu, total),
        "segment_scan": (x, cu, "sum", dim),
        "segment_scan prod": (x, cu, "prod", dim, True),
        "segment_scan max": (x, cu, "max", dim),
        "segment_scan logsumexp": (x, cu, "logsumexp", dim),
        "segment_recurrence": (x / 2, x, cu, dim, False),
        "segment_softmax": (x, cu, dim, False),
        "segment_softmax_backward": (x, x / 4, cu, dim, True),
        "segment_pad": (x, cu, dim, 3.0, True),
        "segment_unpad": (lines, cu, dim, total, True),
    }


def run(case: str, arguments: tuple[object, ...]) -> Tensor:
    result: Tensor = getattr(OPS, case.split()[0]).default(*arguments)
    return result


@MANY
@given(rows(longest=90))
def test_both_forms_agree_on_any_documents(documents: tuple[int, Tensor]) -> None:
    total, cu = documents
    for shape, dim in (((total,), 0), ((2, total, 3), 1)):
        x = row(torch.float64, shape, seed=total)
        for case, arguments in calls(x, cu, dim).items():
            if case == "segment_pad" and len(cu) == 1:
                continue
            close(run(case, arguments), GENERIC[case.split()[0]](*arguments))


@pytest.mark.parametrize("columns", [1, 40])
def test_threads_share_documents(columns: int) -> None:
    """Large enough for more than one thread; the sums of a document stay in one of them, so the bits are the same."""
    total = 70_000 // columns
    x = torch.randn(total, columns, generator=torch.Generator().manual_seed(0))
    for count in (1, 300):
        cu = reference.documents(total, count, head=3, tail=4)
        for case, arguments in calls(x, cu, 0).items():
            if case == "segment_unpad":
                continue
            with threads(1):
                alone = run(case, arguments)
            with threads(3):
                assert torch.equal(alone.nan_to_num(), run(case, arguments).nan_to_num()), case


def test_the_cpu_runs_compiled_code() -> None:
    """Fails where Inductor's compiler no longer takes what we give it, which users would only notice by the clock."""
    for name in (
        "reduce<Sum, float>",
        "scan<Max, bf16>",
        "softmax<double>",
        "argreduce<Min, int64_t>",
        "spread<uint8_t>",
    ):
        assert native._function(name) is not None
    out = torch.empty(5)
    assert native.run("reduce<Sum, float>", torch.ones(10), None, out, CU, (1, 10, 1))
    assert out.tolist() == [3, 0, 1, 4, 0]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    x = row(torch.float32, (10, 3))
    expected = {case: run(case, arguments) for case, arguments in calls(x, CU, 0).items()}
    with no_compiler(monkeypatch):
        for case, arguments in calls(x, CU, 0).items():
            close(run(case, arguments), expected[case])


def test_a_failing_compiler_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "packpass"):
        native._function.cache_clear()
        assert native._function("no_such_template<int>") is None
        assert native._function("no_such_template<int>") is None
    assert len([r for r in caplog.records if "C++" in r.message]) == 1


def test_boundaries_in_any_layout() -> None:
    """A view with gaps and both integer types."""
    x = row(torch.float32, (30,))
    spaced = torch.stack([torch.tensor([0, 7, 7, 30])] * 2, 1)[:, 0]
    assert not spaced.is_contiguous()
    for cu in (spaced, spaced.int(), spaced.contiguous()):
        assert torch.equal(OPS.segment_scan(x, cu, "sum", 0), reference.segment_scan(x, cu, "sum", 0))
