"""Look-alikes of rows of sizes that are taken by their numbers, of branches on sizes, and of places of documents."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave
from .rewrite_looped_again import _crops
from .rewrite_rows_by_number import _ids, _padded

crops: Any = functools.partial(leave, tail=False, wrap=_crops, lead_empty=False, min_len=1)
padded: Any = functools.partial(leave, "f[N,9,3] m[N,9]", wrap=_padded, tail=False, exact=False)
numbered: Any = functools.partial(leave, "f[T,3] cu", wrap=_ids, tail=False, exact=False, min_len=1)


@crops("f[N,3,4,4] i[N,2]")
def size_changed_after_it_was_asked(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The answer is the one from before."""
    own, out = sizes.clone(), []
    for i in range(len(sizes)):
        h = own[i, 0]
        large = h > 2
        h += 3
        row = torch.arange(6)
        if large:
            row = row + h
        out.append(row)
    return torch.cat(out), own


@crops("f[N,3,4,4] i[N,2]", must_refuse=True, why="the branch asks what an image holds")
def branch_on_what_is_there(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes):
        row = x[i, 0, :h, :w].reshape(-1)
        if row.sum() > 0:
            row = row * 2
        out.append(row)
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def rows_of_neighbours(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i in range(len(sizes) - 1):
        h, w = sizes[i + 1]
        out.append(torch.arange(h * w) + sizes[i, 0])
    return torch.cat([*out, torch.zeros(1)])


@crops("f[N,3,4,4] i[N,2]")
def the_first_rows_alone(x: Tensor, sizes: Tensor) -> Tensor:
    out = x.new_zeros(4)
    for i in range(1):
        h, w = sizes[i].tolist()
        out = out + x[i, 0, 0] * h + w
    return out


@crops("f[N,3,4,4] i[N,2]")
def numbers_of_rows_that_are_no_sizes(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        a, c = sizes[i].tolist()
        out.append(x[i, 0, 0] * a + c)
    return torch.stack(out)


@crops("f[N,3,4,4] i[N,2]")
def table_with_places_that_wrap(x: Tensor, sizes: Tensor) -> Tensor:
    table, out = x[0].flatten(1).t(), []
    for h, w in sizes.tolist():
        at = torch.arange(h * w) - 3
        out.append(table[at.clamp(-16, 15)] + table[(at * 2).clamp(max=3) - 4])
    return torch.cat(out)


@crops("f[N,3,4,4] i[N,2]")
def bounds_that_cross(x: Tensor, sizes: Tensor) -> Tensor:
    table, out = x[0].flatten(1).t(), []
    for h, w in sizes.tolist():
        at = torch.arange(h * w)
        out.append(table[at.clamp(9, 2) * 4 + at.clamp(min=3).clamp(max=1)])
    return torch.cat(out)


@padded()
def unbind_along_features(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([part[:, :2] * n for part, n in zip(x.unbind(2), lengths.tolist())])


@padded()
def unbind_beside_a_constant_list(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([row * n for row, n in zip(x.unbind(0), [1, 2, 3])])


@padded()
def three_tensors_by_unbind(x: Tensor, lengths: Tensor) -> Tensor:
    q, k, v = x.unbind(-1)
    return torch.cat([(q[i] * k[i] + v[i])[:n] for i, n in enumerate(lengths.tolist())])


@numbered()
def mask_in_front_of_a_part_of_the_features(x: Tensor, batch: Tensor) -> Tensor:
    return torch.stack([x[batch == b, :2].sum(0) for b in range(int(batch.max()) + 1)])


@numbered()
def places_in_a_longer_row(x: Tensor, batch: Tensor) -> Tensor:
    longer = torch.cat((x, x))
    return torch.stack([longer[torch.where(batch == b)[0] + len(x)].sum(0) for b in range(int(batch.max()) + 1)])


@leave("f[N,9,3] m[N,9]", tail=False, exact=False)
def zeros_of_its_own_width_where_nothing_is_kept(x: Tensor, mask: Tensor) -> Tensor:
    """Where no row keeps anything, eager makes no gradient."""
    out = []
    for i in range(x.shape[0]):
        kept = x[i][mask[i]]
        out.append(kept.mean(0) if kept.numel() > 0 else torch.zeros(x.shape[-1]))
    return torch.stack(out)
