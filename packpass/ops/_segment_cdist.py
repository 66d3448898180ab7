"""``segment_cdist`` (internal): `torch.cdist` of every document, each of sizes of its own.

    for batch, rows, features, columns in sizes.tolist():
        out += cdist(a's next numbers as [batch, rows, features], b's next as [batch, columns, features], p).flatten()

The backward is torch's own, document by document. The sizes are read on the host, as in `_segment_matmul`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from packpass.ops._document_matrices import document_matrices
from packpass.ops._library import define, differentiable

_A, _B, _OUT = (1, 2), (3, 2), (1, 3)


def _kernel(a: Tensor, b: Tensor, sizes: Tensor, total: int, p: float) -> Tensor:
    out = a.new_empty(total)
    for one, other, made in document_matrices(sizes, (a.contiguous(), _A), (b.contiguous(), _B), (out, _OUT)):
        if made.numel():
            made.copy_(torch.cdist(one, other, p))
    return out


segment_cdist_op = define(
    "segment_cdist(Tensor a, Tensor b, Tensor sizes, SymInt total, float p) -> Tensor",
    fake=lambda a, b, sizes, total, p: a.new_empty(total),
    kernel=_kernel,
)


def _backward_kernel(grad: Tensor, a: Tensor, b: Tensor, out: Tensor, sizes: Tensor, p: float) -> tuple[Tensor, Tensor]:
    grads = torch.zeros_like(a), torch.zeros_like(b)
    given = ((grad.contiguous(), _OUT), (a.contiguous(), _A), (b.contiguous(), _B), (out, _OUT))
    for g, one, other, made, to_a, to_b in document_matrices(sizes, *given, (grads[0], _A), (grads[1], _B)):
        if made.numel() and one.numel():
            to_a.copy_(torch.ops.aten._cdist_backward(g, one, other, p, made))
            turned = (x.mT.contiguous() for x in (g, made))
            to_b.copy_(torch.ops.aten._cdist_backward(next(turned), other, one, p, next(turned)))
    return grads


segment_cdist_backward_op = define(
    "segment_cdist_backward(Tensor grad, Tensor a, Tensor b, Tensor out, Tensor sizes, float p) -> (Tensor, Tensor)",
    fake=lambda grad, a, b, out, sizes, p: (torch.empty_like(a), torch.empty_like(b)),
    kernel=_backward_kernel,
)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, float], output: Tensor) -> None:
    a, b, sizes, _, ctx.p = inputs
    ctx.save_for_backward(a, b, output, sizes)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    return *segment_cdist_backward_op(grad, *ctx.saved_tensors, ctx.p), None, None, None


differentiable("segment_cdist", _backward, _setup)
