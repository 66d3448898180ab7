"""Rolls of zigzag shards whose two chunks are one tensor with a dimension for them: ``x[s:e].view(2, -1)``.

Each program is ``f(x, cu, group)`` of ``[2, T / cp]``, a roll by -1 that fills in 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.p2p_programs import neighbours

Rolled = Callable[[Tensor, Any], Tensor]


def ends(front: Tensor, back: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """What comes behind the last slots of both chunks, by their first ones."""
    rank, cp, before, behind = neighbours(group)
    end_front, end_back = torch.empty_like(front), torch.zeros_like(back)
    ops = []
    if rank > 0:
        ops.append(dist.P2POp(dist.isend, front.contiguous(), before, group))
        ops.append(dist.P2POp(dist.irecv, end_back, before, group))
    if rank < cp - 1:
        ops.append(dist.P2POp(dist.irecv, end_front, behind, group))
        ops.append(dist.P2POp(dist.isend, back.contiguous(), behind, group))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return (back if rank == cp - 1 else end_front), end_back


def _program(rolled: Rolled) -> Callable[[Tensor, Tensor, Any], Tensor]:
    def program(x: Tensor, cu: Tensor, group: Any) -> Tensor:
        cp, outs = dist.get_world_size(group), []
        for i in range(len(cu) - 1):
            outs.append(rolled(x[..., cu[i] // cp : cu[i + 1] // cp], group))
        return torch.cat(outs, -1)

    program.__name__ = rolled.__name__
    return program


# === Rewritten ==================================================================================================


def selected(document: Tensor, group: Any) -> Tensor:
    halves = document.view(2, 2, -1)
    front, back = halves[:, 0], halves[:, 1]
    end_front, end_back = ends(front[:, :1], back[:, :1], group)
    return torch.cat([front[:, 1:], end_front, back[:, 1:], end_back], -1)


def unbound(document: Tensor, group: Any) -> Tensor:
    front, back = document.unflatten(-1, (2, -1)).unbind(1)
    end_front, end_back = ends(front[..., :1], back[..., :1], group)
    return torch.cat([front[..., 1:], end_front, back[..., 1:], end_back], -1)


def rolled_at_once(document: Tensor, group: Any) -> Tensor:
    halves = document.reshape(2, 2, -1)
    rolled = halves.roll(-1, -1)
    end_front, end_back = ends(halves[:, 0, 0], halves[:, -1, 0], group)
    rolled[:, 0, -1], rolled[:, 1, -1] = end_front, end_back
    return rolled.flatten(1)


def joined_at_once(document: Tensor, group: Any) -> Tensor:
    halves = document.reshape(2, 2, -1)
    first = halves[:, :, :1].contiguous()
    behind = torch.stack(ends(first[:, 0], first[:, 1], group), 1)
    return torch.cat([halves[..., 1:], behind], -1).view(2, -1)


# === Left alone =================================================================================================


def pairs_of_slots(document: Tensor, group: Any) -> Tensor:
    halves = document.view(2, -1, 2).transpose(1, 2)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    return torch.cat([halves[:, 0, 1:], end_front, halves[:, 1, 1:], end_back], -1)


def halves_swapped(document: Tensor, group: Any) -> Tensor:
    halves = document.view(2, 2, -1)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    behind = torch.stack([end_front, end_back], 1)
    return torch.cat([halves[..., 1:], behind], -1).flip(1).view(2, -1)


def ends_swapped(document: Tensor, group: Any) -> Tensor:
    halves = document.view(2, 2, -1)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    return torch.cat([halves[..., 1:], torch.stack([end_back, end_front], 1)], -1).view(2, -1)


def interleaved(document: Tensor, group: Any) -> Tensor:
    front, back = document.view(2, 2, -1).unbind(1)
    end_front, end_back = ends(front[:, :1], back[:, :1], group)
    parts = [torch.cat([front[:, 1:], end_front], -1), torch.cat([back[:, 1:], end_back], -1)]
    return torch.stack(parts, -1).view(2, -1)


def flat_before_it_is_written(document: Tensor, group: Any) -> Tensor:
    """The result is a view of what is written afterwards."""
    halves = document.view(2, 2, -1)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    rolled = halves.roll(-1, -1)
    flat = rolled.view(2, -1)
    rolled[:, 0, -1:], rolled[:, 1, -1:] = end_front, end_back
    return flat


def written_when_flat(document: Tensor, group: Any) -> Tensor:
    halves = document.view(2, 2, -1)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    rolled = halves.roll(-1, -1)
    rolled[:, 0, -1:] = end_front
    flat = rolled.view(2, -1)
    flat[:, -1:] = end_back
    return flat


def document_changed_before_its_chunks(document: Tensor, group: Any) -> Tensor:
    copy = document.clone()
    halves = copy.view(2, 2, -1)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    copy[:, 0] = 7
    return torch.cat([halves[:, 0, 1:], end_front, halves[:, 1, 1:], end_back], -1)


def chunks_rolled(document: Tensor, group: Any) -> Tensor:
    halves = document.view(2, 2, -1)
    end_front, end_back = ends(halves[:, 0, :1], halves[:, 1, :1], group)
    rolled = halves.roll(-1, 1)
    rolled[:, 0, -1:], rolled[:, 1, -1:] = end_front, end_back
    return rolled.view(2, -1)


HALVES = {f.__name__: _program(f) for f in (selected, unbound, rolled_at_once, joined_at_once)}
LEFT = {
    f.__name__: (_program(f), code)
    for f, code in (
        (pairs_of_slots, "no-rule"),
        (halves_swapped, "no-rule"),
        (ends_swapped, "not-a-roll"),
        (interleaved, "no-rule"),
        (flat_before_it_is_written, "stale-view"),
        (written_when_flat, "write-through-view"),
        (document_changed_before_its_chunks, "stale-view"),
        (chunks_rolled, "no-rule"),
    )
}
