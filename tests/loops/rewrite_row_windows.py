"""Loops that must be rewritten: they take, or set, as many slots of each row of a batch from a number of its own on."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, program


def _started(x: Tensor, cu: Tensor) -> Args:
    return x, cu.diff() % 9


def _filled(x: Tensor, y: Tensor, cu: Tensor) -> Args:
    return x, y, cu.diff() % 9


def _masked(x: Tensor, cu: Tensor) -> Args:
    return x, torch.arange(x.shape[1], device=x.device) < (cu.diff() % 9)[:, None]


def _sized(x: Tensor, y: Tensor, cu: Tensor) -> Args:
    return x, y, cu.diff() % 7, 5


@program("f[N,3,12] cu", wrap=_started, depends=False, tail=False)
def segments_of_a_vocoder(x: Tensor, ids: Tensor) -> Tensor:
    ret = torch.zeros_like(x[:, :, :4])
    for i in range(x.size(0)):
        first = ids[i]
        ret[i] = x[i, :, first : first + 4]
    return ret


@program("f[N,3,12] cu", wrap=_started, depends=False, tail=False)
def segments_by_enumerate(x: Tensor, starts: Tensor) -> Tensor:
    segments = x.new_zeros(x.shape[0], 3, 4)
    for i, start in enumerate(starts):
        segments[i] = x[i, :, start : start + 4]
    return segments


@program("f[N,12,3] cu", wrap=_started, depends=False, tail=False)
def segments_by_list(x: Tensor, starts: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 3, 3)
    for i, start in enumerate(starts.tolist()):
        row = x[i]
        out[i] = row[start : start + 3] - row[start : start + 3].mean(0)
    return out


@program("f[N,13] cu", wrap=_started, depends=False, tail=False)
def segments_that_end_at_a_number(x: Tensor, ends: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 4)
    for i, end in enumerate(ends.tolist()):
        out[i] = x[i, end + 1 : end + 5] * x[i, end]
    return out


@program("f[N,13] cu", wrap=_masked, depends=False, tail=False, graphs=3)
def segments_behind_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 4)
    for i in range(x.size(0)):
        n = int(mask[i].sum())
        out[i] = x[i, n : n + 4]
    return out


@program("f[N,13] cu", wrap=_started, depends=False, tail=False)
def segments_of_long_rows(x: Tensor, numbers: Tensor) -> Tensor:
    """Others keep their zeros."""
    out = torch.zeros(x.size(0), 4)
    for i, n in enumerate(numbers.tolist()):
        if n < 4:
            continue
        out[i] = x[i, n - 4 : n]
    return out + x[:, :4]


@program("f[N,12,3] f[N,4,3] cu", wrap=_filled, depends=False, tail=False)
def image_behind_a_caption(x: Tensor, image: Tensor, captions: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(captions.tolist()):
        out[i, n : n + 4] = image[i]
    return out


@program("f[N,12,3] f[N,6,3] cu", wrap=_sized, depends=False, tail=False)
def image_of_a_given_size(x: Tensor, image: Tensor, captions: Tensor, size: int) -> Tensor:
    out = x * 2
    for i, n in enumerate(captions.tolist()):
        out[i, n : n + size] = image[i, :size]
    return out


@program("f[N,2,12] f[N,4] cu", wrap=_filled, depends=False, tail=False)
def image_of_every_head(x: Tensor, image: Tensor, captions: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(captions.tolist()):
        out[i, :, n : n + 4] = image[i]
    return out


@program("f[N,12,3] f[N,4,3] cu", wrap=_filled, depends=False, tail=False)
def image_added(x: Tensor, image: Tensor, captions: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(captions.tolist()):
        out[i, n : n + 4] += image[i]
    return out


@program("f[N,12] f[4] cu", wrap=_filled, depends=False, tail=False)
def one_pattern_in_every_row(x: Tensor, pattern: Tensor, captions: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(captions.tolist()):
        out[i, n : n + 4] = pattern
    return out


@program("f[N,12] f[N,12] cu", wrap=_filled, depends=False, tail=False)
def segments_between_rows(x: Tensor, y: Tensor, starts: Tensor) -> Tensor:
    out = torch.zeros_like(x) + y
    taken = torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        taken[i] = x[i, n : n + 4]
        out[i, n : n + 4] = taken[i] * 2
    return out + x


@program("f[N,13] cu", wrap=_started, depends=False, tail=False)
def segments_changed_in_place(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    y, out = x * 1, torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        part = y[i, n : n + 4]
        part *= 2
        out[i] = part.cumsum(0)
    return y, out


@program("f[N,13] cu", wrap=_started, depends=False, tail=False)
def segments_set_one_after_the_other(x: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The second reads what the first has written."""
    y, out = x * 1, torch.zeros(x.size(0), 4)
    for i, n in enumerate(starts.tolist()):
        y[i, n] = 7.0
        out[i] = y[i, n : n + 4]
        y[i, n + 1 : n + 5] = out[i] * 2
    return y, out


@program("b[N,12] cu", wrap=_started, depends=False, tail=False)
def segments_of_bools(x: Tensor, starts: Tensor) -> Tensor:
    out = torch.zeros(x.size(0), 4, dtype=torch.bool)
    for i, n in enumerate(starts.tolist()):
        out[i] = x[i, n : n + 4]
    return out
