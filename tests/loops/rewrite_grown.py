"""Loops that must be rewritten: lists and rows that grow in other ways than by ``append``, totals that begin with
None."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from .harness import SHAPES, program

SOME = tuple(shape for shape in SHAPES if shape.kind != "no_documents")
"""Where there is no document, eager leaves None, or a list with nothing to join."""


def spans(cu: Tensor) -> Any:
    return zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)


@program("f[T,2] cu", shapes=SOME)
def list_grown_in_place(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for i in range(len(cu) - 1):
        parts += [x[cu[i] : cu[i + 1]].flip(0)]
    return torch.cat(parts)


@program("f[T] cu")
def list_grown_by_two(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in spans(cu):
        parts += x[s:e].flip(0), x[s:e] * 2
    parts += [x[:1]]
    return torch.cat(parts)


@program("f[T] cu", tail=False, shapes=SOME)
def list_made_anew(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in spans(cu):
        parts = parts + [x[s:e].roll(1)]  # noqa: RUF005
    return torch.cat(parts)


@program("f[T,2] cu", shapes=SOME)
def tuple_made_anew(x: Tensor, cu: Tensor) -> Tensor:
    parts: tuple[Tensor, ...] = ()
    for s, e in spans(cu):
        parts += (x[s:e].flip(0), x[s:e])
    return torch.cat(parts)


@program("f[T,2] cu")
def between_marks_of_the_program(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    parts = [x.new_zeros(1, 2)]
    for s, e in spans(cu):
        parts.append(x[s:e].flip(0))
    parts.append(x.new_ones(2, 2))
    return torch.cat(parts, dim=0), len(parts)


@program("f[T,2] cu", exact=False)
def stacked_between_others(x: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    sums = [x.new_zeros(2)]
    for s, e in spans(cu):
        sums.append(x[s:e].sum(0))
    sums += [x.new_ones(2)]
    return torch.stack(sums), sum(sums)


@program("f[T] cu")
def comprehension_between_others(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.cat([x[:1]] + [x[s:e].flip(0) for s, e in itertools.pairwise(bounds)] + [x[-1:]])  # noqa: RUF005


@program("f[T] cu")
def unpacked_generator(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[:1], *(x[s:e].flip(0) for s, e in spans(cu))])


@program("f[T] cu", shapes=SOME)
def extended_by_a_generator(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    parts.extend(x[s:e].flip(0) for s, e in spans(cu))
    return torch.cat(parts)


@program("f[T] cu", shapes=SOME)
def starmap_over_documents(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([*itertools.starmap(lambda s, e: x[s:e].flip(0), spans(cu))])


@program("f[T,2] cu")
def row_that_grows(x: Tensor, cu: Tensor) -> Tensor:
    row = x[:0]
    for s, e in spans(cu):
        row = torch.cat((row, x[s:e].flip(0)))
    return row


@program("f[T,2] cu")
def row_that_grows_behind_another(x: Tensor, cu: Tensor) -> Tensor:
    row = x[:2] * 3
    for s, e in spans(cu):
        row = torch.cat([row, x[s:e].flip(0), x[s:e]])
    return row


@program("f[T,2] cu", shapes=SOME)
def row_that_begins_with_none(x: Tensor, cu: Tensor) -> Any:
    row = None
    for s, e in spans(cu):
        doc = x[s:e].flip(0)
        row = doc if row is None else torch.cat((row, doc), dim=0)
    return row


@program("f[T] cu", depends=False)
def row_of_another_dtype(x: Tensor, cu: Tensor) -> Tensor:
    """An empty tensor of floating point numbers in front makes one of integers."""
    row = torch.tensor([])
    for s, e in spans(cu):
        row = torch.cat([row, torch.arange(e - s)])
    return row


@program("f[2,T] cu")
def columns_that_grow(x: Tensor, cu: Tensor) -> Tensor:
    rows = x.new_zeros(2, 0)
    for s, e in spans(cu):
        rows = torch.cat([rows, x[:, s:e].flip(1)], -1)
    return rows


@program("f[T,2] cu", exact=False, depends=False, shapes=SOME)
def totals_that_begin_with_none(x: Tensor, cu: Tensor) -> Any:
    total, both, count = None, None, 0
    for s, e in spans(cu):
        share = x[s:e].square().sum(0)
        total = share if total is None else total + share
        if both is None:
            both = share.sum()
        else:
            both += share.sum()
        count += 1
    return total / count, both


@program("f[T] f[N,200] cu", exact=False, graphs=3)
def ends_of_padded_rows(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    out = x.sum() + x.new_zeros(1)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out = torch.cat((out, rows[i, e - s :]))
    return out


@program("f[T] cu", exact=False, tail=False, reads=1)
def row_total_and_count(x: Tensor, cu: Tensor) -> tuple[Tensor, Any, int]:
    row, total, count = x[:0], 0.0, 0
    for i, (s, e) in enumerate(spans(cu)):
        doc = x[s:e] * i
        row, total = torch.cat((row, doc)), total + doc.sum()
        count += e - s
    return row, total, count


@program("f[T,3] cu", shapes=SOME)
def rows_below_each_other(x: Tensor, cu: Tensor) -> Any:
    row, flat, sums, firsts = x[:0], x[:0, 0], [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        row = torch.vstack((row, x[s:e].cumsum(0)))
        flat = torch.hstack((flat, x[s:e, 0].flip(0)))
        sums.append(x[s:e].sum(0))
        firsts.append(x[s:e].sum())
    return row, flat, torch.vstack(sums), torch.hstack(firsts)
