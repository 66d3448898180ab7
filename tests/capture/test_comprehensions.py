"""Comprehensions in and around loops: from Python 3.12 on their variables are names of the frame around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .support import boundaries, compiled, hold, reported, row


def in_the_body(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        document = x[:, cu[i] : cu[i + 1]]
        parts = [part * 2 for part in (document, document + 1)]
        out[:, cu[i] : cu[i + 1]] = parts[0] + parts[1].flip(1)
    return out


def a_name_that_the_body_has_as_well(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        document = x[:, cu[i] : cu[i + 1]]
        both = [part.flip(1) for part in (document, document * 3)]
        part = both[0] + both[1]
        out[:, cu[i] : cu[i + 1]] = part
    return out


def nested(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        document = x[:, cu[i] : cu[i + 1]]
        sums = [sum([part * factor for part in (document, part)]) for part in (document.flip(1),) for factor in (2, 3)]
        out[:, cu[i] : cu[i + 1]] = sums[0] - sums[1]
    return out


def after_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        part = x[:, cu[i] : cu[i + 1]].flip(1)
        out[:, cu[i] : cu[i + 1]] = part
    return torch.cat([part + 1 for part in (out, out)], 1)


@pytest.mark.parametrize("fn", [in_the_body, a_name_that_the_body_has_as_well, nested, after_the_loop])
def test_rewritten(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    report = reported(fn, row(), boundaries(4))
    assert [r.rule for r in report.rewrites] == ["vectorize_segments"], report.refusals
    hold(fn, compiled(fn, fullgraph=True), [3, 1, 7])


def from_document_to_document(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    part = x[:, :1]
    for i in range(len(cu) - 1):
        document = x[:, cu[i] : cu[i + 1]]
        both = [part * 2 for part in (document, document)]
        out[:, cu[i] : cu[i + 1]] = both[0] + part
        part = document.sum(1, keepdim=True)
    return out


def the_same_value_by_another_name(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    part = other = x[:, :1]
    for i in range(len(cu) - 1):
        document = x[:, cu[i] : cu[i + 1]]
        both = [part * 2 for part in (other, document)]
        out[:, cu[i] : cu[i + 1]] = both[1] + part
        part = document.sum(1, keepdim=True)
    return out


def the_last_one(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        part = x[:, cu[i] : cu[i + 1]].flip(1)
        out[:, cu[i] : cu[i + 1]] = part
    both = [part + 1 for part in (out, out)]
    return both[0] + part.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("code", "fn"),
    [
        ("carried-state", from_document_to_document),
        ("carried-state", the_same_value_by_another_name),
        ("leaked-local", the_last_one),
    ],
)
def test_left_alone(code: str, fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    report = reported(fn, row(), boundaries(4))
    assert code in {r.code for r in report.refusals}
    assert not report.rewrites
    hold(fn, compiled(fn), [3, 1, 7])
