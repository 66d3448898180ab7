"""Products and distances of what each document has one of; experts that are as many as rows of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T,3] f[T,3] cu", exact=False, min_len=1, tail=False)
def cosines_of_means(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        found.append(F.cosine_similarity(x[s:e].mean(0), y[s:e].mean(0), dim=0))
    return torch.stack(found)


@program("f[T,3] f[3] cu", exact=False, tail=False)
def cosine_to_a_query(x: Tensor, query: Tensor, cu: Tensor) -> Tensor:
    found = []
    for i in range(len(cu) - 1):
        total = x[cu[i] : cu[i + 1]].sum(0, keepdim=True)
        found.append(1 - F.cosine_similarity(total, query.unsqueeze(0)).squeeze())
    return torch.stack(found)


@program("f[T,3] f[T,3] cu", exact=False, tail=False)
def distance_of_sums(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([F.pairwise_distance(x[s:e].sum(0), y[s:e].sum(0)) for s, e in zip(cu[:-1], cu[1:])])


@program("f[T,3] cu", tail=False)
def outer_products_of_sums(x: Tensor, cu: Tensor) -> Tensor:
    found = []
    for s, e in zip(cu[:-1], cu[1:]):
        total = x[s:e].sum(0)
        found.append(torch.outer(total, total / 2))
    return torch.stack(found)


@program("f[T,3] f[T,5] cu", exact=False, tail=False)
def product_of_products(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    found = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own, other = x[s:e].t() @ x[s:e], torch.einsum("ti,tj->ij", x[s:e], y[s:e])
        found.append((own @ other).sum(0))
    return torch.stack(found)


@program("d[T,16] d[N,18,16] d[N,16,9] cu", exact=False, tail=False, graphs=3)
def gated_experts(x: Tensor, up: Tensor, down: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    parts = []
    for i, (part, n) in enumerate(zip(torch.split(x, lengths), lengths)):
        if n == 0:
            continue
        gate, value = torch.matmul(part, up[i].T).chunk(2, dim=-1)
        parts.append(torch.matmul(F.silu(gate) * value, down[i].T))
    return torch.cat(parts)
