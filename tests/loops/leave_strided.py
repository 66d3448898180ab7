"""Places that look as if they went by the number of the document, and do not, or lie in front of the first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


@leave("f[T,3] cu64", tail=False)
def rows_from_the_last_on(x: Tensor, cu: Tensor) -> Any:
    out = torch.zeros(2 * cu.numel(), 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[-2 * i - 1] = x[s:e].sum(0)
    return out


@leave("f[T,3] cu64", tail=False)
def rows_that_two_documents_share(x: Tensor, cu: Tensor) -> Any:
    out = torch.zeros(cu.numel(), 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i // 2] = x[s:e].sum(0)
    return out


@leave("f[T,3] cu64", tail=False)
def rows_with_gaps_that_are_read(x: Tensor, cu: Tensor) -> Any:
    out = torch.zeros(2 * cu.numel(), 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[2 * i + 2] = x[s:e].sum(0) + out[2 * i]
    return out


ORDER = "where a row and a column meet, the later document has written last"


@leave("f[T,3] cu64", tail=False, must_refuse=True, why=ORDER)
def columns_of_a_square(x: Tensor, cu: Tensor) -> Any:
    n = cu.numel() - 1
    square = torch.zeros(n, n)
    for i in range(n):
        square[i, :] = 1
        square[:, i] += cu[i + 1]
    return square, x * 2


@leave("f[T,3] cu64", tail=False, must_refuse=True, why=ORDER)
def rows_of_a_square_and_of_it_turned(x: Tensor, cu: Tensor) -> Any:
    n = cu.numel() - 1
    square = torch.zeros(n, n)
    turned = square.t()
    for i in range(n):
        square[i] = cu[i]
        turned[i] = cu[i + 1]
    return square, x * 2


@leave("f[T,3] cu64", tail=False, must_refuse=True, why=ORDER)
def columns_that_are_read_beside_rows(x: Tensor, cu: Tensor) -> Any:
    n = cu.numel() - 1
    square, sums = torch.arange(float(n * n)).view(n, n), []
    for i in range(n):
        square[i, :] = cu[i]
        sums.append(square[:, i].sum())
    return torch.stack(sums), square, x * 2


@leave("f[T,3] cu64", tail=False, must_refuse=True, why="the next document writes there again")
def places_that_the_next_one_has(x: Tensor, cu: Tensor) -> Any:
    n = cu.numel() - 1
    out = torch.zeros(2 * n + 4)
    for i in range(n):
        out[2 * i + 1] = cu[i]
        out[2 * i + 3] = cu[i + 1]
    return out, x * 2


@leave("f[T,3] cu64", tail=False)
def columns_and_the_rows_that_they_cross(x: Tensor, cu: Tensor) -> Any:
    member = torch.zeros(x.shape[0], cu.numel() - 1)
    for i in range(cu.numel() - 1):
        member[cu[i] : cu[i + 1], i] = 1
        member[cu[i] : cu[i + 1]] *= 2
    return member
