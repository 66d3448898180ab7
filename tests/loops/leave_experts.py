"""Loops over experts that must keep eager's results."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,32] cu f[N,32,48]", exact=False, must_refuse=True, why="the product is one of another dtype")
def own_weights_under_autocast(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 48)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for i in range(len(cu) - 1):
            out[cu[i] : cu[i + 1]] = (x[cu[i] : cu[i + 1]] @ weights[i]).float()
    return out


@leave("f[2,T,32] cu f[N,32,48]", exact=False)
def batches_with_own_weights(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    out = x.new_zeros(2, x.shape[1], 48)
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]] @ weights[i]
    return out


@leave("f[T,32] cu f[N,32,48]", exact=False)
def weights_of_an_expert_set_to_nan(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 48)
    weights = torch.cat([weights[:-1], torch.full_like(weights[:1], torch.nan)])
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] @ weights[i]
    return out
