"""Loops beside those of `rewrite_filtered`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .harness import leave
from .rewrite_filtered import LONG


@leave("f[T,3] cu", tail=False, refusal=True)
def listed_before_short_ones_are_skipped(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, out = [], torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e] * 2)
        if e - s < 3:
            continue
        out[s:e] = x[s:e] + 1
    return torch.cat(parts), out


@leave("f[T,3] cu", tail=False, refusal=True)
def beside_what_has_no_gradient(x: Tensor, cu: Tensor) -> Tensor:
    """Where all are too short, eager's result has none, and nothing behind it gets one."""
    parts = [x.new_zeros(1, 3)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 4:
            continue
        parts.append(x[s:e])
    return torch.cat(parts)


@leave("f[T,3] cu", shapes=LONG, refusal=True)
def long_enough_padded(x: Tensor, cu: Tensor) -> Tensor:
    """As many rows as there are long documents."""
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s >= 3:
            parts.append(x[s:e])
    return pad_sequence(parts, batch_first=True)


@leave("f[T,3] cu", tail=False)
def short_enough(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 6:
            continue
        parts.append(x[s:e])
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def none_is_as_long(x: Tensor, cu: Tensor) -> Tensor:
    """What the program has put into the list is left."""
    parts = [x[:1]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 1000:
            continue
        parts.append(x[s:e])
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def none_is_as_long_behind_all(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e].sum() > 1e6).item():
            continue
        if e - s > 1000:
            parts.append(x[s:e])
    parts.append(x[:2])
    return torch.cat(parts)


@leave("f[T,3] cu", tail=False)
def sums_of_the_long_beside_another(x: Tensor, cu: Tensor) -> Tensor:
    parts = [x.sum(0)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 1000:
            continue
        parts.append(x[s:e].sum(0))
    return torch.stack(parts)
