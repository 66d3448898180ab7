"""Ways in which people exchange heads for tokens, document by document and section by section (and what looks alike).

Each program is ``f(x, cu, group)``; `Case` says what it takes. Tensors are zigzag shards of the tokens
(``[T / cp, F]``) or hold all tokens of some heads (``[T, F / cp]``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from tests.dist.naive import AllToAll

SECTIONS = (4, 8, 4, 12)
"""In multiples of the group's size."""
WIDTH = sum(SECTIONS)


def widths(cp: int) -> list[int]:
    return [cp * s for s in SECTIONS]


# === all-to-all, in several spellings ===========================================================================


def in_place(x: Tensor, group: Any) -> Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x, group=group)
    return out


def functional(x: Tensor, group: Any) -> Tensor:
    return funcol.all_to_all_single(x.contiguous(), None, None, group)


def with_splits(x: Tensor, group: Any) -> Tensor:
    cp = dist.get_world_size(group)
    part = x.shape[0] // cp
    out = x.new_empty(x.shape)
    dist.all_to_all_single(out, x, [part] * cp, [part] * cp, group=group)
    return out


def function(x: Tensor, group: Any) -> Tensor:
    out: Tensor = AllToAll.apply(x, group)
    return out


class TokensForHeads(torch.autograd.Function):
    """``[l, heads, D]`` to ``[cp * l, heads / cp, D]`` with the permutations inside, as in sequence parallelism."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _tokens_for_heads(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _heads_for_tokens(grad, ctx.group), None


class TokensForHeadsWrong(torch.autograd.Function):
    """The backward forgets to put the heads back in order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _tokens_for_heads(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        cp = dist.get_world_size(ctx.group)
        tokens, heads, width = grad.shape
        received = in_place(grad.reshape(cp, tokens // cp, heads, width).contiguous(), ctx.group)
        return received.permute(1, 2, 0, 3).reshape(tokens // cp, heads * cp, width), None


def _tokens_for_heads(x: Tensor, group: Any) -> Tensor:
    cp = dist.get_world_size(group)
    tokens, heads, width = x.shape
    send = x.reshape(tokens, cp, heads // cp, width).permute(1, 0, 2, 3).contiguous()
    return in_place(send, group).reshape(cp * tokens, heads // cp, width)


def _heads_for_tokens(x: Tensor, group: Any) -> Tensor:
    cp = dist.get_world_size(group)
    tokens, heads, width = x.shape
    received = in_place(x.reshape(cp, tokens // cp, heads, width).contiguous(), group)
    return received.permute(1, 0, 2, 3).reshape(tokens // cp, cp * heads, width)


# === zigzag, in several spellings ===============================================================================


def undo_by_chunks(y: Tensor, cp: int) -> Tensor:
    chunks = torch.chunk(y, 2 * cp)
    return torch.cat([chunks[2 * c if c < cp else 2 * (2 * cp - 1 - c) + 1] for c in range(2 * cp)])


def undo_by_views(y: Tensor, cp: int) -> Tensor:
    halves = y.view(cp, 2, -1, *y.shape[1:])
    return torch.cat([halves[:, 0], halves[:, 1].flip(0)]).reshape(y.shape)


def undo_by_index(y: Tensor, cp: int) -> Tensor:
    order = [2 * c if c < cp else 2 * (2 * cp - 1 - c) + 1 for c in range(2 * cp)]
    return y.reshape(2 * cp, -1, *y.shape[1:])[order].flatten(0, 1)


def undo_by_slices(y: Tensor, cp: int) -> Tensor:
    h = y.shape[0] // (2 * cp)
    front = [y[2 * r * h : (2 * r + 1) * h] for r in range(cp)]
    back = [y[(2 * r + 1) * h : (2 * r + 2) * h] for r in range(cp)]
    return torch.cat(front + back[::-1])


def redo_by_chunks(y: Tensor, cp: int) -> Tensor:
    chunks = torch.chunk(y, 2 * cp)
    return torch.cat([chunk for r in range(cp) for chunk in (chunks[r], chunks[2 * cp - 1 - r])])


def redo_by_views(y: Tensor, cp: int) -> Tensor:
    chunks = y.unflatten(0, (2 * cp, -1))
    return torch.stack([chunks[:cp], chunks[cp:].flip(0)], 1).flatten(0, 2)


# === tokens to heads ============================================================================================


def to_heads(
    x: Tensor, cu: Any, group: Any, exchange: Callable[..., Tensor] = function, undo: Any = undo_by_chunks
) -> Tensor:
    """Sections inside documents."""
    cp = dist.get_world_size(group)
    documents = []
    for i in range(len(cu) - 1):
        start, stop = cu[i] // cp, cu[i + 1] // cp
        parts = []
        for section in torch.split(x[start:stop], widths(cp), -1):
            length, width = section.shape
            send = section.reshape(length, cp, width // cp).transpose(0, 1).contiguous()
            parts.append(undo(exchange(send, group).reshape(cp * length, width // cp), cp))
        documents.append(torch.cat(parts, -1))
    return torch.cat(documents)


def to_heads_views(x: Tensor, cu: Any, group: Any) -> Tensor:
    return to_heads(x, cu, group, functional, undo_by_views)


def to_heads_index(x: Tensor, cu: Any, group: Any) -> Tensor:
    return to_heads(x, cu, group, with_splits, undo_by_index)


def to_heads_slices(x: Tensor, cu: Any, group: Any) -> Tensor:
    return to_heads(x, cu, group, in_place, undo_by_slices)


def to_heads_zip(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Boundaries of the shard, computed before the loop."""
    cp = dist.get_world_size(group)
    local = cu // cp
    out = []
    for start, stop in zip(local[:-1], local[1:]):  # noqa: B905, RUF007
        part = x[start:stop]
        send = torch.stack(part.chunk(cp, -1))
        out.append(undo_by_chunks(function(send, group).flatten(0, 1), cp))
    return torch.cat(out, 0)


def to_heads_checked(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Lists of numbers, asserted lengths, a preallocated result."""
    cp = dist.get_world_size(group)
    numbers = cu.tolist() if isinstance(cu, Tensor) else cu
    out = x.new_zeros((x.shape[0] * cp, x.shape[1] // cp))
    for start, stop in zip(numbers[:-1], numbers[1:]):  # noqa: B905, RUF007
        torch._check((stop - start) % (2 * cp) == 0)
        part = x.narrow(0, start // cp, (stop - start) // cp)
        send = part.unflatten(1, (cp, -1)).movedim(1, 0).contiguous()
        out[start:stop] = undo_by_slices(functional(send, group).view(stop - start, -1), cp)
    return out


def to_heads_once_per_document(x: Tensor, cu: Any, group: Any) -> Tensor:
    """All sections of a document in one exchange."""
    cp = dist.get_world_size(group)
    documents = []
    for i in range(len(cu) - 1):
        part = x[cu[i] // cp : cu[i + 1] // cp]
        cut = [s.unflatten(-1, (cp, -1)) for s in part.split(widths(cp), -1)]
        received = function(torch.cat(cut, -1).transpose(0, 1).contiguous(), group)
        documents.append(undo_by_chunks(received.flatten(0, 1), cp))
    return torch.cat(documents)


def to_heads_three(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Query, key and value as tensors of their own, with heads and widths; permutations inside the function."""
    cp = dist.get_world_size(group)
    q, k, v = (t.unflatten(-1, (-1, 2)) for t in x.split([cp * 8, cp * 8, cp * 12], -1))
    out = []
    for i in range(len(cu) - 1):
        start, stop = cu[i] // cp, cu[i + 1] // cp
        moved = [undo_by_chunks(TokensForHeads.apply(t[start:stop], group), cp) for t in (q, k, v)]
        out.append(torch.cat(moved, 1))
    return torch.cat(out).flatten(1)


def to_heads_batched(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Tokens in dimension 1."""
    cp = dist.get_world_size(group)
    rows = torch.stack([x, 2 * x])
    out = []
    for i in range(len(cu) - 1):
        part = rows[:, cu[i] // cp : cu[i + 1] // cp]
        batch, length, width = part.shape
        send = part.reshape(batch, length, cp, width // cp).permute(2, 0, 1, 3).contiguous()
        received = function(send, group)  # [cp, B, l, w]
        out.append(undo_by_chunks(received.permute(0, 2, 1, 3).reshape(cp * length, batch, -1), cp).transpose(0, 1))
    return torch.cat(out, 1)


def to_heads_sections_outside(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Documents inside sections: one loop per section."""
    cp = dist.get_world_size(group)
    parts = []
    for section in torch.split(x, widths(cp), -1):
        documents = []
        for i in range(len(cu) - 1):
            piece = section[cu[i] // cp : cu[i + 1] // cp]
            send = piece.unflatten(1, (cp, -1)).transpose(0, 1).contiguous()
            documents.append(undo_by_chunks(functional(send, group).flatten(0, 1), cp))
        parts.append(torch.cat(documents))
    return torch.cat(parts, -1)


def to_heads_then_norm(x: Tensor, cu: Any, group: Any) -> Tensor:
    """What is exchanged is used in the same loop, document by document."""
    cp = dist.get_world_size(group)
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] // cp : cu[i + 1] // cp]
        send = part.unflatten(1, (cp, -1)).transpose(0, 1).contiguous()
        y = undo_by_chunks(function(send, group).flatten(0, 1), cp)
        out.append(torch.relu(y) * torch.arange(y.shape[0], device=y.device)[:, None] + y.flip(0))
    return torch.cat(out)


def unpack(x: Tensor, cu: Any) -> list[Tensor]:
    """The documents of a row."""
    documents = []
    for i in range(cu.shape[0] - 1):
        documents.append(x[cu[i].item() : cu[i + 1].item()])
    return documents


def split_and_stack(x: Tensor, group: Any) -> Tensor:
    """Tokens for heads, ``[l, B, H]`` to ``[cp * l, B, H / cp]``: the parts of all ranks one below the other."""
    cp = dist.get_world_size(group)
    length, batch, width = x.shape
    below = torch.cat(torch.split(x, width // cp, dim=-1), dim=0)
    return function(below, group).reshape(length * cp, batch, width // cp)


def to_heads_listed(x: Tensor, cu: Any, group: Any) -> Tensor:
    """A list of documents first, then a loop over the list."""
    cp = dist.get_world_size(group)
    outputs = []
    for document in unpack(x.unsqueeze(1), cu // cp):
        moved = torch.cat([split_and_stack(s, group) for s in torch.split(document, widths(cp), -1)], dim=-1)
        chunks = torch.chunk(moved, 2 * cp, dim=0)
        order = [2 * i for i in range(cp)] + [2 * cp - 2 * i - 1 for i in range(cp)]
        outputs.append(torch.cat([chunks[i] for i in order], dim=0))
    return torch.cat(outputs, dim=0).squeeze(1)


# === heads to tokens ============================================================================================


def to_tokens(
    x: Tensor, cu: Any, group: Any, exchange: Callable[..., Tensor] = function, redo: Any = redo_by_chunks
) -> Tensor:
    cp = dist.get_world_size(group)
    documents = []
    for i in range(len(cu) - 1):
        start, stop = cu[i], cu[i + 1]
        parts = []
        for section in torch.split(x[start:stop], [w // cp for w in widths(cp)], -1):
            length, width = section.shape
            received = exchange(redo(section, cp).reshape(cp, length // cp, width), group)
            parts.append(received.transpose(0, 1).reshape(length // cp, cp * width))
        documents.append(torch.cat(parts, -1))
    return torch.cat(documents)


def to_tokens_views(x: Tensor, cu: Any, group: Any) -> Tensor:
    return to_tokens(x, cu, group, functional, redo_by_views)


def to_tokens_written(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Into a preallocated shard, cut by ``cu // cp``."""
    cp = dist.get_world_size(group)
    out = x.new_zeros((x.shape[0] // cp, x.shape[1] * cp))
    for i in range(len(cu) - 1):
        start, stop = cu[i], cu[i + 1]
        send = redo_by_chunks(x[start:stop], cp).unflatten(0, (cp, -1))
        received = functional(send, group)
        out[start // cp : stop // cp] = received.movedim(0, 1).flatten(1)
    return out


def to_tokens_heads(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Heads and widths, reassembled by cat."""
    cp = dist.get_world_size(group)
    y = x.unflatten(-1, (-1, 2))
    out = []
    for start, stop in pairwise(cu):
        send = redo_by_chunks(y[start:stop], cp).reshape(cp, (stop - start) // cp, -1, 2)
        out.append(torch.cat(functional(send, group).unbind(0), 1))
    return torch.cat(out).flatten(1)


def round_trip(x: Tensor, cu: Any, group: Any) -> Tensor:
    """A layer: to heads, something per token, and back."""
    return to_tokens(torch.relu(to_heads(x, cu, group)) * 3, cu, group, function, redo_by_views) + x


# === shards of one piece ========================================================================================


def contiguous_shards(x: Tensor, cu: Any, group: Any) -> Tensor:
    """No zigzag: the chunks are left in the order of the ranks."""
    return to_heads(x, cu, group, functional, lambda y, cp: y)


# === what must stay as it is ====================================================================================


def wrong_order(x: Tensor, cu: Any, group: Any) -> Tensor:
    def undo(y: Tensor, cp: int) -> Tensor:
        chunks = list(undo_by_chunks(y, cp).chunk(2 * cp))
        chunks[0], chunks[-1] = chunks[-1], chunks[0]
        return torch.cat(chunks)

    return to_heads(x, cu, group, functional, undo)


def twice(x: Tensor, cu: Any, group: Any) -> Tensor:
    """One exchange depends on the other, with arithmetic between."""
    return to_heads(x, cu, group, lambda t, g: functional(functional(t, g) + 1, g))


def wrong_backward(x: Tensor, cu: Any, group: Any) -> Tensor:
    """The gradient is not the inverse exchange."""
    cp = dist.get_world_size(group)
    y = x.unflatten(-1, (-1, 2))
    out = []
    for i in range(len(cu) - 1):
        part = y[cu[i] // cp : cu[i + 1] // cp]
        out.append(undo_by_chunks(TokensForHeadsWrong.apply(part, group), cp))
    return torch.cat(out)


def changed_in_loop(x: Tensor, cu: Any, group: Any) -> Tensor:
    """The source is written where it is read."""
    cp = dist.get_world_size(group)
    x = x.clone()
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] // cp : cu[i + 1] // cp]
        part.mul_(2)
        send = part.unflatten(1, (cp, -1)).transpose(0, 1).contiguous()
        out.append(undo_by_chunks(functional(send, group).flatten(0, 1), cp))
    return torch.cat(out) + x.sum()


def received_changed(x: Tensor, cu: Any, group: Any) -> Tensor:
    """What came from other ranks is changed before it is put in order."""
    cp = dist.get_world_size(group)
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] // cp : cu[i + 1] // cp]
        received = in_place(part.unflatten(1, (cp, -1)).transpose(0, 1).contiguous(), group)
        received[0].zero_()
        out.append(undo_by_chunks(received.flatten(0, 1), cp))
    return torch.cat(out)


def one_rank_kept(x: Tensor, cu: Any, group: Any) -> Tensor:
    """Only a part of what is received is used, the own one."""
    cp, rank = dist.get_world_size(group), dist.get_rank(group)
    out = []
    for i in range(len(cu) - 1):
        part = x[cu[i] // cp : cu[i + 1] // cp]
        received = functional(part.unflatten(1, (cp, -1)).transpose(0, 1).contiguous(), group)
        out.append(received[rank])
    return torch.cat(out)


@dataclasses.dataclass(frozen=True)
class Case:
    program: Callable[..., Tensor]
    sharded: bool
    """Takes a shard of the tokens."""
    exchanges: int = 1
    differentiable: bool = True
    """Does eager give a gradient? (Not through ``dist.all_to_all_single`` and not through functional collectives.)"""
    empty: bool = False
    """Does it run by hand with an empty document? (Not with a -1 among the sizes of a reshape.)"""


REWRITTEN = {
    case.program.__name__: case
    for case in (
        Case(to_heads, True, empty=True),
        Case(to_heads_views, True, differentiable=False),
        Case(to_heads_index, True, differentiable=False),
        Case(to_heads_slices, True, differentiable=False),
        Case(to_heads_zip, True),
        Case(to_heads_checked, True, differentiable=False),
        Case(to_heads_once_per_document, True),
        Case(to_heads_three, True),
        Case(to_heads_batched, True),
        Case(to_heads_listed, True),
        Case(to_heads_sections_outside, True, differentiable=False),
        Case(to_heads_then_norm, True),
        Case(to_tokens, False, empty=True),
        Case(to_tokens_views, False, differentiable=False),
        Case(to_tokens_written, False, differentiable=False),
        Case(to_tokens_heads, False, differentiable=False),
        Case(round_trip, True, 2),
        Case(contiguous_shards, True, differentiable=False, empty=True),
    )
}
LEFT = {
    program.__name__: Case(program, True)
    for program in (
        wrong_order, twice, wrong_backward, changed_in_loop, received_changed, one_rank_kept,
    )
}  # fmt: skip
