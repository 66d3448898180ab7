"""Boundaries that fall where a branch leaves the documents out: zeros or -1 behind the last."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def zeros_behind(x: Tensor, cu: Tensor) -> Any:
    return x, F.pad(cu, (0, cu.numel() % 3))


def negative_behind(x: Tensor, cu: Tensor) -> Any:
    return x, F.pad(cu, (0, cu.numel() % 3), value=-1)


SOME = {"tail": False, "min_len": 1, "lead_empty": False, "unfit": True}


@program("f[T,3] cu", wrap=zeros_behind, exact=False, reads=1, **SOME)
def means_of_those_that_have_slots(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e <= s:
            continue
        out.append(x[s:e].mean(0))
    return torch.stack(out)


@program("f[T,3] cu", wrap=negative_behind, exact=False, **SOME, depends=False)
def sums_of_those_in_front_of_the_padding(x: Tensor, cu: Tensor) -> Tensor:
    total = x.sum(0)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e < 0:
            continue
        total = total + x[s:e].sum(0)
    return total


@program("f[T,3] cu", wrap=zeros_behind, exact=False, reads=1, **SOME)
def written_and_counted(x: Tensor, cu: Tensor) -> Any:
    out, number = x * 2, 0
    for i in range(len(cu) - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        if e - s > 0:
            out[s:e] = x[s:e] - x[s:e].mean(0)
            number += 1
    return out, number


@program("f[T,3] cu", wrap=zeros_behind, exact=False, **SOME)
def zeros_for_those_without_slots(x: Tensor, cu: Tensor) -> Tensor:
    bounds = list(zip(cu[:-1].tolist(), cu[1:].tolist()))
    return torch.stack([x[s:e].mean(0) if e > s else x.new_zeros(3) for s, e in bounds])


@program("f[T,3] cu", wrap=zeros_behind, exact=False, demand=False, **SOME)
def long_and_short_ones(x: Tensor, cu: Tensor) -> Any:
    total = x.sum()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e <= s:
            continue
        part = x[s:e]
        if e - s > 2:
            total = total + part.amax(0).sum()
        else:
            total = total + part.prod()
    return total
