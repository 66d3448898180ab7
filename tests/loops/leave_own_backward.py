"""Look-alikes of functions that treat every slot alike, and of views that could be made once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .harness import leave
from .rewrite_own_backward import FILLED, SOME, Reversed


class Copied(Function):
    """The same values in memory of their own; what its gradients become is for others to say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()


class Penalised(Copied):
    """Makes a gradient also where none comes."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad + 0.1 * x.sign()


class PaddedWithOnes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:, 1:].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.nn.functional.pad(grad, (1, 0), value=1.0)


class TurnedBack(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.flip(0)


class Normed(Copied):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / (grad.norm() + 1)


class Softmaxed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        shares = x.softmax(0)
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (shares,) = ctx.saved_tensors
        return shares * (grad - (grad * shares).sum(0))


class Divided(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        ctx.count = count
        return x / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.count, None


class LargestForTheWeight(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).square().sum(0).sqrt()


class Decayed(LargestForTheWeight):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0) + weight


class WithoutItsDimension(Function):
    """Drops the dimension of slots if there is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.squeeze(0) * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return (grad * 2).unsqueeze(0)


class Doubled(Function):
    """Writes what it takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def _each(function: Any, x: Tensor, cu: Tensor, *others: Any) -> Tensor:
    return torch.cat([function.apply(x[s:e], *others) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", must_refuse=True, shapes=SOME, why="a gradient where none comes")
def penalised(x: Tensor, cu: Tensor) -> Tensor:
    return _each(Penalised, x, cu)


@leave("f[T,3] cu", must_refuse=True, shapes=SOME, why="a gradient where none comes")
def gradients_padded_with_ones(x: Tensor, cu: Tensor) -> Tensor:
    return _each(PaddedWithOnes, x, cu)


@leave("f[T] cu", must_refuse=True, shapes=SOME, why="the backward turns documents around")
def turned_back(x: Tensor, cu: Tensor) -> Tensor:
    return _each(TurnedBack, x, cu)


@leave("f[T] cu", must_refuse=True, shapes=SOME, why="the backward looks at all slots of the document")
def normed_gradients(x: Tensor, cu: Tensor) -> Tensor:
    return _each(Normed, x, cu)


@leave("f[T] cu", must_refuse=True, min_len=1, shapes=FILLED, why="both ways look at all slots of the document")
def softmax_with_its_own_backward(x: Tensor, cu: Tensor) -> Tensor:
    return _each(Softmaxed, x, cu)


@leave("f[T] cu", must_refuse=True, min_len=1, shapes=FILLED, why="it is told the length of its document")
def divided_by_the_length(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([Divided.apply(x[s:e], e - s) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", must_refuse=True, shapes=SOME, why="it is told the number of its document")
def divided_by_the_number(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([Divided.apply(x[cu[i] : cu[i + 1]], i + 1) for i in range(cu.shape[0] - 1)])


@leave("f[T,3] f[3] cu", must_refuse=True, shapes=SOME, why="the gradient of the weight is no sum over slots")
def root_for_the_weight(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    return _each(LargestForTheWeight, x, cu, weight)


@leave("f[T,3] f[3] cu", must_refuse=True, shapes=SOME, why="every document adds the weight to its gradient")
def decayed_weight(x: Tensor, weight: Tensor, cu: Tensor) -> Tensor:
    return _each(Decayed, x, cu, weight)


@leave("f[T,3] cu", must_refuse=True, min_len=1, shapes=FILLED, why="of one slot, the function sees that there is one")
def one_slot_without_its_dimension(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([WithoutItsDimension.apply(x[s:e][:1]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", must_refuse=True, shapes=SOME, why="what is given is written")
def doubled_in_place(x: Tensor, cu: Tensor) -> Tensor:
    row = x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        Doubled.apply(row[s:e])
    return row


@leave("f[T] cu", must_refuse=True, shapes=SOME, why="the result shares its memory with the row, and is written")
def view_of_a_function_written(x: Tensor, cu: Tensor) -> Any:
    row, out = x.detach() * 1, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seen = Reversed.apply(row[s:e], 1.0)
        seen.mul_(2)
        out.append(seen.sum(0))
    return row, torch.stack(out)


@leave("f[T] cu", must_refuse=True, min_len=1, shapes=FILLED, why="the view is of a row that the loop writes")
def view_of_what_is_written(x: Tensor, cu: Tensor) -> Any:
    row, out = x * 1, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        before = row.detach()[s:e].sum(0)
        row[s:e] = row[s:e].flip(0) * 2
        out.append(before + row.detach()[s:e][0])
    return row, torch.stack(out)
