"""Look-alikes of one slot set in each row: of other rows, read before it is set, or of none."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _scored(x: Tensor, scores: Tensor, cu: Tensor) -> Args:
    return x, scores, cu.diff() % 8 + 1


def _chosen(x: Tensor, scores: Tensor, cu: Tensor) -> Args:
    return x, scores, (cu.diff() % 5) - 3


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="all add to the first row")
def all_scores_in_one_row(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        out[0, lengths[i] - 1] += scores[i]
    return out


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="what was read before is used after")
def slot_read_before_it_is_set(x: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, seen = x * 2, []
    for i in range(len(scores)):
        before = out[i, lengths[i] - 1]
        out[i, lengths[i] - 1] = scores[i]
        seen.append(before * 3)
    return out, torch.stack(seen)


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="two numbers may name one slot")
def two_slots_that_may_be_one(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        out[i, lengths[i] - 1] = scores[i]
        out[i, lengths[i] // 2] += out[i, lengths[i] - 1]
    return out


@leave("f[N,9] f[N] cu", wrap=_chosen, depends=False, tail=False, unfit=True, why="some numbers count from the end")
def slots_from_the_end(x: Tensor, scores: Tensor, numbers: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        out[i, numbers[i]] = scores[i]
    return out


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="the first row is written after they are listed")
def listed_rows_that_change(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out, rows = x * 2, []
    for i in range(len(scores)):
        row = out[i]
        rows.append(row)
        row[lengths[i] - 1] = scores[i]
    out[0] = 5.0
    return torch.stack(rows)


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="a slot of the next row is set")
def slot_of_the_next_row(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = torch.cat([x, x[:1]]) * 2
    for i in range(len(scores)):
        row = out[i + 1]
        row[lengths[i]] = out[i].sum()
    return out


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="a number of another dtype is stored")
def numbers_stored_as_integers(x: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros(x.shape, dtype=torch.int32)
    for i in range(len(scores)):
        out[i, lengths[i] - 1] = 3.7
    return out, x * 2


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, mutates=True, why="the batch itself is written")
def slot_of_an_input(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    for i in range(len(scores)):
        x[i, lengths[i] - 1] = scores[i]
    return x * 2


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="a slot changed in place again and again")
def slots_changed_in_place(x: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    out = x * 2
    for i in range(len(scores)):
        row = out[i]
        row[lengths[i] - 1].mul_(3).add_(scores[i])
        row[lengths[i]].fill_(0.5)
        row[0] = row[lengths[i]] + row[-1]
    return out


@leave("f[N,9] f[N] cu", wrap=_scored, depends=False, tail=False, why="a copy is written, not the row")
def slot_of_a_copy(x: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    out, sums = x * 2, []
    for i in range(len(scores)):
        row = out[i].clone()
        row[lengths[i] - 1] = scores[i]
        sums.append(row.cumsum(0))
    return out, torch.stack(sums)
