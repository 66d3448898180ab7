"""Loops that look like those which find the first or the last place of a mask, and mean something else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.loops.harness import leave
from tests.loops.rewrite_place_ends import rows

_ROWS: dict[str, Any] = dict(wrap=rows, tail=False, exact=False, graphs=4, min_len=1)


@leave("f[T] cu", **_ROWS)
def mask_changed_between(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        mask = ids[i] == 0
        places = mask.nonzero()
        mask[0] = True
        out.append(a[i, places[0, 0]] + a[i, mask.nonzero()[0, 0]])
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def the_second_place(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        places = (ids[i] < 2).nonzero()
        out.append(a[i, places[1, 0]])
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def places_written_before(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        places += 1
        out.append(a[i, places[0, 0] - 1])
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def first_place_written(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        first = places[0]
        places[0] = 0
        out.append(a[i, first.item()])
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def first_place_written_itself(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        first = (ids[i] == 0).nonzero()[0]
        first -= 1
        out.append(a[i, first.item()])
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def ids_written_behind(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out, ids = [], ids.clone()
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        out.append(a[i, places[0, 0]])
        ids[:, 0] = 0
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def ends_as_tensors(a: Tensor, b: Tensor, ids: Tensor) -> Any:
    first, both = [], []
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        first.append(places[0])
        both.append(places[0, 0] + places[-1, 0])
        places[0] = 5
    return torch.cat(first), torch.stack(both)


@leave("f[T] cu", **_ROWS)
def last_of_a_turned_column(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        out.append(a[i, : places.t()[0, -1].item()].sum() + b[i, : places.view(1, -1)[0, -1].item()].sum())
    return torch.stack(out)


@leave("f[T] cu", **_ROWS)
def last_behind_a_cut(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        places = (ids[i] < 2).nonzero()
        out.append(a[i, : places[1:][0].item()].sum() + b[i, : places.flip(0)[0].item()].sum())
    return torch.stack(out)
