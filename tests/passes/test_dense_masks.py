"""A mask of squares that a loop writes goes, where it only feeds attention; elsewhere it compares documents."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.decisions.records import collecting

Program = Callable[[Tensor, Tensor], "Tensor | tuple[Tensor, ...]"]


def _attend(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q[None], q[None], q[None], attn_mask=mask)


def told(q: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(q.shape[1], q.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return _attend(q, mask)


def added(q: Tensor, cu: Tensor) -> Tensor:
    mask = torch.full((1, q.shape[1], q.shape[1]), torch.finfo(q.dtype).min)
    for i in range(1, len(cu)):
        mask[..., cu[i - 1] : cu[i], cu[i - 1] : cu[i]] = 0
    return _attend(q, mask)


def causal(q: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(q.shape[1], q.shape[1], dtype=torch.bool)
    for i in range(cu.shape[0] - 1):
        s, e = cu[i], cu[i + 1]
        mask[s:e, s:e] = True
    return _attend(q, mask.tril())


def without_empty_ones(q: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(q.shape[1], q.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            continue
        mask[s:e, s:e] = True
    return _attend(q, mask)


def returned(q: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    """As it is, so that it has to be made."""
    mask = torch.zeros(q.shape[1], q.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return _attend(q, mask) if q.shape[0] > 9 else mask, mask


def on_the_diagonal(q: Tensor, cu: Tensor) -> Tensor:
    """Every slot sees itself, also those of no document."""
    mask = torch.eye(q.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
    return _attend(q, mask)


def with_a_strip(q: Tensor, cu: Tensor) -> Tensor:
    """All in front of a document is seen as well."""
    mask = torch.zeros(q.shape[1], q.shape[1], dtype=torch.bool)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mask[s:e, s:e] = True
        mask[s:e, :s] = True
    return _attend(q, mask)


BATCHES = [(0, 4, 11), (0, 5, 5, 9, 13), (0, 7)]


def _ops(program: Program) -> list[str]:
    """Of the rewrite, once the results of all batches have been compared."""
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    report = packpass.Report()
    for cu in map(torch.tensor, BATCHES):
        q = torch.randn(2, int(cu[-1]), 4, generator=torch.Generator().manual_seed(0))
        with collecting(report):
            result = compiled(q, cu)
        torch.testing.assert_close(result, program(q, cu))
    assert not report.refusals
    return [op for rewrite in report.rewrites for op in rewrite.details["ops"]]


@pytest.mark.parametrize("program", [told, added, causal, without_empty_ones], ids=lambda f: f.__name__)
def test_no_mask_is_left(program: Program) -> None:
    found = _ops(program)
    assert "varlen_attention" in found and "segment_ids" not in found


@pytest.mark.parametrize("program", [returned, on_the_diagonal], ids=lambda f: f.__name__)
def test_documents_are_compared(program: Program) -> None:
    found = _ops(program)
    assert "segment_ids" in found and "varlen_attention" not in found


def test_squares_and_what_is_beside_them() -> None:
    found = _ops(with_a_strip)
    assert "segment_spread" in found and "varlen_attention" not in found
