"""Several rows in one message, and parts of what is received: query, key and value of a layer together.

Each is ``f(x, cu, group)`` as in `a2a_hard_programs`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from tests.dist.a2a_moves import size_of, unzigzag
from tests.dist.a2a_spelled_programs import chunks_of_ranks, documents
from tests.dist.naive import AllToAll


def _to_heads(send: Tensor, group: Any) -> Tensor:
    """``[l, cp, ..]``: what each rank gets of a shard -> all tokens in order."""
    received = AllToAll.apply(send.transpose(0, 1).contiguous(), group)
    return unzigzag(received.flatten(0, 1), size_of(group))


# === Rewritten ==================================================================================================


def three_rows_in_a_message(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    fields = x.chunk(3, -1)
    for s, e in documents(cu):
        parts = [row[s // cp : e // cp].reshape((e - s) // cp, cp, -1) for row in fields]
        out.append(_to_heads(torch.cat(parts, -1), group))
    return torch.cat(out)


def rows_stacked_in_a_message(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    query, key, value = x.chunk(3, -1)
    for s, e in pairwise(cu.tolist()):
        rows = [row[s // cp : e // cp].unflatten(-1, (cp, -1)) for row in (query, key, value)]
        out.append(_to_heads(torch.stack(rows, 2), group))
    query, key, value = torch.cat(out).unbind(1)
    return query * key + value


def rows_one_of_which_is_detached(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    first, second = x.chunk(2, -1)
    second = second.detach()
    for s, e in pairwise(cu.tolist()):
        rows = [row[s // cp : e // cp].unflatten(-1, (cp, -1)) for row in (first, second)]
        out.append(_to_heads(torch.cat(rows, -1), group))
    return torch.cat(out)


def two_rows_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """All tokens of some heads of two rows, in one message to the shards."""
    cp, out = size_of(group), []
    first, second = x.split([8, 4], -1)
    for s, e in pairwise(cu.tolist()):
        send = chunks_of_ranks(torch.cat([first[s:e], second[s:e]], -1), cp)
        out.append(torch.cat(list(AllToAll.apply(send, group)), -1))
    return torch.cat(out)


def two_rows_gathered(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    key, value = x.detach().chunk(2, -1)
    for s, e in pairwise(cu.tolist()):
        mine = torch.stack([key[s // cp : e // cp], value[s // cp : e // cp]], 1)
        whole = mine.new_empty((cp * mine.shape[0], *mine.shape[1:]))
        dist.all_gather_into_tensor(whole, mine, group=group)
        out.append(unzigzag(whole, cp))
    return torch.cat(out).flatten(1)


def parts_of_an_exchange(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A layer: what is received is cut in query, key and value before attention, whose result goes back."""
    cp, out = size_of(group), []
    for s, e in documents(cu):
        heads = _to_heads(x[s // cp : e // cp].unflatten(-1, (cp, -1)), group)
        query, key, value = (part.unflatten(-1, (2, -1)).transpose(0, 1)[None] for part in heads.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)[0].transpose(0, 1).flatten(1)
        out.append(torch.cat(list(AllToAll.apply(chunks_of_ranks(mixed, cp), group)), -1))
    return torch.cat(out)


def parts_taken_apart_by_number(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        heads = _to_heads(x[s // cp : e // cp].unflatten(-1, (cp, -1)), group)
        query, key, value = heads.view(-1, 3, 4).unbind(1)
        mixed = query.cumsum(0) * key + value.tanh()
        out.append(torch.cat(list(AllToAll.apply(chunks_of_ranks(mixed, cp), group)), -1))
    return torch.cat(out)


# === Left =======================================================================================================


def rows_of_two_dtypes(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), []
    first, second = x.chunk(2, -1)
    second = second.double()
    for s, e in pairwise(cu.tolist()):
        rows = [row[s // cp : e // cp].unflatten(-1, (cp, -1)) for row in (first, second)]
        out.append(_to_heads(torch.cat(rows, -1), group))
    return torch.cat(out)


def rows_one_behind_the_other(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Tokens of two rows in one message: the document is twice as long."""
    cp, out = size_of(group), []
    first, second = x.chunk(2, -1)
    for s, e in pairwise(cu.tolist()):
        rows = [row[s // cp : e // cp].unflatten(-1, (cp, -1)) for row in (first, second)]
        out.append(_to_heads(torch.cat(rows, 0), group))
    return torch.cat(out)


def shard_beside_the_whole(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """One row is a shard, of the other every rank has all tokens: chunks of two kinds in one message."""
    cp, out = size_of(group), []
    whole = torch.cat([x.detach()] * cp).sin()
    for s, e in pairwise(cu.tolist()):
        rows = [x[s // cp : e // cp], whole[s:e][: (e - s) // cp]]
        out.append(_to_heads(torch.cat(rows, -1).unflatten(-1, (cp, -1)), group))
    return torch.cat(out)


def parts_that_wrap(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """What is sent back depends on the next rank's part in another order."""
    cp, out = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        heads = _to_heads(x[s // cp : e // cp].unflatten(-1, (cp, -1)), group)
        query, key, value = heads.chunk(3, -1)
        send = chunks_of_ranks(query * key + value, cp).flip(1)
        out.append(torch.cat(list(AllToAll.apply(send, group)), -1))
    return torch.cat(out)
