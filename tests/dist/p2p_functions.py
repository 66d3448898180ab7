"""Messages inside an ``autograd.Function``, whose backward rolls the gradient back. Each is ``f(x, cu, group)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist import p2p_halos, p2p_parts, p2p_pieces
from tests.dist.p2p_halos import function_of
from tests.dist.p2p_programs import neighbours


def zigzag(document: Tensor, group: Any) -> Tensor:
    a, b = document.chunk(2)
    end_a, end_b = p2p_parts.ends(a[:1].contiguous(), b[:1].contiguous(), group)
    return torch.cat([a[1:], end_a, b[1:], end_b])


def zigzag_back(grad: Tensor, group: Any) -> Tensor:
    rank, cp, before, behind = neighbours(group)
    a, b = grad.chunk(2)
    first_a, first_b = torch.zeros_like(a[:1]), torch.zeros_like(b[:1])
    works = []
    if rank:
        works += [dist.isend(b[-1:].contiguous(), before, group), dist.irecv(first_a, before, group)]
    if rank < cp - 1:
        works += [dist.isend(a[-1:].contiguous(), behind, group), dist.irecv(first_b, behind, group)]
    else:
        first_b = a[-1:]
    for work in works:
        work.wait()
    return torch.cat([first_a, a[:-1], first_b, b[:-1]])


def left(document: Tensor, group: Any) -> Tensor:
    return p2p_pieces.roll(document, group, 5)


def right(document: Tensor, group: Any) -> Tensor:
    return p2p_pieces.roll(document, group, 0, 1)


def left_of_nothing(document: Tensor, group: Any) -> Tensor:
    return p2p_pieces.roll(document, group)


def right_of_ones(document: Tensor, group: Any) -> Tensor:
    return p2p_pieces.roll(document, group, 1, 1)


def halved(grad: Tensor, group: Any) -> Tensor:
    return right(grad, group) / 2


def on_its_own(grad: Tensor, group: Any) -> Tensor:
    return torch.cat([torch.zeros_like(grad[:1]), grad[:-1]])


Zigzag, Left, Right = function_of(zigzag, zigzag_back), function_of(left, right), function_of(right, left_of_nothing)


def _listed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        return torch.cat([function(x[part], group) for part in p2p_pieces.shards(cu, group)])

    return program


def _used(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of what is computed, and with what else is computed."""

    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        return torch.cat([function(x[part] * 3, group) * x[part] for part in p2p_pieces.shards(cu, group)])

    return program


def written(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = torch.zeros_like(x)
    for part in p2p_pieces.shards(cu, group):
        out[part] = Left(x[part], group)
    return out * 2


def in_depths(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in p2p_pieces.shards(cu, group):
        once = Left(x[part], group)
        outs.append(once + 2 * Left(once, group))
    return torch.cat(outs)


def both_ways(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return torch.cat([Left(x[part], group) - Right(x[part], group) for part in p2p_pieces.shards(cu, group)])


def end_replaced(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is returned is used in part, which no messages see."""
    outs = []
    for part in p2p_pieces.shards(cu, group):
        rolled = Left(x[part], group)
        outs.append(torch.cat([rolled[:-1], rolled[-1:] * 0]))
    return torch.cat(outs)


AS_WRITTEN: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "zigzag": (_listed(Zigzag), True),
    "zigzag used": (_used(Zigzag), True),
}
"""Two chunks of a document inside the function: torch does not know their sizes, and a function cannot hand out what is
made of them."""

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], bool]] = {
    "left": (_listed(Left), False),
    "right": (_listed(Right), False),
    "right used": (_used(Right), False),
    "written": (written, False),
    "in depths": (in_depths, False),
    "both ways": (both_ways, False),
    "end replaced": (end_replaced, False),
    **{name: (program, False) for name, program in p2p_halos.HALOS.items()},
}
"""The program, and whether its shards are zigzags; each is one exchange forward, and one backward."""


class Scaled(torch.autograd.Function):
    """Keeps a tensor for its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        scale = x.new_ones(()) * 2
        ctx.save_for_backward(scale)
        ctx.group = group
        return left_of_nothing(x, group) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return right(grad * scale, ctx.group), None


def beside_another(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One roll passes gradients on, one does not."""
    outs = []
    for part in p2p_pieces.shards(cu, group):
        outs.append(torch.stack([Left(x[part], group), left(x[part].detach(), group)]))
    return torch.cat(outs, 1)


def changed_in_place(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    outs = []
    for part in p2p_pieces.shards(cu, group):
        rolled = Left(x[part], group)
        rolled[-1:] = 0
        outs.append(rolled)
    return torch.cat(outs)


OnesBack = function_of(left, right_of_ones)


def another_fill(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The first rank alone sees that its gradient is none of a roll."""
    return torch.cat([OnesBack(x[part], group) for part in p2p_pieces.shards(cu, group)])


LEFT: dict[str, Callable[..., Tensor]] = {
    "another fill": another_fill,
    "the same way": _listed(function_of(left, left_of_nothing)),
    "halved": _listed(function_of(left, halved)),
    "without messages": _listed(function_of(left, on_its_own)),
    "scaled": _listed(Scaled.apply),
    "beside another": beside_another,
    "changed in place": changed_in_place,
    **p2p_halos.LEFT,
}
"""Functions whose backward is something else, on one of the ranks at least, or which are not put away as they are."""
