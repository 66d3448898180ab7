"""Loops that change in place what the body has made, and whose frames ask in front of them what boundaries hold, or
whether there are any."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .harness import Args, program


def _images(x: Tensor, cu: Tensor) -> Args:
    """Every document as an image of two columns."""
    lengths = cu.diff().long()
    sizes = torch.stack((lengths, torch.full_like(lengths, 2)), 1)
    return torch.cat((x, x * 2))[: int(sizes.prod(1).sum())], sizes


def _places(x: Tensor, cu: Tensor) -> Args:
    return x, _images(x, cu)[1]


@program("f[T,3] cu", tail=False, wrap=_images, rule="ragged_grids")
def scaled_where_it_lies(x: Tensor, sizes: Tensor) -> Tensor:
    out, start = [], 0
    for h, w in sizes.tolist():
        image = x[start : start + h * w] * 2
        image *= torch.arange(h * w)[:, None]
        start += h * w
        out.append(image.view(h, w, 3).sum(1))
    return torch.cat(out)


@program("f[T,3] cu", tail=False, wrap=_places, rule="ragged_grids", depends=False)
def table_weighted_where_it_lies(x: Tensor, sizes: Tensor) -> Tensor:
    table, out = x[:4], []
    for h, w in sizes.tolist():
        rows = torch.arange(h * w) % 4
        found = table[torch.stack((rows, 3 - rows))]
        found *= torch.stack((rows, 2 - rows)).unsqueeze(-1)
        found += 1
        out.append(found.sum(0))
    return torch.cat(out)


@program("f[T,3] cu", tail=False, wrap=_places, rule="ragged_grids", depends=False)
def places_kept_between_bounds(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for h, w in sizes.tolist():
        places = torch.arange(h * w, dtype=torch.float32) - 3
        places.clamp_(0, 5).mul_(2)
        out.append(places.view(h, w).t().flatten() + places)
    return torch.cat(out)


@program("f[T,3] cu", tail=False, wrap=_images, rule="ragged_grids")
def changed_when_it_is_listed(x: Tensor, sizes: Tensor) -> Tensor:
    out, start = [], 0
    for h, w in sizes.tolist():
        image = x[start : start + h * w] - 1
        out.append(image)
        image *= w
        image += image.view(h, w, 3).sum((0, 1))
        start += h * w
    return torch.cat(out)


class ChangedBehindALayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layer.weight.data.copy_(torch.eye(3) * 2)
        self.layer.bias.data.fill_(0.5)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        out, start = [], 0
        for h, w in sizes.tolist():
            image = self.layer(x[start : start + h * w])
            image.sub_(1)
            image.masked_fill_(torch.arange(h * w)[:, None] % 2 == 1, 0.25)
            start += h * w
            out.append(image)
        return torch.cat(out)


program("f[T,3] cu", tail=False, wrap=_images, rule="ragged_grids")(ChangedBehindALayer)


@program("f[T,2] cu", tail=False)
def last_boundary_named_in_a_message(x: Tensor, cu: Tensor) -> Tensor:
    total = cu[-1]
    assert total % 1 == 0, f"{total} slots do not divide"
    out = []
    for i in range(len(cu) - 1):
        out.append(x[cu[i] : cu[i + 1]].flip(0))
    return torch.cat(out)


@program("f[T,2] cu", tail=False)
def several_rows_checked_in_a_loop(x: Tensor, cu: Tensor) -> list[Tensor]:
    rows = [x, x * 3]
    for k, row in enumerate(rows):
        if cu[0] != 0:
            raise ValueError(f"row {k} begins with {cu[0]}")
        parts = []
        for i in range(len(cu) - 1):
            parts.append(row[cu[i] : cu[i + 1]].cumsum(0))
        rows[k] = torch.cat(parts)
    return rows


@program("f[T,2] cu", tail=False)
def if_there_are_any(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    if bool(lengths):
        return torch.cat([part - part[:1] for part in x.split(lengths)])
    return x
