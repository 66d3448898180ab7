"""What is received goes straight into parts of the document in the result.

Each is ``f(x, cu, group)`` as in `a2a_hard_programs`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.dist.a2a_moves import size_of
from tests.dist.naive import AllToAll


def received(x: Tensor, s: int, e: int, group: Any) -> Tensor:
    """``[cp, n, w]``: of the shard ``x[s:e]`` of every rank, this rank's columns."""
    parts = x[s:e].unflatten(-1, (size_of(group), -1)).transpose(0, 1)
    got: Tensor = AllToAll.apply(parts.contiguous(), group)
    return got


def row_of(x: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return x.new_zeros(x.shape[0] * cp, x.shape[1] // cp)


# === Rewritten ==================================================================================================


def by_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The first chunks from the front, the second ones from the back."""
    cp, out = size_of(group), row_of(x, group)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // (2 * cp)
        for r in range(cp):
            out[s + r * n : s + (r + 1) * n] = got[r, :n]
            out[e - (r + 1) * n : e - r * n] = got[r, n:]
    return out


def by_views(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Shards of one piece, copied into views of the result that is as long as the documents; once too often."""
    cp = size_of(group)
    out = x.new_zeros(int(cu[-1]), x.shape[1] // cp)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        document = out[s:e].unflatten(0, (cp, -1))
        document[0] = got[cp - 1]
        for r in range(cp):
            document.select(0, r).copy_(got[r])
        out.narrow(0, s + n, n)[:] = got[1]
    return out


def by_columns(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Heads to tokens: chunks are cut out of the row itself."""
    cp, w = size_of(group), x.shape[1]
    out = x.new_zeros(x.shape[0] // cp, w * cp)
    for s, e in pairwise(cu.tolist()):
        n = (e - s) // (2 * cp)
        send = [torch.cat((x[s + r * n : s + (r + 1) * n], x[e - (r + 1) * n : e - r * n])) for r in range(cp)]
        got = AllToAll.apply(torch.stack(send), group)
        for r in range(cp):
            out[s // cp : e // cp, r * w : (r + 1) * w] = got[r]
    return out


def pieces_by_columns(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, w = size_of(group), x.shape[1]
    out = x.new_zeros(int(cu[-1]) // cp, w * cp)
    for s, e in pairwise(cu.tolist()):
        n = e // cp - s // cp
        got = AllToAll.apply(torch.stack([x.narrow(0, s + r * n, n) for r in range(cp)]), group)
        for r in range(cp):
            out[s // cp : e // cp].narrow(1, r * w, w).copy_(got[r])
    return out


# === Left alone =================================================================================================


def all_but_one(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), row_of(x, group)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp - 1):
            out[s + r * n : s + (r + 1) * n] = got[r]
    return out


def in_another_order(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), row_of(x, group)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp):
            out[s + r * n : s + (r + 1) * n] = got[cp - 1 - r]
    return out


def read_in_between(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out, seen = size_of(group), row_of(x, group), []
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp):
            seen.append(out[s:e].sum(0))
            out[s + r * n : s + (r + 1) * n] = got[r]
    return out + torch.stack(seen).sum(0)


def added_to_afterwards(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), row_of(x, group)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp):
            out[s + r * n : s + (r + 1) * n] = got[r]
        out[s:e] += 1
    return out


def added_part_by_part(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp, out = size_of(group), row_of(x, group)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp):
            out[s + r * n : s + (r + 1) * n] += got[r]
    return out


def over_what_is_sent(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """Later documents send what earlier ones have written."""
    cp, x = size_of(group), x.detach().clone()
    out = x.view(x.shape[0] * cp, -1)
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp):
            out[s + r * n : s + (r + 1) * n] = got[r]
    return x


def converted(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    out = row_of(x, group).double()
    for s, e in pairwise(cu.tolist()):
        got, n = received(x, s // cp, e // cp, group), (e - s) // cp
        for r in range(cp):
            out[s + r * n : s + (r + 1) * n] = got[r]
    return out
