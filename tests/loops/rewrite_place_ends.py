"""Rows of which the first or the last place of a mask is found, as reward models find where a sequence ends."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.loops.harness import program


def rows(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two batches of scores, and the ids of tokens: 0 behind the end of a document, of which every row has a slot."""
    lengths = cu.diff().long()
    width = int(lengths.max()) + 1
    slots = torch.arange(width)
    ids = (slots + 1).expand(len(lengths), width) * (slots < lengths[:, None])
    first = x[: 1].expand(len(lengths), width) + slots / 8
    return first.clone(), first.flip(1) * 2, ids


_ROWS: dict[str, Any] = dict(wrap=rows, tail=False, exact=False, graphs=4, min_len=1)


@program("f[T] cu", **_ROWS)
def up_to_the_first_padding(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    loss = a.new_zeros(())
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        end = places[0].item() if len(places) > 0 else ids.shape[1]
        loss = loss - F.logsigmoid(a[i, :end] - b[i, :end]).mean()
    return loss / ids.shape[0]


@program("f[T] cu", rule="ragged_grids", **_ROWS)
def up_to_the_longer_of_both(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        one, other = (ids[i] == 0).nonzero(), (ids[i] == 2).nonzero()
        end = one[0].item() if len(one) > 0 else ids.shape[1]
        second = other[0].item() if len(other) > 0 else ids.shape[1]
        longest = max(end, second)
        out.append((a[i, :longest] - b[i, :longest]).sum())
    return torch.stack(out)


@program("f[T] cu", **_ROWS)
def score_of_the_last_token(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(ids.shape[0]):
        (places,) = torch.where(ids[i] != 0)
        out.append(a[i, places[-1]])
    return torch.stack(out)


@program("f[T] cu", **_ROWS)
def from_the_first_to_the_last(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = []
    for row, tokens in zip(a, ids):
        places = (tokens != 0).nonzero()
        out.append(row[places[0] : places[-1].item() + 1].sum())
    return torch.stack(out)


@program("f[T] cu", rule="ragged_grids", **_ROWS)
def put_up_to_the_first_padding(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    out = torch.zeros_like(a)
    for i in range(ids.shape[0]):
        places = (ids[i] == 0).nonzero()
        end = int(places[0]) if places.numel() > 0 else ids.size(1)
        out[i, :end] = a[i, :end].softmax(0)
    return out
