"""Lengths, boundaries and sizes of documents that a program is given as numbers of Python."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor

from tests.loops.harness import program


def lengths(x: Tensor, cu: Tensor, *more: Any) -> tuple[Any, ...]:
    return x, cu.diff().tolist(), *more


def two_lists(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    own = cu.diff()
    return x, own.tolist(), (own // 2 + 1).tolist()


@program("f[T,3] cu", wrap=lengths, graphs=4, tail=False)
def offsets_by_listed_lengths(x: Tensor, lengths: list[int]) -> Tensor:
    out, start = [x[:0]], 0
    for n in lengths:
        out.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(out)


@program("f[T,3] cu", wrap=lengths, graphs=4, tail=False, min_len=1)
def means_of_listed_lengths(x: Tensor, lengths: list[int]) -> Tensor:
    return torch.stack([part.mean(0) for part in x.split(lengths)])


@program("f[T,3] cu", wrap=lambda x, cu: (x, tuple(cu.tolist())), graphs=4)
def boundaries_as_a_tuple(x: Tensor, cu: tuple[int, ...]) -> Tensor:
    return torch.cat([x[:0], *[x[a:b].cumsum(0) for a, b in zip(cu[:-1], cu[1:])]])


@program("f[T,3] cu", wrap=two_lists, graphs=4, tail=False)
def two_lists_of_numbers(x: Tensor, lengths: list[int], parts: list[int]) -> Tensor:
    out, start = [x[:0]], 0
    for n, k in zip(lengths, parts):
        out.append(x[start : start + n] / k)
        start += n
    return torch.cat(out)


@program("f[N,200,3] cu", wrap=lengths, graphs=3, tail=False)
def rows_by_listed_lengths(x: Tensor, lengths: list[int]) -> Tensor:
    return torch.cat([x[0, :0], *[x[i, : lengths[i]] for i in range(len(lengths))]])


@program("f[T,3] cu", wrap=lambda x, cu: ({"x": x, "lengths": cu.diff().tolist()},), graphs=4, tail=False)
def listed_in_a_batch(batch: dict[str, Any]) -> Tensor:
    return torch.cat([part - part.sum(0) for part in batch["x"].split(batch["lengths"])])


@program(
    "f[T,3] cu",
    wrap=lambda x, cu: (types.SimpleNamespace(x=x, lengths=cu.diff().tolist()),),
    graphs=4, tail=False,
)  # fmt: skip
def listed_in_an_object(batch: Any) -> Tensor:
    return torch.cat([part - part.sum(0) for part in batch.x.split(batch.lengths)])


@program("f[1,T,3] cu", wrap=lengths, graphs=4, tail=False, reads=1)
def padded_by_listed_lengths(x: Tensor, lengths: list[int]) -> Tensor:
    out, start = x.new_zeros(len(lengths), 200, 3), 0
    assert sum(lengths) == x.shape[1]
    for i, n in enumerate(lengths):
        out[i, :n] = x[0, start : start + n]
        start += n
    return out


@program("f[T,3] cu", wrap=lengths, graphs=4, tail=False)
def boundaries_of_listed_lengths(x: Tensor, lengths: list[int]) -> Tensor:
    cu = torch.tensor([0, *lengths]).cumsum(0)
    return torch.stack([x[cu[i] : cu[i + 1]].sum(0) for i in range(len(lengths))])


def pairs(x: Tensor, cu: Tensor) -> tuple[Tensor, list[tuple[int, int]]]:
    return torch.cat([x, x]), [(2, int(n)) for n in cu.diff()]


@program("f[T,3] cu", wrap=pairs, graphs=4, tail=False, min_len=1, rule="ragged_grids")
def listed_sizes(x: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    out = []
    for part, (h, w) in zip(x.split([h * w for h, w in sizes]), sizes):
        out.append(part.view(h, w, 3).transpose(0, 1).reshape(h * w, 3))
    return torch.cat(out)

