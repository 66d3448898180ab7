"""Functions of Python on real numbers of a document, in programs that must keep eager's results, and its errors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,2] cu", exact=False, must_refuse=True, why="the branch at")
def a_branch_on_the_logarithm(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if math.log(e - s + 1) > 1.2:
            total = total + x[s:e].sum()
    return total


@leave("f[T,2] cu", must_refuse=True, why="only tensors may be appended")
def logarithms_in_a_list(x: Tensor, cu: Tensor) -> Tensor:
    return torch.tensor([math.log(e - s + 1) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T,2] cu", exact=False)
def logarithms_of_those_that_have_one(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e] * (math.log(e - s) if e > s else 0.0))
    return torch.cat(outs)


@leave("f[T,2] cu", exact=False, must_refuse=True, why="cannot be captured")
def a_function_without_a_form(x: Tensor, cu: Tensor) -> Tensor:
    outs = [x[:0]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        outs.append(x[s:e] * math.lgamma(e - s + 1.0))
    return torch.cat(outs)
