"""Operations without a rule on what documents have one of each, which torch.vmap knows.

By which rules it does is a matter of the release, so that none is demanded here: `tests/passes/test_batched.py` does,
for one release.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T,3] cu", exact=False, demand=False)
def whitened(x: Tensor, cu: Tensor) -> Tensor:
    out, eye = torch.zeros_like(x), torch.eye(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e] - x[s:e].sum(0)
        lower = torch.linalg.cholesky(part.T @ part / 64 + 3 * eye)
        out[s:e] = part @ torch.linalg.inv(lower).T
    return out


@program("f[T,3] cu", tail=False, exact=False, demand=False)
def signs_and_determinants(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        sign, logarithm = torch.linalg.slogdet(x[s:e].T @ x[s:e] / 16 + 2 * torch.eye(3))
        out.append(sign * logarithm)
    return torch.stack(out)


@program("f[T,3] cu", tail=False, exact=False, demand=False)
def diagonals_and_triangles(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        square = x[s:e].T @ x[s:e]
        out.append(torch.tril(square) + square.triu(1) + torch.diag_embed(square.diagonal()))
    return torch.stack(out)


@program("f[T,3] cu", tail=False, exact=False, demand=False)
def singular_values(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, x = [], x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e].detach()
        _, values, _ = torch.linalg.svd(part.T @ part + torch.diag(torch.tensor([1.0, 2.0, 3.0])))
        out.append(values)
    return torch.stack(out), x


@program("f[T,3] cu", tail=False, exact=False, demand=False)
def products_of_all_pairs(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pooled = x[s:e].sum(0)
        out.append(torch.kron(pooled, pooled[:2]) + torch.linalg.matrix_power(pooled.diag(), 2).sum())
    return torch.stack(out)
