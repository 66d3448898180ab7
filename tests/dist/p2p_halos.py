"""Functions that only exchange the slots at the ends of shards, with a gradient that goes back. Each program is
``f(x, cu, group)``, for shards of one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.p2p_pieces import shards
from tests.dist.p2p_programs import neighbours

Move = Callable[[Tensor, Any], Tensor]


def function_of(forward_by: Move, backward_by: Move) -> Callable[..., Tensor]:
    class Rolled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
            ctx.group = group
            return forward_by(x, group)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return backward_by(grad, ctx.group), None

    apply: Callable[..., Tensor] = Rolled.apply
    return apply


def from_before(slot: Tensor, group: Any) -> Tensor:
    """The last slot of the rank before, zeros on the first."""
    rank, cp, before, behind = neighbours(group)
    got = torch.zeros_like(slot)
    works = [dist.isend(slot.contiguous(), behind, group)] if rank < cp - 1 else []
    works += [dist.irecv(got, before, group)] if rank else []
    for work in works:
        work.wait()
    return got


def from_behind(slot: Tensor, group: Any) -> Tensor:
    rank, cp, before, behind = neighbours(group)
    got = torch.zeros_like(slot)
    works = [dist.isend(slot.contiguous(), before, group)] if rank else []
    works += [dist.irecv(got, behind, group)] if rank < cp - 1 else []
    for work in works:
        work.wait()
    return got


FromBefore, FromBehind = function_of(from_before, from_behind), function_of(from_behind, from_before)


# === Rewritten ==================================================================================================


def shifted(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The token shift of RWKV."""
    outs = []
    for part in shards(cu, group):
        document = x[part]
        outs.append(torch.cat([FromBefore(document[-1:], group), document[:-1]]) - document)
    return torch.cat(outs)


def in_front(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One slot in front of what is computed of the document: a convolution with two taps."""
    outs = []
    for part in shards(cu, group):
        document = x[part].sin()
        longer = torch.cat([FromBefore(document[-1:], group), document])
        outs.append(longer[1:] * 0.5 + longer[:-1] * 0.25)
    return torch.cat(outs)


def looked_ahead(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = torch.zeros_like(x)
    for part in shards(cu, group):
        longer = torch.cat([x[part], FromBehind(x[part][:1], group)])
        out[part] = (longer[1:] - longer[:-1]) * 2
    return out


HALOS = {"shifted": shifted, "in front": in_front, "looked ahead": looked_ahead}


# === Left alone =================================================================================================


def _shifted(function: Callable[..., Tensor], first: bool = False, detached: bool = False) -> Callable[..., Tensor]:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        outs = []
        for part in shards(cu, group):
            document = x[part]
            slot = document[:1] if first else document[-1:]
            rest = document[:-1].detach() if detached else document[:-1]
            outs.append(torch.cat([function(slot, group), rest]))
        return torch.cat(outs)

    return program


def doubled(grad: Tensor, group: Any) -> Tensor:
    return from_behind(grad, group) * 2


def nothing(grad: Tensor, group: Any) -> Tensor:
    return torch.zeros_like(grad)


LEFT: dict[str, Callable[..., Tensor]] = {
    "halo doubled": _shifted(function_of(from_before, doubled)),
    "halo without gradient": _shifted(function_of(from_before, nothing)),
    "halo the same way": _shifted(function_of(from_before, from_before)),
    "halo of the other end": _shifted(FromBefore, first=True),
    "halo beside detached": _shifted(FromBefore, detached=True),
}
