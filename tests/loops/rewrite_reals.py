"""Functions of Python on real numbers, of a document's length and number: temperatures and schedules."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .harness import program


@program("f[T,2] cu", exact=False, min_len=1)
def scaled_by_the_logarithm(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:0], *(x[s:e] * math.log(e - s) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()))])


@program("d[T,2] cu", exact=False)
def attention_as_warm_as_long(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        warm = 0.1 * math.log((e - s + 1) / 4) + 1.0
        outs.append((x[s:e] * warm @ x[s:e].T).softmax(-1) @ x[s:e])
    return torch.cat(outs)


@program("f[T,2] cu", exact=False)
def logarithms_of_the_long_ones(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        scale = math.log(e - s, 3) if e - s > 3 else 1.0
        outs.append(x[s:e] * scale)
    return torch.cat(outs)


@program("f[T,2] cu", exact=False)
def faded_by_length(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + x[s:e].sum() * math.exp(-(e - s) / 8)
    return total


@program("f[T,2] cu", exact=False)
def waves_by_length(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e] * math.cos(math.pi * (e - s) / 16) + math.log1p(e - s))
    return torch.cat(outs)
