"""Loops that must be rewritten: no gradients for a part of the body; columns of a document are written."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("d[T] cu", exact=False, tail=False)
def mean_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            mean = x[s:e].sum()
        parts.append((x[s:e] - mean) * 2)
    return torch.cat(parts)


@program("d[T] d[T] cu", exact=False, tail=False)
def advantages_and_statistics_without_gradients(x: Tensor, old: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    losses, clipped = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            advantage = old[s:e] - old[s:e].sum()
        ratio = (x[s:e] - old[s:e]).clamp(-1, 1).exp()
        with torch.no_grad():
            clipped.append((ratio > 1.2).float().sum())
            extra = (ratio - 1).sum()
        losses.append((ratio * advantage).sum() + extra)
    return torch.stack(losses), torch.stack(clipped)


@program("d[T] cu", exact=False, tail=False)
def sorted_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.set_grad_enabled(False):
            values, _ = x[s:e].sort(stable=True)
        parts.append(values * x[s:e])
    return torch.cat(parts)


@program("d[T] cu", exact=False, tail=False)
def without_gradients_twice(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    with torch.no_grad():
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            with torch.no_grad():
                part = x[s:e].cumsum(0)
            parts.append(part * 2)
    return torch.cat(parts)


@program("d[T] m[T] cu", exact=False, tail=False)
def kept_without_gradients(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.no_grad():
            kept = x[s:e][mask[s:e]].sum()
        out.append(kept)
    return torch.stack(out) + x.sum()


# === Columns =================================================================================================


@program("d[T,3] cu", exact=False, tail=False)
def one_column_written(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, 0] = x[s:e, 0].cumsum(0)
    return out


@program("d[T,3] d[N] cu", exact=False, tail=False, graphs=3)
def columns_written_one_by_one(x: Tensor, rewards: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e, 0] = x[s:e].sum(-1).flip(0)
        out[s:e, 1] = rewards[i]
        out[s:e, 2] += x[s:e, 2].sum()
    return out


@program("d[2,T,3] cu", exact=False, tail=False)
def columns_of_rows_written(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e, 1:] = x[:, s:e, :2].flip(1)
    return out


@program("d[T,3] cu", exact=False, tail=False)
def columns_made_of_each_other(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e, 0] = out[s:e, 1].cumsum(0)
        out[s:e, 1] = out[s:e, 0] + 1
    return out
