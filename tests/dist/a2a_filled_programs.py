"""Memory that is filled part by part: what is sent, or the document that comes of what was received.

Each is ``f(x, cu, group)`` as in `a2a_hard_programs`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.dist.a2a_moves import gathered, size_of
from tests.dist.naive import AllToAll


def chunk(document: Tensor, c: int, cp: int) -> Tensor:
    """Of ``2 * cp`` chunks."""
    h = document.shape[0] // (2 * cp)
    return document[c * h : (c + 1) * h]


def put_together(document: Tensor, cp: int, halves: int = 2) -> Tensor:
    """``[cp, 2 * h, F]``, what every rank gets; ``halves``: of how many chunks of each rank."""
    h = document.shape[0] // (2 * cp)
    send = torch.zeros(cp, 2 * h, document.shape[-1])
    for r in range(cp):
        send[r, :h] = chunk(document, r, cp)
        if halves == 2:
            send[r, h:] = chunk(document, 2 * cp - 1 - r, cp)
    return send


def exchanged(send: Tensor, group: Any) -> Tensor:
    out: Tensor = AllToAll.apply(send, group).permute(1, 0, 2).flatten(1)
    return out


# === Rewritten ==================================================================================================


def filled_by_ranks(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The document is put together of what was received."""
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        got = AllToAll.apply(x[start // cp : stop // cp].unflatten(-1, (cp, -1)).transpose(0, 1).contiguous(), group)
        h = (stop - start) // (2 * cp)
        document = got.new_empty((stop - start, got.shape[-1]))
        for r in range(cp):
            document[r * h : (r + 1) * h] = got[r, :h]
            document[(2 * cp - 1 - r) * h : (2 * cp - r) * h] = got[r, h:]
        out.append(document)
    return torch.cat(out)


def sent_from_parts(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    cp = size_of(group)
    return torch.cat([exchanged(put_together(x[s:e], cp), group) for s, e in pairwise(cu.tolist())])


def changed_beside(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A copy of another row's document changes after it was read."""
    cp, out = size_of(group), []
    places = torch.arange(x.shape[0] * cp, dtype=x.dtype)[:, None]
    for start, stop in pairwise(cu.tolist()):
        copy = torch.zeros_like(places[start:stop])
        copy.copy_(places[start:stop])
        before = copy * 2
        copy[:] = before + 1
        out.append(gathered(x[start // cp : stop // cp], group) + before - copy)
    return torch.cat(out)


# === Left alone =================================================================================================


def half_filled(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """The second chunk of every rank is left at zero."""
    cp = size_of(group)
    return torch.cat([exchanged(put_together(x[s:e], cp, halves=1), group) for s, e in pairwise(cu.tolist())])


def filled_and_scaled(x: Tensor, cu: Tensor, group: Any) -> Tensor:
    """A part is written again, once all were filled."""
    cp, out = size_of(group), []
    for start, stop in pairwise(cu.tolist()):
        send = put_together(x[start:stop], cp)
        send[0, : send.shape[1] // 2] = 2 * chunk(x[start:stop], 0, cp)
        out.append(exchanged(send, group))
    return torch.cat(out)
