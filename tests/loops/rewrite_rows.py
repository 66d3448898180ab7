"""Loops that must be rewritten: lists with a tuple, a list or a dict for each document."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .harness import program


@program("f[2,T] i[T] cu", tail=False)
def list_of_tuples(x: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    pairs = []
    for s, e in zip(cu[:-1], cu[1:]):
        pairs.append((x[:, s:e].roll(-1, -1), ids[s:e]))
    a, b = zip(*pairs)
    return torch.cat(a, -1), torch.cat(b)


@program("f[T,2] cu", tail=False)
def columns_one_by_one(x: Tensor, cu: Tensor) -> list[Tensor]:
    rows = [(x[s:e].flip(0), x[s:e] * 2, x[s:e].roll(1, 0)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return [torch.cat(column) for column in zip(*rows)]


@program("f[T,2] cu", tail=False)
def columns_as_lists(x: Tensor, cu: Tensor) -> Any:
    rows = [(x[cu[i] : cu[i + 1]].flip(0), x[cu[i] : cu[i + 1]].roll(2, 0)) for i in range(len(cu) - 1)]
    first, second = [list(column) for column in zip(*rows)]
    return torch.cat(first), torch.cat([x[:3], *second])


@program("f[T,2] cu", tail=False)
def rows_gone_through_again(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i in range(len(cu) - 1):
        rows.append([x[cu[i] : cu[i + 1]].flip(0), x[cu[i] : cu[i + 1]].roll(-1, 0)])
    return torch.cat([row[0] for row in rows]), torch.cat([b - a for a, b in rows])


@program("f[T,2] cu", tail=False)
def rows_of_a_dict(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i in range(len(cu) - 1):
        document = x[cu[i] : cu[i + 1]]
        rows.append({"query": document.roll(1, 0), "key": document.flip(0)})
    return torch.cat([row["query"] for row in rows]), torch.cat([row["key"] * 2 for row in rows])


@program("f[T,2] cu", tail=False, exact=False, min_len=1, lead_empty=False)
def rows_with_one_value_each(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows.append((x[s:e].cumsum(0), x[s:e].mean(0)))
    outputs, means = zip(*rows)
    return torch.cat(outputs), torch.stack(means)


@program("f[T,2] cu", tail=False)
def rows_with_a_length(x: Tensor, cu: Tensor) -> Tensor:
    """A number and a tensor."""
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows.append((x[s:e].flip(0), e - s))
    return torch.cat([part * n for part, n in rows])


@dataclasses.dataclass
class Document:
    row: Tensor
    length: int = 0
    weight: Tensor | None = None

    def scaled(self) -> Tensor:
        return self.row * self.length


class Pair(NamedTuple):
    row: Tensor
    total: Tensor


@program("f[T,2] cu", tail=False)
def list_of_dataclasses(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    documents = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        documents.append(Document(x[s:e].roll(1, 0), e - s))
    rows = [d.scaled() if d.weight is None else d.row * d.weight for d in documents]
    return torch.cat(rows), torch.tensor([d.length for d in documents])


@program("f[T,2] cu", tail=False)
def a_dataclass_that_changes_before_the_next(x: Tensor, cu: Tensor) -> Tensor:
    documents = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = Document(x[s:e].flip(0))
        documents.append(document)
        document.row = document.row + 1
    return torch.cat([d.row for d in documents])


@program("f[T,2] cu", tail=False)
def list_of_named_tuples(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    documents = [Pair(x[s:e].flip(0), x[s:e].sum(0)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([d.row - d.total for d in documents]), torch.stack([d.total for d in documents])


@program("f[T,2] cu", tail=False)
def named_tuples_by_columns(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows, totals = zip(*[Pair(x[s:e].flip(0), x[s:e].sum(0)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])
    return torch.cat(rows), torch.stack(totals)


@program("f[T,2] cu", tail=False)
def values_gone_through_again(x: Tensor, cu: Tensor) -> Tensor:
    spans = list(zip(cu[:-1].tolist(), cu[1:].tolist()))
    totals = [x[s:e].sum(0) for s, e in spans]
    return torch.cat([x[s:e] - total for (s, e), total in zip(spans, totals)])


# ---------------------------------------------------------------- parts along several dimensions


@program("f[T] cu", tail=False, graphs=3, reads=1)
def squares_of_a_padded_batch(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    width = max(lengths)
    mask = torch.full((len(lengths), 1, width, width), float("-inf"))
    for i, n in enumerate(lengths):
        mask[i, 0, :n, :n] = 0
    return mask


@program("f[T,3] cu64", tail=False)
def squares_beside_documents(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    mask, sums = torch.ones(len(cu) - 1, 9, 9, dtype=torch.bool), []
    for i in range(len(cu) - 1):
        n = cu[i + 1] - cu[i]
        mask[i, :n, :n] = False
        sums.append(x[cu[i] : cu[i + 1]].sum())
    return mask, torch.stack(sums)


@program("f[T] cu", tail=False)
def corners_from_the_end(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(len(cu) - 1, 2, 9, 7, dtype=torch.int32)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        n = e - s
        mask[i, 1, -2:, n:] = 3
        mask[i, :, 2 : n + 1, : n // 2] = 5
        mask[i, -1, n:, 1:-1] = -1
    return mask
