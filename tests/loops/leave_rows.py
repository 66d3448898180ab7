"""Look-alikes of lists with a tuple, a list or a dict for each document: right, whatever becomes of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .harness import leave
from .rewrite_rows import Document, Pair


@leave("f[T,2] cu", tail=False, why="rows of two and of three")
def rows_of_two_widths(x: Tensor, cu: Tensor) -> list[Tensor]:
    rows: list[Any] = []
    for i in range(len(cu) - 1):
        document = x[cu[i] : cu[i + 1]]
        rows.append((document.flip(0), document) if i % 2 else (document, document, document))
    return [torch.cat(column) for column in zip(*rows)]


@leave("f[T,2] cu", tail=False, why="a row changes when it is in the list")
def row_changed_afterwards(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i in range(len(cu) - 1):
        row = [x[cu[i] : cu[i + 1]].flip(0), x[cu[i] : cu[i + 1]]]
        rows.append(row)
        row[0] = row[0] * 3
    return torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows])


@leave("f[T,2] cu", tail=False, why="a row gets another entry when it is in the list")
def entry_added_afterwards(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i in range(len(cu) - 1):
        row = {"a": x[cu[i] : cu[i + 1]].flip(0)}
        rows.append(row)
        row["b"] = row["a"] * 3
    return torch.cat([row["a"] for row in rows]), torch.cat([row["b"] for row in rows])


@leave("f[T,2] cu", tail=False, why="a tensor of a row is written when it is in the list")
def tensor_written_afterwards(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i in range(len(cu) - 1):
        part = x[cu[i] : cu[i + 1]].flip(0)
        rows.append((part, part + 1))
        part.mul_(3)
    first, second = zip(*rows)
    return torch.cat(first), torch.cat(second)


@leave("f[T,2] cu", tail=False, min_len=1, lead_empty=False, why="one row alone")
def last_row(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = [(x[s:e].flip(0), x[s:e]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([row[0] for row in rows]), rows[-1][1] * 2


@leave("f[T,2] cu", tail=False, why="short documents have no row")
def rows_of_some(x: Tensor, cu: Tensor) -> Tensor:
    rows = [(x[:1], x[:1])]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s > 1:
            rows.append((x[s:e].flip(0), x[s:e]))
    return torch.cat([a - b for a, b in rows])


@leave("f[T,2] cu", tail=False, why="rows are returned")
def rows_returned(x: Tensor, cu: Tensor) -> Any:
    rows = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows.append((x[s:e].flip(0), x[s:e] * 2))
    return rows


@leave("f[T,2] cu", tail=False, why="another row follows")
def one_more_row(x: Tensor, cu: Tensor) -> list[Tensor]:
    rows = [(x[s:e].flip(0), x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    rows.append((x[:2], x[1:3]))
    return [torch.cat(column) for column in zip(*rows)]


@leave("f[T,2] cu", tail=False, why="the rows are joined as they are")
def all_entries(x: Tensor, cu: Tensor) -> Tensor:
    rows = [(x[s:e].flip(0), x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([part for row in rows for part in row])


@leave("f[T,2] cu", tail=False, why="rows in another order")
def rows_backwards(x: Tensor, cu: Tensor) -> list[Tensor]:
    rows = [(x[s:e].flip(0), x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return [torch.cat(column) for column in zip(*rows[::-1])]


@leave("f[T,2] cu", tail=False, why="rows within rows")
def nested_rows(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    rows = [((x[s:e].flip(0), x[s:e]), x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([inner[0] for inner, _ in rows]), torch.cat([outer for _, outer in rows])


@leave("f[T,2] cu", tail=False, why="lists are made of the columns by a function that is handed on")
def columns_listed_by_map(x: Tensor, cu: Tensor) -> list[Tensor]:
    rows = [(x[s:e].flip(0), x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return [torch.cat(column) for column in map(list, zip(*rows))]


@leave("f[T,2] cu", tail=False, why="counted and indexed")
def counted_rows(x: Tensor, cu: Tensor) -> Tensor:
    rows = [(x[s:e].flip(0), x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([rows[i][0] for i in range(len(rows))])


@leave("f[T,2] cu", tail=False, why="map() calls torch.cat where nobody sees it")
def columns_mapped(x: Tensor, cu: Tensor) -> tuple[Tensor, ...]:
    rows = []
    for i in range(len(cu) - 1):
        document = x[cu[i] : cu[i + 1]]
        rows.append((document.flip(0), document + 1))
    return tuple(map(torch.cat, zip(*rows)))


@leave("f[T,2] cu", tail=False, why="an entry of a dict changes in a later loop")
def dicts_that_change_later(x: Tensor, cu: Tensor) -> Tensor:
    documents = [{"row": x[s:e] * 2} for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    for document in documents:
        document["row"] = document["row"] + 1
    return torch.cat([d["row"] for d in documents])


@leave("f[T,2] cu", tail=False, why="an entry of a dict changes in a later loop")
def dicts_that_are_updated_later(x: Tensor, cu: Tensor) -> Tensor:
    documents = [{"row": x[s:e] * 2} for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    for document in documents:
        document.update(row=document["row"] + 1)
    return torch.cat([d["row"] for d in documents])


@leave("f[T,2] cu", tail=False, why="an attribute changes in a later loop")
def dataclasses_that_change_later(x: Tensor, cu: Tensor) -> Tensor:
    documents = [Document(x[s:e] * 2) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    for document in documents:
        document.row = document.row + 1
    return torch.cat([d.row for d in documents])


@leave("f[T,2] cu", tail=False, why="a value is written in a later loop")
def values_that_are_written_later(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    documents = [Pair(x[s:e] * 2, x[s:e].sum(0)) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    for document in documents:
        document.total.add_(1)
    return torch.cat([d.row for d in documents]), torch.stack([d.total for d in documents])


@dataclasses.dataclass
class Doubled:
    row: Tensor

    def __post_init__(self) -> None:
        self.row = self.row * 2


@leave("f[T,2] cu", tail=False, why="making one once more would double the row once more")
def dataclasses_that_compute(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([d.row for d in [Doubled(x[s:e]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]])


@leave("f[T,2] cu", tail=False, why="what is zipped are the names of entries")
def dicts_by_columns(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    rows = [{"row": x[s:e] * 2, "total": x[s:e].sum(0)} for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([row["row"] for row in rows]), len(list(zip(*rows)))


class Halved(NamedTuple("Base", [("row", Tensor)])):
    def __new__(cls, row: Tensor) -> Halved:
        return super().__new__(cls, row / 2)


@leave("f[T,2] cu", tail=False, why="making one once more would halve the row once more")
def named_tuples_that_compute(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([d.row for d in [Halved(x[s:e]) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]])


@leave("f[T] i[N] cu", tail=False, why="what is written is a value of the document")
def squares_of_values(x: Tensor, values: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(len(cu) - 1, 9, 9)
    for i in range(len(cu) - 1):
        n = cu[i + 1] - cu[i]
        mask[i, :n, :n] = values[i].float()
    return mask


@leave("f[T] cu", tail=False, why="integers cut a number off")
def halves_in_integers(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(len(cu) - 1, 9, 9, dtype=torch.int64)
    for i, n in enumerate((cu[1:] - cu[:-1]).tolist()):
        mask[i, :n, :n] = 2.5
    return mask


@leave("f[T] cu", tail=False, why="all rows that follow are written")
def squares_of_all_that_follow(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(len(cu) - 1, 9, 9)
    for i, n in enumerate((cu[1:] - cu[:-1]).tolist()):
        mask[i:, :n, :n] = i
    return mask


@leave("f[T] cu", tail=False, why="a view of another row is written, too")
def squares_through_views(x: Tensor, cu: Tensor) -> Tensor:
    mask = torch.zeros(len(cu) - 1, 9, 9)
    for i, n in enumerate((cu[1:] - cu[:-1]).tolist()):
        row = mask[i].t()
        row[:n, 2 : n + 3] = 1
        mask[0, :n, 0] += 1
    return mask
