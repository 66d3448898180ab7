"""Loops that must be rewritten: functions with a backward of their own, views of outer tensors made in the body."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")
"""Of no documents, there is nothing to concatenate."""
FILLED = tuple(shape for shape in SOME if not shape.kind.endswith("empty"))


class Rounded(Function):
    """Rounds, and hands gradients on as if it had not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.5, 0.5)


class Reversed(Function):
    """Turns gradients around; its result is a view of what it takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grad, None


class Gated(Function):
    """Two halves of features; keeps what it takes and works the gate out again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        one, other = x.chunk(2, -1)
        best = one.argmax(-1)
        ctx.mark_non_differentiable(best)
        return F.silu(one) * other, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        one, other = x.chunk(2, -1)
        share = one.sigmoid()
        return torch.cat([grad * other * share * (1 + one * (1 - share)), grad * one * share], -1)


class Scaled(Function):
    """A weight for every feature, of which the gradient is a sum over tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        size = x.square().mean(-1, keepdim=True).add(1e-3).rsqrt()
        ctx.save_for_backward(x, weight, size)
        return x * size * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, size = ctx.saved_tensors
        even, inner = x * size, grad * weight
        return size * (inner - even * (inner * even).mean(-1, keepdim=True)), (grad * even).sum(0)


class Product(Function):
    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        ctx.save_for_backward(one, other)
        return one * other

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        one, other = ctx.saved_tensors
        return grad * other, grad * one


class Projected(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class InItsMemory(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2 + 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        back = grad.clone()
        back.mul_(2)
        return back.masked_fill_(x < 0, 0.0)


@program("f[T] cu", shapes=SOME)
def rounded_straight_through(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([Rounded.apply(x[s:e]).cumsum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,2] cu", exact=False, shapes=SOME)
def reversed_gradients(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(cu.shape[0] - 1):
        part = x[cu[i] : cu[i + 1]]
        out[cu[i] : cu[i + 1]] = Reversed.apply(part, 0.25).softmax(0) + part
    return out


@program("f[T,4] cu", shapes=SOME)
def two_results_of_a_function(x: Tensor, cu: Tensor) -> Any:
    gated, best = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        one, index = Gated.apply(x[s:e])
        gated.append(one)
        best.append(index.flip(0))
    return torch.cat(gated), torch.cat(best)


@program("f[T,4] f[4] cu", exact=False, shapes=SOME)
def weight_of_a_function(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = Scaled.apply(x[s:e], weight)
        out.append(part - part.mean(0))
    return torch.cat(out)


@program("f[T,4] f[4,4] cu", shapes=SOME)
def matrix_of_a_function(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([Projected.apply(x[s:e], weight).sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,2] cu", shapes=SOME)
def function_that_works_in_its_memory(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = InItsMemory.apply(x[s:e])
        part[1:] *= 2
        out.append(part)
    return torch.cat(out)


@program("f[T,2] cu", min_len=1, shapes=FILLED)
def function_of_a_part(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat(
        [F.pad(InItsMemory.apply(x[s:e][1:]), (0, 0, 0, 1)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    )


@program("f[T,2] cu", min_len=1, shapes=FILLED)
def function_of_what_is_pooled(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([Rounded.apply(x[s:e].mean(0)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,2] cu", shapes=SOME)
def one_function_after_the_other(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat(
        [
            Reversed.apply(Rounded.apply(x[s:e]), 2.0) * InItsMemory.apply(x[s:e].flip(0))
            for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())
        ]
    )


@program("f[T,2] cu", min_len=1, shapes=FILLED)
def function_of_two_parts(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e]
        out.append(F.pad(Product.apply(part[1:], part[:-1]), (0, 0, 1, 0)) + Product.apply(part, part.flip(0)))
    return torch.cat(out)


# === Views that the body makes ==================================================================================


@program("f[T,4] cu", min_len=1, shapes=FILLED)
def detached_in_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(cu.shape[0] - 1):
        mean = x.detach()[cu[i] : cu[i + 1]].mean(0)
        out.append(x[cu[i] : cu[i + 1]] - mean)
    return torch.cat(out)


@program("f[T,4] cu", exact=False, shapes=SOME)
def heads_in_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x.unflatten(-1, (2, 2))[s:e].softmax(0).flatten(1) + x.t()[:, s:e].t().flip(0))
    return torch.cat(out)
