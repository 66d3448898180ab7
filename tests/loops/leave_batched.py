"""What is done with values that documents have one of each, and is not for a batch: random numbers, written views."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu", tail=False)
def a_view_of_it_is_written(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, x = [], x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        square = (x[s:e].T @ x[s:e]).detach()
        square.diagonal().add_(1.0)
        out.append(square)
    return torch.stack(out), x


@leave("f[T,3] cu")
def of_some_documents_only(x: Tensor, cu: Tensor) -> Tensor:
    """What is not looked at may have no inverse."""
    out = torch.zeros(len(cu) - 1, 3, 3)
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]]
        if part.shape[0] < 4:
            continue
        out[i] = torch.linalg.inv(part.T @ part / 64 + 2 * torch.eye(3))
    return out


@leave("f[T,3] cu", tail=False)
def of_every_sample_by_itself(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, x = [], x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(torch.histc(x[s:e].sum(0).detach(), 3, -4, 4))
    return torch.stack(out), x


@leave("f[T,3] cu", tail=False)
def of_sizes_that_depend_on_it(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, x = [], x * 1
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append((x[s:e].sum(0).detach() > 0).nonzero().sum())
    return torch.stack(out), x


@leave("f[T,3] cu", tail=False, must_refuse=True, why="every document draws numbers after the one before it")
def noise_of_every_document(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pooled = x[s:e].sum(0)
        out.append(torch.bernoulli(torch.sigmoid(pooled).detach()) * 0 + pooled)
    return torch.stack(out)
