"""Documents by rows of where each begins and ends, as scenes of trajectories, and assertions with a message."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


def spans(x: Tensor, *rest: Tensor) -> Any:
    *others, cu = rest
    return x, *others, torch.stack([cu[:-1], cu[1:]], 1)


BY_SPANS = {"wrap": spans, "tail": False, "graphs": 3, "depends": False}


@program("f[T,2] f[N,5] cu64", **BY_SPANS)
def noise_of_the_scene_beside_its_tokens(x: Tensor, noise: Tensor, ends: Tensor) -> Tensor:
    out = []
    for i, (s, e) in enumerate(ends):
        s, e = s.item(), e.item()
        out.append(torch.cat([x[s:e], noise[i].view(1, -1).repeat(e - s, 1)], 1))
    return torch.cat(out)


@program("d[T,2] cu64", exact=False, reads=3, **BY_SPANS)
def distances_of_scenes_with_tokens(x: Tensor, ends: Tensor) -> Any:
    total, numbers, tokens = x.new_zeros(()), 0, 0
    for s, e in ends.tolist():
        if e <= s:
            continue
        far = torch.sqrt(torch.sum(x[s:e] ** 2 + 1, -1))
        total = total + far.sum()
        numbers += far.numel()
        tokens += e - s
    return total / numbers, tokens


@program("d[T,2] cu64", exact=False, min_len=1, lead_empty=False, **BY_SPANS)
def least_sums_by_narrow(x: Tensor, ends: Tensor) -> Tensor:
    total = torch.zeros(1, dtype=x.dtype)
    for s, e in ends.tolist():
        total = total + torch.min(torch.narrow(x, 0, s, e - s).sum(0)) / (x[s:e].sum() ** 2 + 1)
    return total


@program("f[T,3] cu", exact=False)
def assertions_that_say_more(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(cu.shape[0] - 1)
    for i in range(cu.shape[0] - 1):
        assert cu[i + 1] <= x.shape[0], (cu, x.shape)
        out[i] = x[cu[i] : cu[i + 1]].sum()
    return out


@program("f[T,3] cu", exact=False, tail=False, min_len=1, lead_empty=False)
def assertions_that_say_more_as_text(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for i in range(cu.shape[0] - 1):
        assert cu[i] >= 0, f"document {i} of {cu} begins in front of the row"
        out.append(x[cu[i] : cu[i + 1]].sum(0))
    return torch.stack(out)
