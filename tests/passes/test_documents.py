"""One value per document, and scans: equal to eager forward and backward, rewritten, at most two graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

import packpass
from packpass.decisions.records import collecting
from packpass.reports.report import Report

from .document_bodies import BODIES, Body

EAGER: dict[str, Any] = {"packpass.inner_backend": "eager"}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*degrees of freedom.*")
        yield
    torch._dynamo.reset()


def boundaries(body: Body, lengths: list[int], first: int) -> Tensor:
    kept = [max(n, body.least) for n in lengths]
    return torch.tensor([first, *(first + torch.tensor(kept).cumsum(0)).tolist()], dtype=torch.int64)


def sizes(body: Body) -> list[tuple[Tensor, int]]:
    """``(boundaries, row length)``: 3, 50 and 1 documents, empty ones, tails on both sides."""
    many = [1 + (7 * d) % 5 for d in range(50)]
    plain = [boundaries(body, lengths, 0) for lengths in ([3, 1, 8], many, [9])]
    odd = [boundaries(body, lengths, 2) for lengths in ([0, 4, 0, 0, 1, 7, 0], [0, 0], [5, 0, 2])]
    return [(cu, int(cu[-1])) for cu in plain] + [(cu, int(cu[-1]) + 3) for cu in odd]


def arguments(body: Body, cu: Tensor, total: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(total)
    x = torch.randn(total, 4, generator=rng)
    # What lies between documents, or beside them, must not matter.
    x[: int(cu[0])] = float("nan")
    x[int(cu[-1]) :] = float("inf")
    return [x.requires_grad_(), cu, *(make(len(cu) - 1, rng) for make in body.inputs)]


def run(fn: Any, args: list[Tensor]) -> tuple[list[Any], list[Any]]:
    out = tree_leaves(fn(*args))
    loss = [(t.float() * torch.arange(1, t.numel() + 1).view(t.shape) / t.numel()) for t in out if t.requires_grad]
    if loss:
        sum(torch.where(t.isfinite(), t, 0).sum() for t in loss).backward()  # type: ignore[union-attr]
    return [t.detach() for t in out], [a.grad for a in args]


def same(want: list[Any], got: list[Any], low: bool = False) -> None:
    assert len(want) == len(got)
    for a, b in zip(want, got, strict=True):
        if a is None or b is None:  # no document reached the result: no gradient, or one of zeros
            assert all(t is None or not t.any() for t in (a, b))
        else:
            rtol, atol = (2e-2, 2e-2) if a.dtype == torch.bfloat16 or low else (2e-5, 2e-5)
            assert a.dtype == b.dtype and a.shape == b.shape
            torch.testing.assert_close(b, a, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", BODIES)
def test_rewritten_and_equal(name: str) -> None:
    body = BODIES[name]
    compiled = torch.compile(body.fn, backend=packpass.backend, options=EAGER, fullgraph=True)
    report = Report()
    for n, (cu, total) in enumerate(sizes(body)):
        with collecting(report):
            got = run(compiled, arguments(body, cu, total))
        if n == 0:
            assert [r.rule for r in report.rewrites] == ["vectorize_segments"], report.refusals
            assert not report.refusals and report.graphs == 1
            assert sum(record.host_syncs_after for record in report.graph_records) == 0
        want = run(body.fn, arguments(body, cu, total))
        same(want[0], got[0])
        same(want[1], got[1], "half" in name)
        if n == 2:
            assert counters["stats"]["unique_graphs"] <= body.graphs


THROUGH_AOT = [
    "centred",
    "windows",
    "python_numbers",
    "weighted_mean",
    "padded",
    "pooled_rows_of_nonempty",
    "kth_slots",
]


@pytest.mark.parametrize("name", THROUGH_AOT)
@pytest.mark.parametrize("inner", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_through_aot_autograd(name: str, inner: str) -> None:
    body = BODIES[name]
    compiled = torch.compile(
        body.fn, backend=packpass.backend, options={"packpass.inner_backend": inner}, fullgraph=True
    )
    for cu, total in sizes(body)[:4]:
        want, got = (run(fn, arguments(body, cu, total)) for fn in (body.fn, compiled))
        same(want[0], got[0])
        same(want[1], got[1])
    # The number of documents as a size of a result makes torch ask whether it is 1: one more graph at most.
    assert counters["stats"]["unique_graphs"] <= 3
