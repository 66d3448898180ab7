"""Loops that must be rewritten: what is behind a document in its row is put behind what is made of it (a video's tokens
are rotated by their places in its frames, padding stays), and the rows are stacked."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import Args, program


def frequencies(table: Tensor, sizes: tuple[int, int, int], start: int = 0) -> Tensor:
    f, h, w = sizes
    return torch.cat(
        [
            table[start : start + f, :2].view(f, 1, 1, -1).expand(f, h, w, -1),
            table[:h, 2:4].view(1, h, 1, -1).expand(f, h, w, -1),
            table[:w, 4:].view(1, 1, w, -1).expand(f, h, w, -1),
        ],
        dim=-1,
    ).reshape(f * h * w, 1, -1)


def _video(x: Tensor, numbers: Tensor) -> Args:
    angles = torch.arange(24.0, device=x.device).view(4, 6) / 7
    return x, numbers % 3 + 1, torch.polar(torch.ones_like(angles), angles)


def _started(x: Tensor, numbers: Tensor) -> Args:
    return *_video(x, numbers), 1


def _sized(x: Tensor, numbers: Tensor) -> Args:
    return x, numbers % 3 + 1


videos: Any = functools.partial(
    program, tail=False, rule="ragged_grids", wrap=_video, graphs=3, lead_empty=False, min_len=1, exact=False
)


@videos("f[N,30,2,12] i[N,3]")
def rotated_video(x: Tensor, grid_sizes: Tensor, table: Tensor) -> Tensor:
    """``rope_apply`` of Wan 2.1."""
    n, out = x.size(2), []
    for i, (f, h, w) in enumerate(grid_sizes.tolist()):
        seq_len = f * h * w
        x_i = torch.view_as_complex(x[i, :seq_len].to(torch.float64).reshape(seq_len, n, -1, 2))
        x_i = torch.view_as_real(x_i * frequencies(table, (f, h, w))).flatten(2)
        out.append(torch.cat([x_i, x[i, seq_len:]]))
    return torch.stack(out).float()


@videos("f[N,30,2,12] i[N,3]", wrap=_started)
def rotated_video_from_a_frame_on(x: Tensor, grid_sizes: Tensor, table: Tensor, start: int) -> Tensor:
    n, out = x.size(2), []
    for i, (f, h, w) in enumerate(grid_sizes.tolist()):
        seq_len = f * h * w
        x_i = torch.view_as_complex(x[i, :seq_len].reshape(seq_len, n, -1, 2))
        x_i = torch.view_as_real(x_i * frequencies(table, (f, h, w), start)).flatten(2)
        out.append(torch.cat([x_i, x[i, seq_len:].double()]))
    return torch.stack(out).type_as(x)


@videos("f[N,30,2,12] i[N,3]")
def rotated_tokens_alone(x: Tensor, grid_sizes: Tensor, table: Tensor) -> Tensor:
    n, out = x.size(2), []
    for i, (f, h, w) in enumerate(grid_sizes.tolist()):
        seq_len = f * h * w
        x_i = torch.view_as_complex(x[i, :seq_len].reshape(seq_len, n, -1, 2))
        out.append(torch.view_as_real(x_i * frequencies(table, (f, h, w)).conj()).flatten(2))
    return torch.cat(out)


@videos("f[N,12,3] i[N,2]", wrap=_sized)
def behind_in_front(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, h * w :], x[i, : h * w] * w]))
    return torch.stack(out)


@videos("f[N,6,3] i[N,2]", wrap=_sized)
def rows_shorter_than_some(x: Tensor, sizes: Tensor) -> Tensor:
    """Slices are cut off by their rows: there is nothing behind."""
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, x[i, h * w :]]))
    return torch.stack(out, 1)


@program("f[N,12,3] i[N]", wrap=_sized, depends=False, tail=False, rule="ragged_grids")
def scaled_up_to_a_length(x: Tensor, lengths: Tensor) -> Tensor:
    """Documents of one length each."""
    out = []
    for i, n in enumerate(lengths.tolist()):
        out.append(torch.cat([x[i, :n] * 2 + 1, x[i, n:]]))
    return torch.stack(out)


@videos("f[N,12,3] i[N,2]", wrap=_sized)
def zeros_behind_the_document(x: Tensor, sizes: Tensor) -> Tensor:
    out = []
    for i, (h, w) in enumerate(sizes.tolist()):
        out.append(torch.cat([x[i, : h * w] * 2, torch.zeros(x.shape[1] - h * w, 3, device=x.device)]))
    return torch.stack(out)
