"""Loops over images of several sizes whose bodies are layers: norms, patch mergers, convolutions, interpolated
positions (`passes.ragged_grids.layers`, `packpass.capture.images`)."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program
from .rewrite_grids import grid_of


def _images(numbers: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Patches of all frames [T, 6], their grids, and weights. In float64: gradients are sums over thousands of slots,
    and torch's own kernels add in another order."""
    grid = grid_of(numbers)
    count = int(grid.prod(1).sum())
    x = torch.arange(count * 6, dtype=torch.float64).reshape(count, 6)
    return (x.mul(0.37).sin(), grid, *(weight.double() for weight in weights))


def _grids(numbers: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return (grid_of(numbers), *(weight.double() for weight in weights))


images: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_images, graphs=3, lead_empty=False, min_len=1
)


def parts(x: Tensor, grid: Tensor) -> Any:
    return zip(x.split(grid.prod(1).tolist()), grid.tolist())


@images("i[N,3] f[5,24] f[5] f[6]", exact=False)
def norm_and_merger(x: Tensor, grid: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """A projector of transformers: the norm and the linear layer are called once per image."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = F.layer_norm(part, (6,), scale)
        part = part.view(t, h // 2, 2, w // 2, 2, 6).permute(0, 1, 3, 2, 4, 5).reshape(-1, 24)
        out.append(F.gelu(F.linear(part, weight, bias)))
    return torch.cat(out)


@images("i[N,3] f[6,3]", exact=False)
def features_of_each_slot(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    """A softmax and a product with a view of a weight, on slots in two dimensions."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = part.view(t, h, w, 6).softmax(-1).transpose(1, 2)
        out.append((part @ weight[:, 1:]).reshape(-1, 2))
    return torch.cat(out)


@images("i[N,3] f[6]", exact=False)
def new_lines(x: Tensor, grid: Tensor, line: Tensor) -> Tensor:
    """A slot behind every row of patches: places that no patch has are read nowhere."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        rows = torch.cat([part.view(t, h, w, 6) * line, line.expand(t, h, 1, 6)], dim=2)
        out.append(rows.reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[6]", exact=False)
def shifted_rows(x: Tensor, grid: Tensor, scale: Tensor) -> Tensor:
    """Padding of what was computed; its logarithm has a gradient only where there is a patch."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        rows = (part.abs() * scale.abs() + 0.1).log().view(t, h, w, 6)
        out.append((rows + F.pad(rows, (0, 0, 1, 0))[:, :, :-1]).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[6,1,3,3] f[6]", exact=False)
def convolution_by_channel(x: Tensor, grid: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The short convolution of LFM3-VL's tower."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = part.view(t, h, w, 6).permute(0, 3, 1, 2)
        part = F.conv2d(part, weight, bias, padding=1, groups=6)
        out.append(part.permute(0, 2, 3, 1).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[4,6,2,2] f[4]", exact=False)
def convolution_of_windows(x: Tensor, grid: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The patch merger of HunyuanVL: windows side by side."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = F.conv2d(part.view(t, h, w, 6).permute(0, 3, 1, 2), weight, bias, stride=2)
        out.append(F.silu(part).flatten(2).transpose(1, 2).reshape(-1, 4))
    return torch.cat(out)


@images("i[N,3] f[4,6,3,3]", exact=False)
def convolution_of_neighbours(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = F.conv2d(part.exp().view(t, h, w, 6).permute(0, 3, 1, 2), weight, None, 1, 1)
        out.append(part.flatten(2).transpose(1, 2).reshape(-1, 4))
    return torch.cat(out)


@images("i[N,3] f[24,3]", exact=False)
def unfolded_windows(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    """The patch merger of Mistral3."""
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = F.unfold(part.view(t, h, w, 6).permute(0, 3, 1, 2), kernel_size=2, stride=2)
        out.append(part.transpose(1, 2).reshape(-1, 24) @ weight)
    return torch.cat(out)


@images("i[N,3]", exact=False)
def smaller_images(x: Tensor, grid: Tensor) -> Tensor:
    """VideoLLaMA3's: sizes that are entries of tensors, channels last in memory, as the view at the end demands."""
    out = []
    for part, (t, h, w) in zip(x.split(grid.prod(1).tolist()), grid):
        part = part.view(t, h // 2, w // 2, 2, 2, 6).permute(0, 1, 3, 2, 4, 5).reshape(t, h, w, 6).permute(0, 3, 1, 2)
        part = F.interpolate(part, size=(h // 2, w // 2), mode="bilinear")
        out.append(part.permute(0, 2, 3, 1).view(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[1,6,4,5]", wrap=_grids, exact=False)
def interpolated_positions(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        positions = F.interpolate(table * 2, size=(h, w), mode="bilinear", align_corners=False)
        out.append(positions.permute(0, 2, 3, 1).reshape(1, -1, 6).squeeze(0).repeat(t, 1))
    return torch.cat(out)


@images("i[N,3] f[1,6,4,5]", wrap=_grids, exact=False)
def interpolated_with_corners(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        positions = F.interpolate(table, (h + 1, w // 2), mode="bilinear", align_corners=True)
        out.append(positions.flatten(2).transpose(1, 2)[0])
    return torch.cat(out)


@images("i[N,3] f[1,6,4,5]", wrap=_grids, exact=False)
def interpolated_by_cubes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        positions = F.interpolate(table, size=(h, w), mode="bicubic")
        out.append(positions.flatten(2)[0].t().repeat(t, 1))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def frames_of_videos(grid: Tensor) -> Tensor:
    """Muse Spark's: what many frames do is with one frame what an image does."""
    order, start = [], 0
    for t, h, w in grid.tolist():
        index = torch.arange(h * w).view(h // 2, 2, w // 2, 2).permute(0, 2, 1, 3).reshape(-1)
        if t > 1:
            frames = (torch.arange(t) * h * w).view(t, 1)
            index = (index.unsqueeze(0) + frames).reshape(-1)
        order.append(index + start)
        start += t * h * w
    return torch.cat(order)


@images("i[N,3]", wrap=_grids)
def one_frame_by_itself(grid: Tensor) -> Tensor:
    out = []
    for t, h, w in grid.tolist():
        if t == 1:
            index = torch.arange(h * w)
        else:
            index = (torch.arange(t)[:, None] * (h * w) + torch.arange(h * w)).flatten()
        out.append(index)
    return torch.cat(out)


@images("i[N,3]")
def checked_sizes(x: Tensor, grid: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        torch._check(h > 1, lambda: "the height must be greater than 1")
        torch._check(w % 2 == 0)
        out.append(part.view(t, h, w, 6).transpose(1, 2).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[5,4,6]", wrap=_grids, exact=False)
def smoothed_positions(grid: Tensor, table: Tensor) -> Tensor:
    """Cosmos' tower: where there are fewer patches than positions, each is a mean of several."""
    out = []
    for t, h, w in grid.tolist():
        positions = F.interpolate(
            table.permute(2, 0, 1).unsqueeze(0), size=(h, w), mode="bilinear", align_corners=False, antialias=True
        )
        positions = positions.squeeze(0).permute(1, 2, 0).reshape(h // 2, 2, w // 2, 2, -1)
        out.append(positions.transpose(1, 2).reshape(h * w, -1).repeat(t, 1))
    return torch.cat(out)


@images("i[N,3] f[1,6,5,4]", wrap=_grids, exact=False)
def smoothed_by_cubes(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(F.interpolate(table, (h // 2, w), mode="bicubic", antialias=True).flatten(2)[0].t())
    return torch.cat(out)


@images("i[N,3]", graphs=4)
def sizes_in_a_list_of_their_own(x: Tensor, grid: Tensor) -> Tensor:
    """Mistral3's: rows of numbers that are made of tensors, asked for by the number of the image."""
    sizes = [(size[0] * size[1], size[2]) for size in grid]
    out = []
    for i, part in enumerate(x.split([h * w for h, w in sizes])):
        h, w = sizes[i]
        out.append(part.view(h, w, 6).transpose(0, 1).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3]", wrap=_grids)
def frames_behind_the_first(grid: Tensor) -> Tensor:
    """Kimi's: a comparison as a number."""
    out = []
    for t, h, w in grid.tolist():
        frames = torch.arange(t) + int(t > 1) - 2 * int(w <= h)
        out.append(frames.repeat_interleave(h * w))
    return torch.cat(out)


@images("i[N,3] f[1,6,4,5]", wrap=_grids, exact=False)
def nearest_positions(grid: Tensor, table: Tensor) -> Tensor:
    out = []
    for _, h, w in grid.tolist():
        out.append(F.interpolate(table, size=(h, w), mode="nearest").flatten(2)[0].t())
    return torch.cat(out)


@images("i[N,3] f[6]", exact=False)
def softmax_of_columns(x: Tensor, grid: Tensor, scale: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append((part.view(t, h, w, 6) * scale).softmax(1).reshape(-1, 6))
    return torch.cat(out)
