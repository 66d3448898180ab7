"""``segment_matmul`` (internal): one product of matrices for every document, each of sizes of its own.

    for batch, rows, inner, columns in sizes.tolist():
        out += (a's next batch * rows * inner numbers, as [batch, rows, inner]
                @ b's next batch * inner * columns numbers, as [batch, inner, columns]).flatten()

``a_turned``: the matrices of a lie in memory as ``[batch, inner, rows]``; ``b_turned``: those of b as ``[batch,
columns, inner]``. The backward are two such products. The sizes are read on the host, once per call, as the shapes of
the products must be known there: what made ``total`` has waited for the device already.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._library import define, differentiable


def _kernel(a: Tensor, b: Tensor, sizes: Tensor, total: int, a_turned: bool, b_turned: bool) -> Tensor:
    a, b, out = a.contiguous(), b.contiguous(), a.new_empty(total)
    begin_a = begin_b = begin = 0
    for batch, rows, inner, columns in sizes.tolist():
        end_a, end_b, end = (
            begin_a + batch * rows * inner,
            begin_b + batch * inner * columns,
            begin + batch * rows * columns,
        )
        if end > begin:
            left = _matrices(a[begin_a:end_a], batch, rows, inner, a_turned)
            right = _matrices(b[begin_b:end_b], batch, inner, columns, b_turned)
            torch.matmul(left, right, out=_matrices(out[begin:end], batch, rows, columns, False))
        begin_a, begin_b, begin = end_a, end_b, end
    return out


def _matrices(numbers: Tensor, batch: int, rows: int, columns: int, turned: bool) -> Tensor:
    """A view of them, without a dimension for one matrix alone."""
    shape = (columns, rows) if turned else (rows, columns)
    found = numbers.view(shape if batch == 1 else (batch, *shape))
    return found.transpose(-2, -1) if turned else found


def _fake(a: Tensor, b: Tensor, sizes: Tensor, total: int, a_turned: bool, b_turned: bool) -> Tensor:
    return a.new_empty(total)


segment_matmul_op = define(
    "segment_matmul(Tensor a, Tensor b, Tensor sizes, SymInt total, bool a_turned, bool b_turned) -> Tensor",
    fake=_fake,
    kernel=_kernel,
)

_Inputs = tuple[Tensor, Tensor, Tensor, int, bool, bool]


def _setup(ctx: Any, inputs: _Inputs, output: Tensor) -> None:
    a, b, sizes, _, ctx.a_turned, ctx.b_turned = inputs
    ctx.save_for_backward(a, b, sizes)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
    a, b, sizes = ctx.saved_tensors
    batch, rows, inner, columns = sizes.unbind(1)

    def product(left: Tensor, right: Tensor, order: list[Tensor], like: Tensor, *turned: bool) -> Tensor:
        return segment_matmul_op(left, right, torch.stack(order, 1), like.shape[0], *turned)

    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        if ctx.a_turned:
            grad_a = product(b, grad, [batch, inner, columns, rows], a, ctx.b_turned, True)
        else:
            grad_a = product(grad, b, [batch, rows, columns, inner], a, False, not ctx.b_turned)
    if ctx.needs_input_grad[1]:
        if ctx.b_turned:
            grad_b = product(grad, a, [batch, columns, rows, inner], b, True, ctx.a_turned)
        else:
            grad_b = product(a, grad, [batch, inner, rows, columns], b, not ctx.a_turned, False)
    return grad_a, grad_b, None, None, None, None


differentiable("segment_matmul", _backward, _setup)
