"""Exchanges of shards that are one piece of every document: rank r holds the r-th of cp parts, no zigzag.

Each is ``f(x, cu, group)`` as in `a2a_hard_programs`; documents divide by the group's size only.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.dist.a2a_moves import size_of
from tests.dist.a2a_spelled_programs import Lists, documents, exchange
from tests.dist.naive import AllToAll

# === Rewritten ==================================================================================================


def pieces_to_heads(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Sections by themselves, the parts of the ranks joined in their order."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        out = []
        for sec in x[s // cp : e // cp].split([cp * 4, cp * 6, cp * 2], -1):
            out.append(exchange(torch.stack(sec.chunk(cp, -1)), group).flatten(0, 1))
        rows.append(torch.cat(out, -1))
    return torch.cat(rows)


def pieces_of_own_boundaries(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Boundaries of the shard, counted before the loop."""
    cp, rows = size_of(group), []
    for s, e in pairwise((cu // cp).tolist()):
        send = x[s:e].unflatten(-1, (cp, -1)).transpose(0, 1).contiguous()
        rows.append(AllToAll.apply(send, group).reshape(cp * (e - s), -1))
    return torch.cat(rows)


def pieces_to_tokens(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        rows.append(torch.cat(list(exchange(torch.stack(x[s:e].chunk(cp)), group)), -1))
    return torch.cat(rows)


def pieces_into_the_shard(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The result is written document by document."""
    cp = size_of(group)
    out = x.new_zeros((x.shape[0] // cp, x.shape[1] * cp))
    for s, e in pairwise(cu.tolist()):
        received = AllToAll.apply(x[s:e].unflatten(0, (cp, -1)).contiguous(), group)
        out[s // cp : e // cp] = received.permute(1, 0, 2).flatten(1)
    return out


def pieces_there_and_back(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A layer: all tokens of some heads in between."""
    heads = torch.tanh(pieces_to_heads(x, cu, group))
    return pieces_to_tokens(heads, cu, group)


def pieces_in_one_loop(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """There and back document by document."""
    cp, rows = size_of(group), []
    for s, e in pairwise(cu.tolist()):
        heads = exchange(torch.stack(x[s // cp : e // cp].chunk(cp, -1)), group).flatten(0, 1)
        rows.append(torch.cat(list(exchange(torch.stack(torch.tanh(heads).chunk(cp)), group)), -1))
    return torch.cat(rows)


# === Left alone =================================================================================================


def pieces_from_the_end(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Rank r holds the r-th part from the end."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = exchange(torch.stack(x[s // cp : e // cp].chunk(cp, -1)), group)
        rows.append(got.flip(0).flatten(0, 1))
    return torch.cat(rows)


def pieces_of_the_next(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The part of the next rank."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        parts = x[s:e].chunk(cp)
        got = exchange(torch.stack(parts[1:] + parts[:1]), group)
        rows.append(torch.cat(list(got), -1))
    return torch.cat(rows)


def every_other_token(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Token t lies on rank t % cp."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        got = exchange(torch.stack(x[s // cp : e // cp].chunk(cp, -1)), group)
        rows.append(got.transpose(0, 1).flatten(0, 1))
    return torch.cat(rows)


def pieces_of_heads_from_the_end(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Rank r gets the heads of the r-th rank from the end."""
    cp, rows = size_of(group), []
    for s, e in documents(cu):
        parts = x[s // cp : e // cp].chunk(cp, -1)
        out = torch.empty_like(send := torch.stack(parts[::-1]))
        dist.all_to_all_single(out, send, group=group)
        rows.append(out.flatten(0, 1))
    return torch.cat(rows)


def pieces_by_sections(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """``tensor_split`` of a document's tokens, one part for each rank."""
    return torch.cat([Lists.apply(x[s:e], 0, 1, group) for s, e in documents(cu)])


def pieces_in_lists(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Two lists of all documents, one of what is made of both, and one of what goes back."""
    cp = size_of(group)

    def there(part: Tensor) -> Tensor:
        return AllToAll.apply(part.unflatten(-1, (cp, -1)).transpose(0, 1).contiguous(), group).flatten(0, 1)

    def back(part: Tensor) -> Tensor:
        return AllToAll.apply(part.unflatten(0, (cp, -1)).contiguous(), group).permute(1, 0, 2).flatten(1)

    lengths = (torch.diff(cu) // cp).tolist()
    queries = [there(part) for part in x.split(lengths)]
    keys = [there(part) for part in x.split(lengths)]
    mixed = [one * two + 1 for one, two in zip(queries, keys, strict=True)]
    return torch.cat([back(part) for part in mixed])
