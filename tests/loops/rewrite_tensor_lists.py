"""Documents that a program is given as a list of tensors."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .harness import program


def split(x: Tensor, cu: Tensor, *more: Any) -> tuple[Any, ...]:
    return [part.clone() for part in x.split(cu.diff().tolist())], *more


def halves(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return split(x, cu)[0], split(y, cu)[0]


listed: Any = functools.partial(program, "f[T,3] cu", wrap=split, tail=False, min_len=1, graphs=4)


@listed()
def centred_parts(parts: list[Tensor]) -> Tensor:
    return torch.cat([part - part.mean(0) for part in parts])


@program("f[T,3] cu", wrap=split, tail=False, graphs=4)
def joined_and_split_again(parts: list[Tensor]) -> list[Tensor]:
    lengths = [len(part) for part in parts]
    return [part.cumsum(0) for part in (torch.cat(parts) * 2).split(lengths)]


@listed(reads=2)
def padded_parts(parts: list[Tensor]) -> Tensor:
    width = max(part.size(0) for part in parts)
    out = parts[0].new_zeros(len(parts), width, 3)
    for i, part in enumerate(parts):
        out[i, : part.size(0)] = part
    return out


@program("i[T] cu f[9,4]", wrap=split, tail=False, graphs=4, depends=False)
def embedded_parts(ids: list[Tensor], table: Tensor) -> Tensor:
    return torch.cat([table[:0], *[F.embedding(part % 9, table) for part in ids]])


@program("f[T,3] f[T] cu", wrap=halves, tail=False, min_len=1, graphs=4)
def two_lists_of_tensors(parts: list[Tensor], weights: list[Tensor]) -> Tensor:
    return torch.stack([(part * weight[:, None]).sum(0) for part, weight in zip(parts, weights)])


@program("f[T,3] f[T] cu", wrap=lambda x, y, cu: (*halves(x, y, cu), cu.diff().tolist()), tail=False, graphs=4, reads=1)
def lists_and_their_lengths(parts: list[Tensor], weights: list[Tensor], lengths: list[int]) -> Tensor:
    out = [parts[0][:0]]
    for part, weight, n in zip(parts, weights, lengths):
        out.append(part * weight[:, None] / (n + 1))
    return torch.cat(out)


@program("f[T,3] cu", wrap=lambda x, cu: ({"parts": tuple(split(x, cu)[0])},), tail=False, min_len=1, graphs=4)
def a_tuple_in_a_batch(batch: dict[str, Any]) -> Tensor:
    return torch.stack([part.amax(0) for part in batch["parts"]])


@listed(exact=False)
class ProjectedParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 4).double()

    def forward(self, parts: list[Tensor]) -> Tensor:
        hidden = self.first(torch.cat(parts).double())
        return torch.cat([self.second(part).softmax(0) for part in hidden.split([len(part) for part in parts])])


def pooled(x: Tensor, cu: Tensor, *more: Any) -> tuple[Any, ...]:
    return [part.sum(0) for part in split(x, cu)[0]], *more


def scalars(x: Tensor, cu: Tensor, *more: Any) -> tuple[Any, ...]:
    return tuple(part.sum() for part in split(x, cu)[0]), *more


@program("f[T,3] cu", wrap=pooled, tail=False, min_len=1, graphs=3, demand=False)
def pooled_values_in_a_list(pooled: list[Tensor]) -> Tensor:
    return torch.stack([value * 2 - value.sum() for value in pooled])


@program("d[T] cu", wrap=scalars, tail=False, min_len=1, exact=False, graphs=3, demand=False)
def losses_in_a_tuple(losses: tuple[Tensor, ...]) -> Tensor:
    total: Any = 0.0
    for loss in losses:
        total = total + loss.square()
    return total / len(losses)
