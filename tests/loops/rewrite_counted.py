"""Loops that must be rewritten: over rows of a padded batch, of which masks tell how much belongs to a document."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import Args, program


def _lengths_first(x: Tensor, mask: Tensor) -> Args:
    """At least one slot of every row, from its start on."""
    lengths = mask.sum(-1).clamp(min=1)
    return x, torch.arange(mask.shape[1]) < lengths[:, None]


def _some_kept(x: Tensor, mask: Tensor) -> Args:
    mask[:, 3] = True
    return x, mask


@program("f[N,9,3] m[N,9]", depends=False, tail=False)
def parts_by_sums(x: Tensor, mask: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        n = int(mask[i].sum())
        out.append(x[i, :n].flip(0))
    return torch.cat(out)


@program("f[N,9,3] m[N,9]", depends=False, tail=False, reads=1)
def packed_behind_each_other(x: Tensor, mask: Tensor) -> Tensor:
    out = x.new_zeros(int(mask.sum()), 3)
    start = 0
    for i in range(len(x)):
        n = int(mask[i].sum())
        out[start : start + n] = x[i, mask[i]]
        start += n
    return out


@program("f[N,9,3] m[N,9]", depends=False, tail=False, reads=1)
def share_of_all(x: Tensor, mask: Tensor) -> Tensor:
    total = mask.sum().item()
    return torch.cat([row[m] for row, m in zip(x, mask)]) / max(total, 1)


@program("f[N,9,3] m[N,9]", wrap=_lengths_first, depends=False, tail=False, reads=1)
def padded_to_the_left(x: Tensor, mask: Tensor) -> Tensor:
    longest = mask.sum(-1).max().item()
    out = x.new_zeros(len(x), longest, 3)
    for i, (row, m) in enumerate(zip(x, mask)):
        kept = row[m]
        out[i, longest - kept.shape[0] :] = kept
    return out


@program("f[N,9,3] m[N,9]", depends=False, tail=False)
def means_of_those_with_some(x: Tensor, mask: Tensor) -> Tensor:
    loss = x.new_zeros(())
    for row, m in zip(x, mask):
        if m.sum() > 0:
            loss = loss + row[m].sum()
    return loss


@program("f[N,9,3] m[N,9]", wrap=_some_kept, depends=False, tail=False, exact=False)
def mean_of_every_row(x: Tensor, mask: Tensor) -> Tensor:
    return torch.stack([row[m].mean() for row, m in zip(x, mask)])


@program("f[N,9,3] m[N,9]", depends=False, tail=False)
def zeros_where_none_is_kept(x: Tensor, mask: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        if mask[i].any():
            out.append(x[i][mask[i]].sum(0))
        else:
            out.append(x.new_zeros(3))
    return torch.stack(out)


@program("f[N,9,3] i[N,9]", depends=False, tail=False)
def rows_by_where(x: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(len(x)):
        at = torch.where(ids[i] % 3 == 2)[0]
        out.append(x[i][at])
    return torch.cat(out)


@program("f[N,9,3] i[N,9]", depends=False, tail=False)
def rows_by_nonzero(x: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(len(x)):
        at = (ids[i] % 2 != 0).nonzero().squeeze(-1)
        out.append(x[i, at])
    return torch.cat(out)


@program("f[N,9,3] m[N,9]", wrap=_lengths_first, depends=False, tail=False)
def until_the_first_that_is_none(x: Tensor, mask: Tensor) -> Tensor:
    out = []
    for i in range(len(mask)):
        n = int(mask[i].int().argmin())
        out.append(x[i, :n])
    return torch.cat(out)


@program("f[N,9,3] m[N,9]", depends=False, tail=False)
def boundaries_of_rows(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    bounds, parts = [0], []
    for row, m in zip(x, mask):
        parts.append(row[m])
        bounds.append(bounds[-1] + int(m.sum()))
    return torch.cat(parts), torch.tensor(bounds, dtype=torch.int32)


@program("m[N,9]", depends=False, tail=False)
def positions_in_padded_rows(mask: Tensor) -> Tensor:
    out = []
    for i in range(mask.shape[0]):
        n = mask[i].sum().item()
        out.append(torch.cat([torch.arange(n), torch.zeros(mask.shape[1] - n, dtype=torch.long)]))
    return torch.stack(out)


@program("cu", tail=False, graphs=3, reads=1)
def masks_of_lengths(cu: Tensor) -> Tensor:
    lengths = cu.diff()
    width = int(lengths.max())
    return torch.stack([F.pad(torch.ones(n), (0, width - n)) for n in lengths.tolist()])


@program("f[T,3] m[N,T]", depends=False, tail=False, graphs=3)
def back_to_where_they_were(x: Tensor, mask: Tensor) -> Tensor:
    out = x.new_zeros(mask.shape[0], mask.shape[1], 3)
    rows = x.flip(0)
    for i in range(mask.shape[0]):
        out[i, mask[i]] = rows[: int(mask[i].sum())]
    return out


@program("f[N,9,3] i[N,9] m[N,9]", depends=False, tail=False, graphs=3, reads=2)
def fields_of_a_batch(x: Tensor, ids: Tensor, mask: Tensor) -> dict[str, Any]:
    """The other fields are met when the mask has been counted, and are compared with it."""
    lens = mask.sum(dim=1, dtype=torch.int32)
    longest = lens.max().item()
    cu = F.pad(torch.cumsum(lens, dim=0, dtype=torch.int32), (1, 0), value=0)
    total = int(cu[-1].item())
    packed: dict[str, Any] = {"longest": longest}
    for name, value in (("x", x), ("ids", ids)):
        if value.shape[0] == mask.shape[0] and value.shape[1] == mask.shape[1]:
            packed[name] = torch.empty((total, *value.shape[2:]), dtype=value.dtype)
            for i in range(mask.shape[0]):
                start, end = cu[i].item(), cu[i + 1].item()
                packed[name][start:end] = value[i][: end - start]
    return packed
