"""Exchanges whose results are looked at in a later loop, changed in place, or chosen by numbers that are spelled out.

Each is ``f(x, cu, group)`` as in `a2a_hard_programs`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.a2a_moves import gather_sequence, gathered, scatter_sequence, size_of, unzigzag, zigzag
from tests.dist.naive import AllToAll


def shares(cu: Tensor, cp: int) -> Any:
    return zip(cu[:-1] // cp, cu[1:] // cp)  # noqa: B905


def started(document: Tensor, group: Any) -> tuple[Tensor, Any]:
    send = torch.stack(document.detach().chunk(size_of(group), -1))
    received = torch.empty_like(send)
    return received, dist.all_to_all_single(received, send, group=group, async_op=True)


def _finished(received: Tensor, cp: int) -> Tensor:
    return unzigzag(received.flatten(0, 1), cp)


# === Rewritten ==================================================================================================


def waited_behind(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """All documents are on their way before the first is waited for."""
    cp, works, parts = size_of(group), [], []
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)
        parts.append(received)
        works.append(work)
    for work in works:
        work.wait()
    return torch.cat([_finished(received, cp) for received in parts])


def waited_in_pairs(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, parts, rows = size_of(group), [], []
    for start, stop in shares(cu, cp):
        parts.append(started(x[start:stop], group))
    for received, work in parts:
        work.wait()
        rows.append(_finished(received, cp) * 2)
    return torch.cat(rows)


def waited_by_number(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The later loop writes each document into the row that it is put together of."""
    cp, works, parts = size_of(group), [], []
    for start, stop in shares(cu, cp):
        received, work = started(x[start:stop], group)
        parts.append(received)
        works.append(work)
    out = x.new_zeros(x.shape[0] * cp, x.shape[1] // cp)
    for i in range(len(cu) - 1):
        works[i].wait()
        out[cu[i] : cu[i + 1]] = _finished(parts[i], cp)
    return out


def lists_of_handles(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """``dist.all_to_all`` between lists, which returns a handle that its document waits for."""
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        mine = [part.contiguous() for part in x[start:stop].detach().chunk(cp, -1)]
        got = [torch.empty_like(part) for part in mine]
        work = dist.all_to_all(got, mine, group=group, async_op=True)
        work.wait()
        rows.append(unzigzag(torch.cat(got), cp))
    return torch.cat(rows)


def step_by_step(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A list of documents for every step."""
    cp = size_of(group)
    documents = [x[start:stop] for start, stop in shares(cu, cp)]
    sent = [torch.cat(document.chunk(cp, -1)) for document in documents]
    received = [AllToAll.apply(part, group) for part in sent]
    return torch.cat([unzigzag(part, cp) for part in received])


def chosen_by_written_numbers(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The order of chunks is put into a tensor number by number, as TransformerEngine does."""
    cp, rows = size_of(group), []
    order = torch.empty(2 * cp, dtype=torch.int32)
    for rank in range(cp):
        order[rank], order[rank + cp] = 2 * rank, 2 * cp - 2 * rank - 1
    for start, stop in shares(cu, cp):
        got = gather_sequence(x[start:stop], group)
        rows.append(got.view(2 * cp, -1, got.shape[-1]).index_select(0, order).flatten(0, 1))
    return torch.cat(rows)


def viewed_by_sizes(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Everything is flat on the wire, and viewed by sizes that were noted before."""
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        parts = torch.tensor_split(x[start:stop], cp, -1)
        shapes, counts = [part.shape for part in parts], [part.numel() for part in parts]
        flat = AllToAll.apply(torch.cat([part.reshape(-1) for part in parts]), group)
        got, at = [], 0
        for shape, count in zip(shapes, counts):  # noqa: B905
            got.append(flat[at : at + count].view(shape))
            at += count
        rows.append(unzigzag(torch.cat(got), cp))
    return torch.cat(rows)


def changed_when_received(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        document = gathered(x[start:stop], group)
        before = document + 1
        document *= 2
        document[0] += 1
        rows.append(before * document)
    return torch.cat(rows)


def times_new_memory(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """New memory of the received document's kind, between two exchanges."""
    cp, rows = size_of(group), []
    for start, stop in shares(cu, cp):
        heads = gathered(x[start:stop], group)
        rows.append(scatter_sequence(zigzag(heads * heads.new_ones(heads.shape[-1]), cp), group))
    return torch.cat(rows)


# === Left alone =================================================================================================


def written_before_it_is_viewed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        send = torch.stack(x[start // cp : stop // cp].detach().chunk(cp, -1))
        received = torch.empty_like(send)
        dist.all_to_all_single(received, send, group=group)
        received.mul_(2)
        rows.append(_finished(received, cp) + 1)
    return torch.cat(rows)


def changed_and_sent_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        document = gathered(x[start // cp : stop // cp], group)
        document *= 3
        rows.append(scatter_sequence(zigzag(document, cp), group))
    return torch.cat(rows)


def numbers_of_each_rank(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The order of what is sent differs from rank to rank."""
    cp, rank, rows = size_of(group), dist.get_rank(group), []
    order = torch.empty(cp, dtype=torch.int64)
    for r in range(cp):
        order[r] = (r + rank) % cp
    for start, stop in pairwise(cu.tolist()):
        send = torch.stack(x[start // cp : stop // cp].chunk(cp, -1)).index_select(0, order)
        rows.append(unzigzag(AllToAll.apply(send, group).flatten(0, 1), cp))
    return torch.cat(rows)


def numbers_changed_by_documents(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    order = torch.cat([torch.arange(0, 2 * cp, 2), torch.arange(2 * cp - 1, 0, -2)])
    for start, stop in pairwise(cu.tolist()):
        got = gather_sequence(x[start // cp : stop // cp], group)
        rows.append(got.view(2 * cp, -1, got.shape[-1]).index_select(0, order).flatten(0, 1))
        order[0] = 1
    return torch.cat(rows)


def row_changed_between(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What the later loop reads is written before it begins."""
    cp, works, parts = size_of(group), [], []
    scale = x.new_ones(1)
    for start, stop in pairwise(cu.tolist()):
        received, work = started(x[start // cp : stop // cp], group)
        parts.append(received * scale)
        works.append(work)
    scale += 1
    for work in works:
        work.wait()
    return torch.cat([_finished(received, cp) * scale for received in parts])


class ChangedBefore(torch.autograd.Function):
    """Doubles what it sends, in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.clone().mul_(2), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return AllToAll.apply(grad.contiguous(), ctx.group), None


class GradientChanged(torch.autograd.Function):
    """Sends back another gradient on the first rank, for a slot that it sets."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        grad[0] = 0
        return AllToAll.apply(grad, ctx.group), None


def _through(function: Any, x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        sent = torch.cat(x[start // cp : stop // cp].chunk(cp, -1))
        rows.append(unzigzag(function.apply(sent, group), cp))
    return torch.cat(rows)


def changed_before_sent(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _through(ChangedBefore, x, cu, group)


def gradient_changed(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    return _through(GradientChanged, x, cu, group)
