"""Loops that must be rewritten: entries of ``defaultdict``, autocast in the body, ``tensor_split`` by a tensor."""

from __future__ import annotations

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T] m[T] cu", exact=False, tail=False)
def lists_of_metrics(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    metrics = defaultdict(list)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        metrics["loss"].append((x[s:e] * mask[s:e]).sum())
        metrics["tokens"].append(mask[s:e].sum())
    return torch.stack(metrics["loss"]).mean(), torch.stack(metrics["tokens"])


@program("f[T] cu", exact=False, tail=False)
def lists_by_names_of_metrics(x: Tensor, cu: Tensor) -> dict[str, Tensor]:
    metrics = defaultdict(list)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        for name, value in {"sum": x[s:e].sum(), "size": x[s:e].abs().sum()}.items():
            metrics[name].append(value)
    return {name: torch.stack(values) for name, values in metrics.items()}


@program("f[T] m[T] cu", exact=False, tail=False, depends=False)
def totals_of_metrics(x: Tensor, mask: Tensor, cu: Tensor) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = defaultdict(float)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        metrics["loss"] += (x[s:e] * mask[s:e]).sum()
        metrics["tokens"] += mask[s:e].sum()
    metrics["more"] += 1
    return metrics


# === Autocast ================================================================================================


@program("f[T,4] cu", tail=False, depends=False)
def projected_under_autocast(x: Tensor, cu: Tensor) -> Tensor:
    outs, w = [], torch.arange(16.0).view(4, 4) / 8
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.linear(x[s:e], w)
            h = torch.einsum("td,de->te", F.relu(h), w)
        outs.append(h.float() + x[s:e])
    return torch.cat(outs)


@program("f[T,4] cu", tail=False, exact=False)
def rotated_without_autocast(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.autocast(device_type="cpu", enabled=False):
            outs.append(x[s:e].float() * torch.arange(e - s)[:, None].cos())
    return torch.cat(outs)


@program("f[T,4] cu", tail=False, exact=False)
def autocast_of_another_device(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.autocast(device_type="cuda", enabled=False):
            outs.append(x[s:e].softmax(0))
    return torch.cat(outs)


# === A tensor of places ======================================================================================


@program("f[T,4] cu64", exact=False, tail=False)
def split_at_a_tensor_of_places(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in torch.tensor_split(x, cu[1:-1].cpu())])


@program("f[T,4] cu", exact=False, tail=False)
def split_at_places_of_another_dtype(x: Tensor, cu: Tensor) -> Tensor:
    outs = []
    for part in x.tensor_split(cu[1:-1].long()):
        outs.append(part - part.sum(0))
    return torch.cat(outs)
