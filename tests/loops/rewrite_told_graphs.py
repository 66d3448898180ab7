"""Loops over as many documents as a number says that the model is given, of which every slot carries the number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


def _told(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, int]:
    """Slots in front of the first document, and behind the last, carry numbers that no document has."""
    ids = torch.searchsorted(cu.long(), torch.arange(x.shape[0]), right=True) - 1
    return x, ids, len(cu) - 1


def _in_a_dict(x: Tensor, cu: Tensor) -> tuple[dict[str, Any]]:
    row, ids, number = _told(x, cu)
    return ({"x": row, "batch": ids, "num_graphs": number},)


@program("f[T,2] cu", wrap=_told, exact=False, graphs=3)
def sums_of_as_many_as_told(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    return torch.stack([x.new_zeros(2), *(x[ids == i].sum(0) for i in range(num_graphs))])


@program("f[T,2] cu", wrap=_told, exact=False, graphs=3)
def best_of_those_told(x: Tensor, ids: Tensor, batch_size: int) -> Tensor:
    outs = [x.new_zeros(1, 2)]
    for i in range(batch_size):
        here = torch.where(ids == i)[0]
        outs.append(x[here].sum(0, keepdim=True).relu())
    return torch.cat(outs)


@program("f[T,2] cu", wrap=_told, exact=False, graphs=3)
def centred_as_many_as_told(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    out = x.clone()
    for i in range(num_graphs):
        here = (ids == i).nonzero().squeeze(-1)
        out[here] = x[here] - x[here].mean(0)
    return out


@program("f[T,2] cu", wrap=_in_a_dict, exact=False, graphs=3)
def told_in_a_dict(graphs: dict[str, Any]) -> Tensor:
    outs = [graphs["x"][:0]]
    for i in range(graphs["num_graphs"]):
        rows = graphs["x"][graphs["batch"] == i]
        outs.append(rows - rows.mean(0))
    return torch.cat(outs)


@program("f[T,2] cu", wrap=_told, exact=False, graphs=3)
def those_above_of_as_many_as_told(x: Tensor, ids: Tensor, num_graphs: int) -> Tensor:
    return torch.stack([x.new_zeros(2), *(x[(ids == i) & (x[:, 0] > 0)].sum(0) for i in range(num_graphs))])
