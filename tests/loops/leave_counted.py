"""Look-alikes of loops over rows that masks tell the lengths of: right, whatever becomes of them."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import Args, leave


def _integers(x: Tensor, ids: Tensor) -> Args:
    return x, ids % 3


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="the mask is changed when it has been counted")
def mask_changed_in_between(x: Tensor, mask: Tensor) -> Tensor:
    mask, out = mask.clone(), []
    for i in range(len(x)):
        n = int(mask[i].sum())
        mask[i, 0] = True
        out.append(x[i, :n] * mask[i].sum())
    return torch.cat(out)


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="the mask is changed between two loops")
def mask_changed_between_loops(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    mask = mask.clone()
    first = torch.cat([x[i, : int(mask[i].sum())] for i in range(len(x))])
    mask[:, 2] = True
    second = torch.cat([x[i, : int(mask[i].sum())] for i in range(len(x))])
    return first, second


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="the next row's mask is counted")
def count_of_the_next_row(x: Tensor, mask: Tensor) -> Tensor:
    mask = torch.cat([mask, mask[:1]])
    return torch.cat([x[i, : int(mask[i + 1].sum())] for i in range(len(x))])


@leave("f[N,9,3] i[N,9]", wrap=_integers, depends=False, tail=False, why="a sum of integers is no count")
def sum_of_integers(x: Tensor, ids: Tensor) -> Tensor:
    return torch.cat([x[i, : ids[i].sum() // 2] for i in range(len(x))])


@leave("f[N,9,3] i[N,9]", wrap=_integers, depends=False, tail=False, why="any of integers")
def any_of_integers(x: Tensor, ids: Tensor) -> Tensor:
    out = []
    for i in range(len(x)):
        if ids[i, :2].any():
            out.append(x[i].sum(0))
        else:
            out.append(x[i, 0])
    return torch.stack(out)


@leave("f[N,9,3] i[N,9]", wrap=_integers, depends=False, tail=False, why="places are computed with")
def places_and_their_mean(x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    out, means = [], []
    for i in range(len(x)):
        at = torch.where(ids[i] == 1)[0]
        out.append(x[i][at] + at[:, None])
        means.append(at.sum())
    return torch.cat(out), torch.stack(means)


@leave("f[N,9,3] i[N,9]", wrap=_integers, depends=False, tail=False, why="places of the row before")
def places_of_another_row(x: Tensor, ids: Tensor) -> Tensor:
    out, at = [], torch.zeros(1, dtype=torch.long)
    for i in range(len(x)):
        out.append(x[i][at])
        at = torch.where(ids[i] == 1)[0]
    return torch.cat(out)


@leave("f[N,9,3] i[N,9]", wrap=_integers, depends=False, tail=False, why="the row is changed when the places are known")
def row_changed_behind_its_places(x: Tensor, ids: Tensor) -> Tensor:
    ids, out = ids.clone(), []
    for i in range(len(x)):
        at = torch.where(ids[i] == 1)[0]
        ids[i] += 1
        out.append(x[i][at] * ids[i][at, None])
    return torch.cat(out)


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="a loop over layers beside a total")
def layers_beside_a_total(x: Tensor, mask: Tensor) -> Tensor:
    total = int(mask.sum())
    for k in range(3):
        x = x * (k + 1) + total
    return x


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="the graph ends inside of the loop of a batch of one row")
def batch_of_one_row_otherwise(x: Tensor, mask: Tensor) -> Tensor:
    out = []
    for i in range(x.shape[0]):
        if x.shape[0] == 1:
            torch._dynamo.graph_break()
        out.append(x[i][mask[i]])
    return torch.cat(out)


@leave("m[N,9]", depends=False, tail=False, why="numbers of rows, of which nothing is cut")
def counts_alone(mask: Tensor) -> Tensor:
    return torch.stack([row.sum() for row in mask])


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="columns are picked, not rows")
def columns_by_a_mask(x: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([x[:, mask[i]].sum(1) for i in range(len(mask))])


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="the row is written when it is copied")
def row_written_before_it_is_counted(x: Tensor, mask: Tensor) -> Tensor:
    out = []
    for i in range(len(x)):
        own = mask[i].clone()
        own.fill_(True)
        out.append(x[i, : int(own.sum())])
    return torch.cat(out)


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="a count of its own, which is written")
def counts_returned_and_written(x: Tensor, mask: Tensor) -> list[Tensor]:
    numbers = []
    for i in range(len(x)):
        n = mask[i].sum()
        n += 1
        numbers.append(n)
    return numbers


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="the mask is written behind the loop")
def parts_returned_and_mask_written(x: Tensor, mask: Tensor) -> list[Tensor]:
    mask, out = mask.clone(), []
    for i in range(len(x)):
        n = int(mask[i].sum())
        out.append(x[i, :n])
    mask.fill_(True)
    return out


@leave("f[N,9,3] m[N,9]", depends=False, tail=False, why="rows are written through the views in a list")
def views_written_by_a_later_loop(x: Tensor, mask: Tensor) -> Tensor:
    x = x.clone()
    parts = [x[i, : int(mask[i].sum())] for i in range(len(x))]
    for part in parts:
        part.mul_(2)
    return x


@leave("f[N,9,3] i[N]", depends=False, tail=False, why="a number that may be negative")
def the_larger_of_none_and_a_number(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([x[i, : max(0, n - 15)] for i, n in enumerate(numbers.tolist())])
