"""Look-alikes of rows with what is behind their documents: other tails, of other rows, cut off, or not put together."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _sized(x: Tensor, numbers: Tensor) -> Args:
    return x, numbers % 3 + 1


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="one slot is left out")
def behind_from_the_next_slot_on(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, x[i, h * w + 1 :]]))
    return torch.stack(out)


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="tails of the row before")
def behind_in_another_row(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, x[i - 1, h * w :]]))
    return torch.stack(out)


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="as many ones as the document has")
def ones_in_front_of_what_is_behind(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([torch.ones(h * w, 3, device=x.device), x[i, h * w :]]))
    return torch.stack(out)


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="sums within the document")
def sums_in_front_of_what_is_behind(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w].cumsum(0), x[i, h * w :]]))
    return torch.stack(out)


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="two other parts of one row")
def two_parts_that_overlap(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, x[i, w:]])[:9])
    return torch.stack(out)


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="the row is changed in between")
def behind_after_the_row_was_changed(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    x, out = x * 1, []
    for i, (h, w) in enumerate(sizes.tolist()):
        head = x[i, : h * w] * 2
        x[i] += 1
        out.append(torch.cat([head, x[i, h * w :]]))
    return torch.stack(out), x


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="the list is used twice")
def rows_stacked_and_looked_at(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, x[i, h * w :]]))
    return torch.stack(out), out[0] + 1


@leave("f[N,12,3] i[N,2]", wrap=_sized, tail=False, min_len=1, lead_empty=False, why="zeros up to another length")
def zeros_up_to_another_length(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, torch.zeros(x.shape[1] + 2 - h * w, 3, device=x.device)]))
    return torch.stack(out)
