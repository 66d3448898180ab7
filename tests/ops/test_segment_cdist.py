"""segment_cdist against torch.cdist of every document."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .segments import OPS

# Batch, rows, features, columns; of more than 25 rows torch takes another way, and of no features all is 0.
SIZES = torch.tensor([[1, 3, 2, 4], [2, 1, 3, 2], [1, 0, 2, 3], [1, 30, 5, 27], [1, 2, 0, 3], [3, 2, 1, 1]])


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, int]:
    batch, rows, features, columns = SIZES.unbind(1)
    counts = [int((batch * x * y).sum()) for x, y in ((rows, features), (columns, features), (rows, columns))]
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(count, generator=random, dtype=torch.float64).to(dtype) for count in counts[:2])
    return a, b, counts[2]


def reference(a: Tensor, b: Tensor, p: float) -> Tensor:
    out, at_a, at_b = [], 0, 0
    for batch, rows, features, columns in SIZES.tolist():
        one = a[at_a : at_a + batch * rows * features].view(batch, rows, features)
        other = b[at_b : at_b + batch * columns * features].view(batch, columns, features)
        out.append(torch.cdist(one, other, p).flatten())
        at_a, at_b = at_a + one.numel(), at_b + other.numel()
    return torch.cat(out)


@pytest.mark.parametrize("p", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients(dtype: torch.dtype, p: float) -> None:
    a, b, total = operands(dtype)
    given = (a.requires_grad_(), b.requires_grad_())
    found, wanted = OPS.segment_cdist(a, b, SIZES, total, p), reference(a, b, p)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    weights = torch.arange(total) % 7 - 3.0
    gradients = [torch.autograd.grad((made * weights).sum(), given) for made in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_rows_at_one_place_have_no_gradient() -> None:
    """As in eager: 0, not NaN."""
    sizes, a = torch.tensor([[1, 2, 3, 2]]), torch.ones(6, requires_grad=True)
    OPS.segment_cdist(a, a, sizes, 4, 2.0).sum().backward()
    assert a.grad is not None
    assert torch.equal(a.grad, torch.zeros(6))


def test_opcheck() -> None:
    a, b, total = operands(torch.float32)
    torch.library.opcheck(OPS.segment_cdist, (a.requires_grad_(), b.requires_grad_(), SIZES, total, 2.0))


def test_compiled() -> None:
    a, b, total = operands(torch.float32)
    given = (a.requires_grad_(), b.requires_grad_())

    def distances(a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = OPS.segment_cdist(a * 2, b, SIZES, total, 2.0)
        return out.sin()

    made = [distances(*given), torch.compile(distances, fullgraph=True)(*given)]
    torch.testing.assert_close(*made)
    gradients = [torch.autograd.grad(one.sum(), given) for one in made]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
