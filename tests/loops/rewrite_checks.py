"""Loops that must be rewritten: the program raises where documents do not fit, in front of the loop or in its body."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T] cu", tail=False, reads=1)
def too_long(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    if max(lengths) > 10_000:
        raise ValueError(f"a document of {max(lengths)} tokens")
    return torch.cat([part.flip(0) for part in x.split(lengths)])


@program("f[T] cu", tail=False, reads=1)
def does_not_fill_the_row(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    if sum(lengths) != x.shape[0]:
        raise ValueError(f"{sum(lengths)} tokens in documents, {x.shape[0]} in the row")
    return torch.cat([part.cumsum(0) for part in torch.split(x, lengths)])


@program("f[T] cu", tail=False)
def two_checks_of_tensors(x: Tensor, cu: Tensor) -> Tensor:
    out, bounds = torch.zeros_like(x), cu.tolist()
    if (cu[1:] < cu[:-1]).any():
        raise ValueError("boundaries must not decrease")
    if cu[0] != 0 or cu[-1] != x.size(0):
        raise ValueError(f"boundaries from {bounds[0]} to {bounds[-1]}")
    for s, e in zip(bounds[:-1], bounds[1:]):
        out[s:e] = x[s:e].roll(-1, 0)
    return out


@program("f[T] cu", tail=False, reads=2)
def assertion_of_two_conditions(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    assert min(lengths) >= 0 and sum(lengths) == x.shape[0], lengths  # noqa: PT018  # noqa: PT018  (the form)
    return torch.cat([part * part.sum() for part in x.split(lengths)])


@program("f[T] cu")
def raise_in_the_body(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(cu.numel() - 1):
        s, e = cu[i].item(), cu[i + 1].item()
        if e < s or e > x.shape[0]:
            raise ValueError(f"document {i} from {s} to {e}")
        out[s:e] = x[s:e].flip(0)
    return out
