"""Look-alikes of loops that can be divided: what one part does is seen by the other in another document, or drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _prompts(x: Tensor, cu: Tensor) -> Args:
    lengths = cu.diff() % 9
    return x, lengths // 2, lengths


def _halves(x: Tensor, cu: Tensor) -> Args:
    return torch.cat([x, x]), cu, cu.diff() // 2, cu.diff() + 1


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="the next document's row is read")
def next_row_is_read(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = torch.cat([x, x[:1]]) * 2, []
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        row = out[i]
        row[:a] = 0
        sums.append(out[i + 1].sum() * n)
    return out, torch.stack(sums)


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="all rows are read")
def all_rows_are_read(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x * 2, torch.zeros(x.shape[0])
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        out[i, :a] = 0
        sums[i] = out[:, 0].sum()
    return out, sums


@leave("f[T] cu", wrap=_halves, depends=False, tail=False, why="parts of a packed row reach into the next document")
def parts_that_reach_further(x: Tensor, cu: Tensor, halves: Tensor, more: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i] + halves[i]] += 1
        out[cu[i] : cu[i] + more[i]] *= 2
    return out


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="rows are written along one and read along another")
def rows_beside_columns(x: Tensor, prompts: Tensor, lengths: Tensor) -> Tensor:
    out = x[:, :, None].repeat(1, 1, x.shape[0]) * 2
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        out[i, :a, 0] = 7
        out[:, :n, i] += 1
    return out


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="both parts draw numbers")
def numbers_drawn_in_both(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    one, other = [], []
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        one.append((x[i, :n] * torch.rand(())).sum())
        other.append(x[i, a:n] * torch.rand(()))
    return torch.stack(one), torch.cat(other)


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="a list holds views of what is written afterwards")
def listed_before_it_is_written(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, parts = x * 2, []
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        parts.append(out[i, :n])
        out[i, :a] = 7
    return out, torch.cat(parts)


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="a call in place is used by what comes next")
def result_of_a_call_in_place(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x * 2, []
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        part = out[i, :n].add_(1)
        sums.append(part.sum())
        out[i, :a] = 0
    return out, torch.stack(sums)


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="all documents add to one row")
def one_row_for_all(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, total = x * 2, torch.zeros(9)
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        out[i, :a] = 0
        total[:n] += out[i, :n]
    return out, total


@leave("f[N,9] cu", wrap=_prompts, depends=False, tail=False, why="documents are skipped between the two parts")
def skipped_between(x: Tensor, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    one, other = x * 2, x * 3
    for i, (a, n) in enumerate(zip(prompts.tolist(), lengths.tolist())):
        one[i, :a] = 7
        if n < 3:
            continue
        other[i, :n] = 1
    return one, other
