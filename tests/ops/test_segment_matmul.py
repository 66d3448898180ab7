"""segment_matmul against a product for every document."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from .segments import OPS

# Batch, rows, inner, columns of every document: one of each kind of nothing among them.
SIZES = torch.tensor([[1, 3, 2, 4], [2, 1, 3, 2], [1, 0, 2, 3], [1, 2, 0, 3], [0, 2, 2, 2], [3, 2, 1, 1]])
TURNED = list(itertools.product([False, True], repeat=2))


def matrices(count: int, batch: int, rows: int, columns: int, turned: bool, numbers: Tensor) -> Tensor:
    found = numbers[count : count + batch * rows * columns]
    return found.view(batch, columns, rows).transpose(1, 2) if turned else found.view(batch, rows, columns)


def reference(a: Tensor, b: Tensor, a_turned: bool, b_turned: bool) -> Tensor:
    out, at_a, at_b = [], 0, 0
    for batch, rows, inner, columns in SIZES.tolist():
        left = matrices(at_a, batch, rows, inner, a_turned, a)
        right = matrices(at_b, batch, inner, columns, b_turned, b)
        out.append((left @ right).flatten())
        at_a, at_b = at_a + batch * rows * inner, at_b + batch * inner * columns
    return torch.cat(out)


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, int]:
    batch, rows, inner, columns = SIZES.unbind(1)
    counts = [int((batch * one * other).sum()) for one, other in ((rows, inner), (inner, columns), (rows, columns))]
    # Small whole numbers, whose products and sums are exact in any order: BLAS takes one by the processor.
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, (count,), generator=random).to(dtype) for count in counts[:2])
    return a, b, counts[2]


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_values(dtype: torch.dtype, turned: tuple[bool, bool]) -> None:
    a, b, total = operands(dtype)
    out = OPS.segment_matmul(a, b, SIZES, total, *turned)
    assert out.dtype == dtype
    torch.testing.assert_close(out, reference(a, b, *turned), rtol=0, atol=0)


@pytest.mark.parametrize("turned", TURNED)
def test_gradients(turned: tuple[bool, bool]) -> None:
    a, b, total = operands()
    given = (a.requires_grad_(), b.requires_grad_())

    def product(a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = OPS.segment_matmul(a, b, SIZES, total, *turned)
        return out

    assert torch.autograd.gradcheck(product, given)
    assert torch.autograd.gradgradcheck(product, given)


def test_a_gradient_for_one_of_them() -> None:
    a, b, total = operands()
    OPS.segment_matmul(a, b.requires_grad_(), SIZES, total, False, False).sum().backward()
    assert a.grad is None
    assert b.grad is not None


def test_numbers_that_do_not_lie_side_by_side() -> None:
    a, b, total = operands()
    apart = torch.stack([a, a], 1)[:, 0]
    assert not apart.is_contiguous()
    out = OPS.segment_matmul(apart, b, SIZES, total, False, False)
    torch.testing.assert_close(out, reference(a, b, False, False), rtol=0, atol=0)


def test_no_documents() -> None:
    nothing = torch.zeros(0)
    assert OPS.segment_matmul(nothing, nothing, SIZES[:0], 0, False, False).shape == (0,)


@pytest.mark.parametrize("turned", TURNED)
def test_opcheck(turned: tuple[bool, bool]) -> None:
    a, b, total = operands(torch.float32)
    torch.library.opcheck(OPS.segment_matmul, (a.requires_grad_(), b.requires_grad_(), SIZES, total, *turned))


def test_compiled() -> None:
    a, b, total = operands(torch.float32)
    given = (a.requires_grad_(), b.requires_grad_())

    def product(a: Tensor, b: Tensor) -> Tensor:
        out: Tensor = OPS.segment_matmul(a.sin(), b * 2, SIZES, total, False, True)
        return out.cos()

    wanted = product(*given)
    found = torch.compile(product, fullgraph=True)(*given)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(made.sum(), given) for made in (found, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
