"""The same written by hand as well as it can be: one all-to-all, one exchange, however many documents and sections.

Documents fill the row, none is empty, lengths divide by 2 * cp. Backwards are written by hand as well: what autograd
makes of an index is a scatter-add.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perf.cp.naive import AllToAll


def _received_rows(cu_seqlens: Tensor, cp: int, total: int) -> Tensor:
    """int64 ``[total]``: where each slot of the whole row lies among the ranks' shards, one after the other."""
    cu = cu_seqlens.long()
    slots = torch.arange(total, device=cu.device)
    document = torch.bucketize(slots, cu[1:-1], right=True)
    start = cu[document]
    half = (cu[document + 1] - start) // (2 * cp)
    chunk, offset = (slots - start) // half, (slots - start) % half
    front = chunk < cp
    rank = torch.where(front, chunk, 2 * cp - 1 - chunk)
    return rank * (total // cp) + start // cp + torch.where(front, 0, half) + offset


def _to_heads(x: Tensor, rows: Tensor, group: Any, sections: list[int]) -> Tensor:
    cp = dist.get_world_size(group)
    local, width = x.shape
    views = [s.unflatten(1, (cp, s.shape[1] // cp)).transpose(0, 1) for s in x.split(sections, 1)]
    send = torch.cat(views, 2).contiguous()  # compilers keep the strides of a single view
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    return received.view(cp * local, width // cp).index_select(0, rows)


def _to_tokens(x: Tensor, rows: Tensor, group: Any, sections: list[int]) -> Tensor:
    cp = dist.get_world_size(group)
    total, width = x.shape
    slots = torch.empty_like(rows).scatter_(0, rows, torch.arange(total, device=rows.device))
    send = x.index_select(0, slots).view(cp, total // cp, width)
    received = torch.empty_like(send)
    dist.all_to_all_single(received, send, group=group)
    parts = received.split([s // cp for s in sections], 2)
    return torch.cat([piece for part in parts for piece in part.unbind(0)], 1)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, group: Any, sections: list[int]) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.group, ctx.sections = group, sections
        return _to_heads(x, rows, group, sections)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return _to_tokens(grad, rows, ctx.group, ctx.sections), None, None, None


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, group: Any, sections: list[int]) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.group, ctx.sections = group, sections
        return _to_tokens(x, rows, group, sections)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return _to_heads(grad.contiguous(), rows, ctx.group, ctx.sections), None, None, None


def cp_to_hp(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    cp = dist.get_world_size(group)
    out: Tensor = _ToHeads.apply(x, _received_rows(cu_seqlens, cp, cp * x.shape[0]), group, sections)
    return out


def hp_to_cp(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    cp = dist.get_world_size(group)
    out: Tensor = _ToTokens.apply(x, _received_rows(cu_seqlens, cp, x.shape[0]), group, sections)
    return out


def round_trip(x: Tensor, cu_seqlens: Tensor, group: Any, sections: list[int]) -> Tensor:
    """The order of the rows is computed once for both ways."""
    cp = dist.get_world_size(group)
    rows = _received_rows(cu_seqlens, cp, cp * x.shape[0])
    y: Tensor = _ToHeads.apply(x, rows, group, sections)
    out: Tensor = _ToTokens.apply(y * y, rows, group, sections)
    return out


def roll_depths(fields: list[Tensor], cu_seqlens: Tensor, group: Any, depths: int) -> list[list[Tensor]]:
    """One exchange of the first ``depths`` tokens of every chunk, for all fields ``[..., T / cp]`` of one dtype.

    Chunks must hold at least ``depths`` tokens.
    """
    cp, rank = dist.get_world_size(group), dist.get_rank(group)
    cu = cu_seqlens.long() // cp
    steps = torch.arange(depths, device=cu.device)
    starts, stops = cu[:-1], cu[1:]
    middles = (starts + stops) // 2
    rows = torch.stack([field.reshape(-1) for field in fields])
    # [fields, documents, depths]: what the chunk before this rank's front and back chunk needs of them
    front, back = (rows[:, at[:, None] + steps] for at in (starts, middles))
    nothing = torch.zeros_like(front)
    send = torch.stack([front if r == rank - 1 else back if r == rank + 1 else nothing for r in range(cp)])
    received = AllToAll.apply(send, group)
    behind_front = received[rank + 1] if rank != cp - 1 else back
    behind_back = received[rank - 1] if rank != 0 else nothing
    rolled = []
    for depth in range(1, depths + 1):
        out = torch.roll(rows, -depth, -1)
        for ends, tokens in ((middles, behind_front), (stops, behind_back)):
            slots = (ends[:, None] - depth + steps[:depth]).flatten()
            out = out.index_copy(1, slots, tokens[:, :, :depth].flatten(1))
        rolled.append([row.view(field.shape) for row, field in zip(out.unbind(0), fields, strict=True)])
    return rolled
