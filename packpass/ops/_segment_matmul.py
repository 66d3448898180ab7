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

from packpass.ops._document_matrices import document_matrices
from packpass.ops._library import define, differentiable


def _kernel(a: Tensor, b: Tensor, sizes: Tensor, total: int, a_turned: bool, b_turned: bool) -> Tensor:
    out = a.new_empty(total)
    left, right = (2, 1) if a_turned else (1, 2), (3, 2) if b_turned else (2, 3)
    parts = (a.contiguous(), left), (b.contiguous(), right), (out, (1, 3))
    for one, other, made in document_matrices(sizes, *parts):
        if made.numel():
            torch.matmul(one.mT if a_turned else one, other.mT if b_turned else other, out=made)
    return out


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
