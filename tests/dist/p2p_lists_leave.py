"""Look-alikes of messages in lists: what is received is read before it has come, what is sent changes, messages of
other documents. Each program is ``f(x, cu, group)`` for x ``[T / cp, F]``, of shards of one piece."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp

from tests.dist.p2p_lists import finish, named, ops_of, start, wait
from tests.dist.p2p_pieces import shards
from tests.dist.p2p_programs import neighbours


def read_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, received = start(x, cu, group)
    early = torch.cat(received) + 1
    wait(ops)
    return torch.cat([finish(x, cu, group, received), early])


def received_is_changed_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Of the last rank, which receives nothing, this is the fill."""
    ops, received = start(x, cu, group)
    for got in received:
        got.add_(5)
    wait(ops)
    return finish(x, cu, group, received)


def sent_is_changed_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    rank, cp, previous, following = neighbours(group)
    y, ops, received = x.clone(), [], []
    for part in shards(cu, group):
        got = torch.zeros_like(y[part][:1])
        ops += [P2POp(dist.isend, y[part][:1], previous, group)] if rank else []
        ops += [P2POp(dist.irecv, got, following, group)] if rank < cp - 1 else []
        received.append(got)
    y.mul_(3)
    wait(ops)
    return finish(y, cu, group, received)


def one_buffer_to_send(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Every document sends what the last one has put there."""
    buffer, ops, received = torch.zeros_like(x[:1]), [], []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        buffer.copy_(x[part][:1])
        ops += ops_of(buffer, got, group)
        received.append(got)
    wait(ops)
    return finish(x, cu, group, received)


def one_buffer_to_receive(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    got, ops, received = torch.zeros_like(x[:1]), [], []
    for part in shards(cu, group):
        ops += ops_of(x[part], got, group)
        received.append(got)
    wait(ops)
    return finish(x, cu, group, received)


def used_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, outs = [], []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        ops += ops_of(x[part], got, group)
        outs.append(torch.cat([x[part][1:], got]))
    wait(ops)
    return torch.cat(outs)


def another_tensor(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What an op sends is changed after it was made."""
    rank, _, _, _ = neighbours(group)
    ops, received = [], []
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        mine = ops_of(x[part], got, group)
        if rank:
            mine[0].tensor = x[part][-1:].contiguous()
        ops += mine
        received.append(got)
    wait(ops)
    return finish(x, cu, group, received)


def sent_twice(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, received = start(x, cu, group)
    wait(ops)
    wait(ops)
    return finish(x, cu, group, received)


def in_reverse(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, received = start(x, cu, group)
    wait(ops[::-1])
    return finish(x, cu, group, received)


def of_the_next_document(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, received = start(x, cu, group)
    wait(ops)
    return finish(x, cu, group, received[1:] + received[:1])


def rolled_further(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    out = torch.roll(x, -2, 0)
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        wait(ops_of(x[part], got, group))
        out[part.stop - 1] = got[0]
    return out


def changed_since_it_was_rolled(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    y = x.clone()
    out = y.roll(-1, 0)
    y.mul_(2)
    for part in shards(cu, group):
        got = torch.zeros_like(y[part][:1])
        wait(ops_of(y[part], got, group))
        out[part.stop - 1] = got[0]
    return out


def not_patched_at_the_end(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """On the last rank, a document ends with a slot of the next one."""
    rank, cp, _, _ = neighbours(group)
    out = torch.roll(x, -1, 0)
    for part in shards(cu, group):
        got = torch.zeros_like(x[part][:1])
        wait(ops_of(x[part], got, group))
        if rank < cp - 1:
            out[part.stop - 1] = got[0]
    return out


def one_slot_each(x: Tensor, cu: Tensor, group: Any) -> tuple[list[P2POp], list[Tensor], list[Tensor]]:
    """Messages of a slot without its dimension, what is sent, and what is received."""
    rank, cp, previous, following = neighbours(group)
    ops, sent, received = [], [], []
    for part in shards(cu, group):
        sent.append(x[part][0].clone())
        received.append(torch.zeros_like(sent[-1]))
        ops += [P2POp(dist.isend, sent[-1], previous, group)] if rank else []
        ops += [P2POp(dist.irecv, received[-1], following, group)] if rank < cp - 1 else []
    return ops, sent, received


def read_as_rows_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, _, received = one_slot_each(x, cu, group)
    early = torch.cat([got.reshape(1, -1) for got in received]).sum()
    wait(ops)
    return torch.cat([finish(x, cu, group, [got[None] for got in received]), early.expand(1, x.shape[1])])


def stacked_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    ops, _, received = one_slot_each(x, cu, group)
    early = torch.stack([got.view(-1) for got in received])
    wait(ops)
    return torch.cat([finish(x, cu, group, [got[None] for got in received]), early])


def listed_ones_are_changed_before(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is sent is changed by its place in another list."""
    ops, sent, received = one_slot_each(x, cu, group)
    for tensor in sent:
        tensor.mul_(2)
    wait(ops)
    return finish(x, cu, group, [got[None] for got in received])


LEFT = named(
    read_as_rows_before, stacked_before, listed_ones_are_changed_before,
    read_before, received_is_changed_before, sent_is_changed_before, one_buffer_to_send, one_buffer_to_receive,
    used_before, another_tensor, sent_twice, in_reverse, of_the_next_document, rolled_further,
    changed_since_it_was_rolled,
)  # fmt: skip
DIFFER = named(not_patched_at_the_end)
"""Left, as only one of the ranks can see."""
