"""Loops over experts: the rows that go to each are multiplied with its own weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .harness import program


@program("f[T,32] cu f[N,32,48]", exact=False, graphs=3)
def written_products_with_own_weights(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 48)
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] @ weights[i]
    return out


@program("f[T,32] cu f[N,48,32] f[N,48]", exact=False, graphs=3)
def layers_with_own_weights_and_biases(x: Tensor, cu: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 48)
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = F.linear(x[cu[i] : cu[i + 1]], weights[i], biases[i])
    return out


@program("f[T,32] cu f[N,48,32] f[48]", exact=False, graphs=3)
def two_layers_of_experts(x: Tensor, cu: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    outs = []
    for i in range(len(cu) - 1):
        hidden = F.silu(F.linear(x[cu[i] : cu[i + 1]], weights[i], bias))
        outs.append(hidden @ weights[i] + x[cu[i] : cu[i + 1]].mean(0))
    return torch.cat([x[:0], *outs])


@program("d[T,32] cu d[N,48,32]", exact=False, graphs=3)
def einsum_with_own_weights(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 48)
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = torch.einsum("ni,oi->no", x[cu[i] : cu[i + 1]], weights[i])
    return out


@program("f[T,3] cu f[N,4,3] f[N,4]", exact=False, graphs=3)
def small_layers_with_own_biases(x: Tensor, cu: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
    parts = [F.linear(x[cu[i] : cu[i + 1]], weights[i], biases[i]) for i in range(len(cu) - 1)]
    return torch.cat([x.new_zeros(0, 4), *parts])
