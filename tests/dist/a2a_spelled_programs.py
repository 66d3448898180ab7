"""One exchange in many spellings: chunk, split, stack of cats, lists, comprehensions, positions, given buffers.

Each is ``f(x, cu, group)`` as in `a2a_hard_programs`. Most use the differentiable collective of
``torch.distributed.nn``, which is given the memory for its result.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor

from tests.dist.a2a_moves import size_of

SECTIONS = (4, 6, 2)
"""Columns per rank."""


def exchange(mine: Tensor, group: Any) -> Tensor:
    out: Tensor = differentiable.all_to_all_single(torch.empty_like(mine), mine, group=group)
    return out


def documents(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist())  # noqa: B905


def chunks_of_ranks(tokens: Tensor, cp: int, dim: int = 0) -> Tensor:
    """``[cp, 2 * h, ..]``: what every rank gets of a document."""
    c = tokens.chunk(2 * cp, dim)
    return torch.stack([torch.cat((c[r], c[2 * cp - 1 - r]), dim) for r in range(cp)])


# === Rewritten ==================================================================================================


def sections_stacked(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        out = []
        for sec in x[s:e].split([w for w in SECTIONS], -1):  # noqa: C416
            got = exchange(chunks_of_ranks(sec, cp), group)
            out.append(torch.cat(list(got), -1))
        rows.append(torch.cat(out, -1))
    return torch.cat(rows)


def pieces_by_other_names(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """``hsplit`` and ``vstack``: torch knows what they are made of."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = exchange(torch.vstack(x[s // cp : e // cp].hsplit(cp)), group)
        halves = [g.chunk(2) for g in got.chunk(cp)]
        rows.append(torch.vstack([h[0] for h in halves] + [h[1] for h in reversed(halves)]))
    return torch.vstack(rows)


def halves_of_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """To heads, each section by itself, the chunks sorted by lists."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        out = []
        for sec in x[s // cp : e // cp].split([cp * w for w in SECTIONS], -1):
            got = exchange(torch.stack(list(sec.chunk(cp, -1))), group)
            halves = [g.chunk(2, 0) for g in got]
            out.append(torch.cat([h[0] for h in halves] + [h[1] for h in reversed(halves)]))
        rows.append(torch.cat(out, -1))
    return torch.cat(rows)


def round_trip(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return sections_stacked(torch.sin(halves_of_ranks(x, cu, group)), cu, group)


def three_dtypes(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Fields of a batch, document by document."""
    cp = size_of(group)
    fields = {"logits": x[:, :4].float(), "hidden": x[:, 4:8].bfloat16(), "values": x[:, 8:].double()}
    rows: dict[str, list[Tensor]] = {name: [] for name in fields}
    for s, e in documents(cu):
        for name, field in fields.items():
            rows[name].append(torch.cat(list(exchange(chunks_of_ranks(field[s:e], cp), group)), -1))
    return torch.cat([torch.cat(parts).double() for parts in rows.values()], -1)


def order_of_chunks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    order = [i for r in range(cp) for i in (r, 2 * cp - 1 - r)]
    for s, e in documents(cu):
        n = (e - s) // (2 * cp)
        mine = x[s:e].view(2 * cp, n, -1)[order].reshape(cp, 2 * n, -1).contiguous()
        rows.append(exchange(mine, group).permute(1, 0, 2).reshape(2 * n, -1))
    return torch.cat(rows)


def heads_apart(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    x = x.unflatten(-1, (-1, 4))
    for s, e in documents(cu):
        rows.append(torch.cat(exchange(chunks_of_ranks(x[s:e], cp), group).unbind(0), 1))
    return torch.cat(rows)


def batch_in_front(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    both = torch.stack([x, x.detach()])
    for s, e in documents(cu):
        rows.append(torch.cat(list(exchange(chunks_of_ranks(both[:, s:e], cp, 1), group)), -1))
    return torch.cat(rows, 1)


def comprehension_of_parts(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)

    def one(document: Tensor) -> Tensor:
        c = document.chunk(2 * cp)
        mine = torch.cat([torch.cat((c[r], c[-1 - r])) for r in range(cp)])
        return torch.cat(exchange(mine, group).chunk(cp), -1)

    return torch.cat([one(part) for part in x.split((cu[1:] - cu[:-1]).tolist())])


def positions(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows, ends = size_of(group), [], cu.tolist()
    for i in range(len(ends) - 1):
        document = x[ends[i] : ends[i + 1]]
        h = document.size(0) // (2 * cp)
        parts = []
        for r in range(cp):
            last = 2 * cp - 1 - r
            parts.append(torch.cat([document[r * h : (r + 1) * h], document[last * h : (last + 1) * h]]))
        got = exchange(torch.stack(parts), group)
        rows.append(torch.cat([got[r] for r in range(cp)], dim=-1))
    return torch.cat(rows)


def filled_list(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = exchange(torch.stack(torch.tensor_split(x[s // cp : e // cp], cp, dim=-1)), group)
        out: list[Any] = [None] * (2 * cp)
        for r in range(cp):
            out[r], out[2 * cp - 1 - r] = got[r].chunk(2)
        rows.append(torch.cat(out))
    return torch.cat(rows)


def given_buffer(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = chunks_of_ranks(x[s:e], cp)
        out = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        got = differentiable.all_to_all_single(out, mine, [1] * cp, [1] * cp, group)
        rows.append(torch.cat(list(got), -1))
    return torch.cat(rows)


class Into(torch.autograd.Function):
    """An exchange that is given the memory for its result."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.shape = group, x.size()
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        back = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device)
        dist.all_to_all_single(back, grad.contiguous(), group=ctx.group)
        return None, back, None


def own_function(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = chunks_of_ranks(x[s:e], cp)
        rows.append(torch.cat(list(Into.apply(torch.empty_like(mine), mine, group)), -1))
    return torch.cat(rows)


def one_rank_used(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = list(exchange(chunks_of_ranks(x[s:e], cp), group))
        rows.append(torch.cat([got[0]] * cp, -1))
    return torch.cat(rows)


def lists(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """``dist.all_to_all``, a tensor for each rank."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = [part.contiguous() for part in x[s // cp : e // cp].chunk(cp, dim=-1)]
        got = [torch.empty_like(part) for part in mine]
        dist.all_to_all(got, mine, group=group)
        rows.append(_unsorted(torch.cat(got), cp))
    return torch.cat(rows)


def handles(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two halves are on their way at a time, and waited for where they are used."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        works, parts = [], []
        for half in x[s // cp : e // cp].chunk(2, -1):
            mine = torch.stack(half.chunk(cp, -1))
            parts.append(torch.empty_like(mine))
            works.append(dist.all_to_all_single(parts[-1], mine, group=group, async_op=True))
        for work in works:
            work.wait()
        rows.append(torch.cat([_unsorted(part.flatten(0, 1), cp) for part in parts], -1))
    return torch.cat(rows)


class Lists(torch.autograd.Function):
    """As libraries have it: one function for both ways, told what to scatter and what to gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scatter: int, gather: int, group: Any) -> Tensor:
        ctx.how = gather, scatter, group
        return _by_lists(x, scatter, gather, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _by_lists(grad, *ctx.how), None, None, None


def _by_lists(x: Tensor, scatter: int, gather: int, group: Any) -> Tensor:
    mine = [t.contiguous() for t in torch.tensor_split(x, size_of(group), scatter)]
    got = [torch.empty_like(mine[0]) for _ in mine]
    dist.all_to_all(got, mine, group=group)
    return torch.cat(got, dim=gather).contiguous()


def lists_in_a_function(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([_unsorted(Lists.apply(x[s // cp : e // cp], 1, 0, group), cp) for s, e in documents(cu)])


def differentiable_lists(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = [part.contiguous() for part in x[s // cp : e // cp].chunk(cp, dim=-1)]
        got = differentiable.all_to_all([torch.empty_like(part) for part in mine], mine, group=group)
        rows.append(_unsorted(torch.cat(got), cp))
    return torch.cat(rows)


def _unsorted(tokens: Tensor, cp: int) -> Tensor:
    chunks = tokens.chunk(2 * cp)
    return torch.cat([*chunks[::2], *chunks[::-2]])


# === Left as they are ===========================================================================================


def halves_swapped(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        c = x[s:e].chunk(2 * cp)
        mine = torch.stack([torch.cat((c[2 * cp - 1 - r], c[r])) for r in range(cp)])
        rows.append(torch.cat(list(exchange(mine, group)), -1))
    return torch.cat(rows)


def first_chunk_for_all(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """An index that never moves on."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        c = x[s:e].chunk(2 * cp)
        mine = torch.stack([torch.cat((c[0], c[-1])) for _ in range(cp)])
        rows.append(torch.cat(list(exchange(mine, group)), -1))
    return torch.cat(rows)


def buffer_looked_at(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The numbers without their gradient."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = chunks_of_ranks(x[s:e], cp)
        out = torch.empty_like(mine)
        got = differentiable.all_to_all_single(out, mine, group=group)
        rows.append(torch.cat(list(got), -1) + torch.cat(list(out), -1))
    return torch.cat(rows)


def result_changed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = exchange(chunks_of_ranks(x[s:e].detach(), cp), group)
        got[0] *= 2
        rows.append(torch.cat(list(got), -1))
    return torch.cat(rows)


def same_buffer_twice(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The second exchange overwrites what the first one returned."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        a, b = (chunks_of_ranks(sec, cp) for sec in x[s:e].chunk(2, -1))
        out = torch.empty_like(a)
        first = Into.apply(out, a.detach(), group)
        second = Into.apply(out, b.detach(), group)
        rows.append(torch.cat([*first, *second], -1))
    return torch.cat(rows)


class IntoScaled(Into):
    """Its gradient is half of what it should be."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        back = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device)
        dist.all_to_all_single(back, grad.contiguous(), group=ctx.group)
        return None, back / 2, None


class IntoAdded(Into):
    """What the buffer held counts."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, group: Any) -> Tensor:
        ctx.group, ctx.shape = group, x.size()
        before = out * 1
        dist.all_to_all_single(out, x, group=group)
        return out + before


def _into(function: Any, x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = chunks_of_ranks(x[s:e], cp)
        rows.append(torch.cat(list(function.apply(torch.zeros_like(mine), mine, group)), -1))
    return torch.cat(rows)


def scaled_into(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _into(IntoScaled, x, cu, group)


def added_into(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _into(IntoAdded, x, cu, group)


def uneven_lists(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The last rank gets more columns than the others."""
    cp, rank, rows = size_of(group), dist.get_rank(group), []
    for s, e in documents(cu):
        mine = [x[s:e, r : r + 2 + (r == cp - 1)].contiguous() for r in range(cp)]
        got = [x.new_empty(e - s, 2 + (rank == cp - 1)) for _ in range(cp)]
        dist.all_to_all(got, mine, group=group)
        rows.append(torch.cat(got))
    return torch.cat(rows)


def uneven_parts(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """As many tokens for every rank, but not as many rows of what is sent."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        mine = torch.cat([chunks_of_ranks(x[s:e], cp), chunks_of_ranks(-x[s:e], cp)])
        splits = [1] * (cp - 1) + [cp + 1]
        back = [1 if dist.get_rank(group) < cp - 1 else cp + 1] * cp
        out = mine.new_empty(sum(back), *mine.shape[1:])
        got = differentiable.all_to_all_single(out, mine, back, splits, group)
        rows.append(got.sum(0))
    return torch.cat(rows)
