"""A row that is declared says nothing about another row of the same length that it only meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

OPTIONS = {"packpass.inner_backend": "eager"}
T = 12
CU = torch.tensor([0, 3, 7, 12])
TABLE = torch.linspace(1, 2, T)


def shifted(row: Tensor) -> Tensor:
    """Each slot's next one, the usual way."""
    out = torch.roll(row, -1, 0)
    out[-1:] = 0
    return out


MEETING: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "type_as": lambda a, b: (a.type_as(b), shifted(b)),
    "to a tensor": lambda a, b: (a.to(b), shifted(b)),
    "isin": lambda a, b: (torch.isin(a, b), shifted(b)),
    "zeros_like": lambda a, b: (a * 2, shifted(torch.zeros_like(a) + b)),
    "memory of the same form": lambda a, b: (a * 2, shifted(torch.empty_like(a).copy_(b))),
    "one weight": lambda a, b: (a * TABLE, shifted(b * TABLE)),
    "one condition": lambda a, b: (
        torch.where(torch.ones(T) > 0, a, 0.0),
        shifted(torch.where(torch.ones(T) > 0, b, 1.0)),
    ),
    "one causal mask": lambda a, b: (
        (a * (mask := torch.ones(T, T).tril())).sum(-1),
        shifted((b * mask).sum(-1)),
    ),
}


ITSELF = {name: fn for name, fn in MEETING.items() if name != "one causal mask"}
"""Where the result is a row of the same tokens; a sum over all keys is one of the mask's rows."""


def of_two(fn: Callable[[Tensor, Tensor], Any], b: Tensor) -> tuple[Any, Any, packpass.Report, list[Tensor | None]]:
    """Eager's and packpass's results of ``fn`` on a declared row and ``b``, the report, and the gradients of ``b``."""

    def model(a: Tensor, b: Tensor, cu: Tensor) -> Any:
        return fn(packpass.packed(a, cu), b)

    torch._dynamo.reset()
    report = packpass.explain(model, options=OPTIONS)(torch.arange(float(T)), b.clone(), CU)
    results, gradients = [], list[Tensor | None]()
    for call in (model, torch.compile(model, backend=packpass.backend, options=OPTIONS)):
        leaf = b.clone().requires_grad_(b.is_floating_point())
        found = call(torch.arange(float(T)), leaf, CU)
        results.append(found)
        if found[1].requires_grad:
            (found[1] * torch.arange(1.0, T + 1)).sum().backward()
        gradients.append(leaf.grad)
    return *results, report, gradients


@pytest.mark.parametrize("fn", MEETING.values(), ids=MEETING.keys())
def test_leaves_the_other_row_alone(fn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    want, got, report, (grad, grad_again) = of_two(fn, torch.arange(float(T)) + 20)
    assert [r for r in report.rewrites if r.rule == "pack_shifts"] == []
    for x, y in zip(want, got, strict=True):
        assert torch.equal(x, y)
    assert grad is not None
    assert grad_again is not None
    assert torch.equal(grad, grad_again)


@pytest.mark.parametrize("fn", ITSELF.values(), ids=ITSELF.keys())
def test_still_packs_the_row_itself(fn: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
    """The same calls with the one row as both operands: there the shift stops at documents."""

    def once(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return fn(a, a)

    _, got, report, _ = of_two(once, torch.zeros(T))
    (rewrite,) = [r for r in report.rewrites if r.rule == "pack_shifts"]
    assert rewrite.details["boundaries"] == "l_cu_"
    assert got[1][CU[1:] - 1].tolist() == [0, 0, 0]
