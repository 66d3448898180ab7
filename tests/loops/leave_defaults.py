"""Loops that must keep eager's results: a ``defaultdict`` whose entries the body looks at, autocast that does more."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", tail=False, must_refuse=True, why="the body counts the entries, of which the first one finds none")
def entries_that_are_counted(x: Tensor, cu: Tensor) -> Tensor:
    metrics: dict[str, Tensor] = defaultdict(float)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        metrics["loss"] += x[s:e].sum() * (2.0 if len(metrics) else 1.0)
    return x.sum() + metrics["loss"]


@leave("f[T] cu", tail=False, must_refuse=True, why="the body asks whether there is an entry")
def entries_that_are_asked_for(x: Tensor, cu: Tensor) -> Tensor:
    metrics: dict[str, Tensor] = defaultdict(float)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        factor = 2.0 if "loss" in metrics else 1.0
        metrics["loss"] += x[s:e].sum() * factor
    return x.sum() + metrics["loss"]


@leave("f[T] cu", tail=False, must_refuse=True, why="the body goes over the entries")
def entries_that_are_gone_through(x: Tensor, cu: Tensor) -> Tensor:
    metrics = defaultdict(list)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        factor = 1.0
        for _ in metrics:
            factor += 1
        metrics["loss"].append(x[s:e].sum() * factor)
    return torch.stack([x.sum(), *metrics["loss"]])


@leave("f[T] cu", tail=False, must_refuse=True, why="a dict of which no document may make an entry")
def entries_of_documents_with_tokens(x: Tensor, cu: Tensor) -> dict[str, Tensor]:
    metrics: dict[str, Tensor] = defaultdict(float)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            continue
        metrics["loss"] += x[s:e].sum()
    return dict(metrics)


@leave("f[T] cu", tail=False)
def list_that_may_not_be_there(x: Tensor, cu: Tensor) -> Tensor:
    metrics = defaultdict(list)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        metrics["parts"].append(x[s:e] * 2)
    return torch.cat(metrics["parts"]) if metrics else x.sum()


class Doubling(defaultdict):  # type: ignore[type-arg]
    def __getitem__(self, key: str) -> Tensor:
        return 2 * super().__getitem__(key)


@leave("f[T] cu", tail=False, why="what an entry is, is up to the class")
def entries_of_a_class(x: Tensor, cu: Tensor) -> Tensor:
    metrics = Doubling(float)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        metrics["loss"] = metrics["loss"] + x[s:e].sum()
    return x.sum() + metrics["loss"]


@leave("f[T,4] cu", tail=False, why="autocast within autocast")
def autocast_in_autocast(x: Tensor, cu: Tensor) -> Tensor:
    outs, w = [], torch.eye(4)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x[s:e] @ w
            with torch.autocast("cpu", enabled=False):
                outs.append(h.float() + x[s:e] @ w)
    return torch.cat(outs)


@leave("f[T,4] cu", tail=False, why="autocast is on around the loop, and off in the body")
def off_in_the_body(x: Tensor, cu: Tensor) -> Tensor:
    outs, w = [], torch.eye(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            with torch.autocast("cpu", enabled=False):
                h = x[s:e] @ w
            outs.append(h + (x[s:e] @ w).float())
    return torch.cat(outs)
