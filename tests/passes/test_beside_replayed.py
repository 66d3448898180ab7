"""Graphs of which one loop is rewritten and another runs document by document: what watches over calls does so here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass
from packpass.engine.verify import VerificationError
from tests.capture.support import no_rule

from .planted import planted

EAGER = {"packpass.inner_backend": "eager"}
CU = torch.tensor([0, 4, 9, 12])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def written_and_replayed(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    for s, e in pairwise(cu.tolist()):
        y[s:e] = torch.roll(x[s:e], 1, 0)
    return y * 2, torch.cat([no_rule(y[s:e], 0) for s, e in pairwise(cu.tolist())])


def read_and_replayed(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    joined = torch.cat([x[i, :n].cumsum(0) for i, n in enumerate(lengths.tolist())])
    return joined, torch.stack([no_rule(x[i, : n + 1], 0).sum() for i, n in enumerate(lengths.tolist())])


def _compiled(fn: Any, *args: Any, **options: Any) -> Any:
    report = packpass.explain(fn, options=EAGER)(*args)
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"]
    assert "no-rule" in {r.code for r in report.refusals}
    torch._dynamo.reset()
    return torch.compile(fn, backend=packpass.backend, options={**EAGER, **options})


def test_a_call_whose_arguments_share_memory_runs_as_it_was() -> None:
    run = _compiled(written_and_replayed, torch.randn(14, 3)[:12], torch.randn(14, 3)[2:], CU)
    run(torch.randn(14, 3)[:12], torch.randn(14, 3)[2:], CU)
    base = torch.randn(14, 3)
    other = base.clone()
    want = written_and_replayed(base[:12], base[2:], CU)
    got = run(other[:12], other[2:], CU)
    assert torch.equal(base, other)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_a_call_that_does_not_fit_runs_document_by_document() -> None:
    x = torch.randn(4, 6, 3)
    run = _compiled(read_and_replayed, x, torch.tensor([2, 5, 1, 3]))
    for lengths in ([2, 5, 1, 3], [2, 9, 0, 7], [-2, 3, 6, 6]):
        want, got = (fn(x, torch.tensor(lengths)) for fn in (read_and_replayed, run))
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True)), lengths


def test_verify_compares() -> None:
    x, y = torch.randn(12, 3), torch.randn(12, 3)
    run = _compiled(written_and_replayed, x, y.clone(), CU, **{"packpass.verify": True})
    want = written_and_replayed(x, y.clone(), CU)
    assert all(torch.equal(a, b) for a, b in zip(want, run(x, y.clone(), CU), strict=True))
    torch._dynamo.reset()
    with planted("vectorize_segments"), pytest.raises(VerificationError, match="vectorize_segments at .*output 0"):
        run(x, y.clone(), CU)
