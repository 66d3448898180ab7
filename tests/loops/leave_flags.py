"""Questions about entries of vectors that are no flags of documents, and flags by which gradients come and go."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] m[N] cu", tail=False)
def flags_of_something_else(x: Tensor, flags: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    for i in range(flags.shape[0]):
        if flags[i]:
            x = x * 0.5
    return x, cu * 2


@leave("f[T] m[N] cu", tail=False, must_refuse=True, why="eager gives the row no gradient where no flag is set")
def gradient_only_where_flagged(x: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0])
    for i in range(flags.shape[0]):
        if flags[i]:
            out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * 2
    return out


@leave("f[T] m[N] cu", tail=False, must_refuse=True, why="the row has a gradient in one of two ways only")
def recorded_again_inside(x: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0])
    with torch.no_grad():
        out += 1
    for i in range(flags.shape[0]):
        if flags[i]:
            out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] + out[cu[i] : cu[i + 1]]
    return out


@leave("i[T] m[N] cu", tail=False)
def the_first_flag_ends_it(ids: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    ids = ids.clone()
    for i in range(flags.shape[0]):
        if flags[i]:
            break
        ids[cu[i] : cu[i + 1]] = 0
    return ids


@leave("i[T] m[N] cu", tail=False)
def flag_of_the_document_before(ids: Tensor, flags: Tensor, cu: Tensor) -> Tensor:
    ids = ids.clone()
    for i in range(1, flags.shape[0]):
        if flags[i - 1]:
            ids[cu[i] : cu[i + 1]] = 0
    return ids


@leave("i[N,T] cu", tail=False, depends=False)
def empty_columns_cut_off(rows: Tensor, cu: Tensor) -> Tensor:
    """A question about a sum, which is made of a size among others; no loop at all."""
    _, width = rows.shape
    kept = (rows > 45).long()
    at = (torch.arange(width).unsqueeze(0) + kept.argmax(dim=1).unsqueeze(1)) % width
    rolled = kept.gather(1, at)
    empty = rolled.sum(dim=0) == 0
    first = int(empty.to(torch.int8).argmax()) if empty.any() else width
    return rolled[:, :first]
