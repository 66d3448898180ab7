"""Look-alikes of layers on images of several sizes: what looks at all of an image, arms that differ, other kernels."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave
from .rewrite_images import _images, parts

images: Any = functools.partial(leave, tail=False, wrap=_images, min_len=1, lead_empty=False, must_refuse=True)


@images("i[N,3]", why="random numbers")
def dropout_in_a_layer(x: Tensor, grid: Tensor) -> Tensor:
    torch.manual_seed(3)
    out = []
    for part, (t, h, w) in parts(x, grid):
        out.append(F.dropout(part.view(t, h, w, 6).softmax(-1), 0.5).transpose(1, 2).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[6,6,2,2]", why="windows that overlap in steps")
def convolution_in_steps(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = F.conv2d(part.view(t, h, w, 6).permute(0, 3, 1, 2), weight, stride=(2, 1))
        out.append(part.flatten(2).transpose(1, 2).reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[6]", why="arms of numbers that are learned")
def scaled_videos(x: Tensor, grid: Tensor, scale: Tensor) -> Tensor:
    out = []
    for part, (t, h, w) in parts(x, grid):
        part = part.view(t, h, w, 6).transpose(1, 2)
        if t > 1:
            part = part * scale
        out.append(part.reshape(-1, 6))
    return torch.cat(out)


@images("i[N,3] f[6,1,3,3]", why="autocast has its own dtypes for a convolution")
def convolution_under_autocast(x: Tensor, grid: Tensor, weight: Tensor) -> Tensor:
    out = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for part, (t, h, w) in parts(x.float(), grid):
            part = F.conv2d(part.view(t, h, w, 6).permute(0, 3, 1, 2), weight.float(), padding=1, groups=6)
            out.append(part.flatten(2).transpose(1, 2).reshape(-1, 6))
    return torch.cat(out)
