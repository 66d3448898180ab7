"""Loops whose numbers do not fit what they cut: beyond the row, from its end, falling, 0 where ``[-0:]`` is all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

Program = Callable[..., Any]
REWRITTEN: dict[Program, str] = {}
"""Programs whose numbers are what Python takes them for, in the whole-row form, and the inputs of each (`INPUTS`)."""
LEFT: dict[Program, str] = {}
"""Programs that are checked, refused or raise in eager for such numbers."""


def _lengths(*values: int) -> Tensor:
    return torch.tensor(values)


def _rows(*lengths: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(len(lengths))
    return [(torch.randn(len(n), 6, 3, generator=generator), _lengths(*n)) for n in lengths]


def _packed(*boundaries: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(len(boundaries))
    return [(torch.randn(12, 3, generator=generator), torch.tensor(cu, dtype=torch.int32)) for cu in boundaries]


INPUTS: dict[str, list[tuple[Tensor, Tensor]]] = {
    "rows": _rows(
        (2, 6, 1, 3), (3, 9, 0, 5), (0, 0, 0, 0), (7, 8, 13, 10), (1, 1, 1), (-2, 3, -9, 6, 2), (0, 7), (6,), (9,)
    ),
    "packed": _packed((0, 5, 7, 12), (0, 5, 7, 14), (0, 13, 15, 18), (3, 3, 3, 3), (0, 12, 12, 13), (0, 20), (0, 3)),
    "falling": _packed((0, 5, 7, 12), (0, 7, 3, 12), (0, 5, 14, 9), (-3, 5, 7, 12), (0, 5, 7, 14), (5, 0)),
    "points": _packed((3, 6, 9), (0, 1, 12), (1, 11, 12), (-1, 15, 30), (2, 2, 2), (5,), (-20, 4)),
}


def rewritten(inputs: str) -> Callable[[Program], Program]:
    return lambda fn: REWRITTEN.setdefault(fn, inputs) and fn


def left(inputs: str) -> Callable[[Program], Program]:
    return lambda fn: LEFT.setdefault(fn, inputs) and fn


# ---------------------------------------------------------------- parts of rows


@rewritten("rows")
def first_of_each(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, :n] * 2 for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def first_by_tensors(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, : lengths[i]].sum(0) for i in range(lengths.shape[0])])


@rewritten("rows")
def last_of_each(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, -n:].cumsum(0) for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def last_by_the_width(rows: Tensor, lengths: Tensor) -> Tensor:
    width = rows.shape[1]
    return torch.cat([rows[i, width - n :] for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def from_the_second_on(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, 1 : 1 + n] for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def sizes_of_parts(rows: Tensor, lengths: Tensor) -> Tensor:
    means = []
    for i, n in enumerate(lengths.tolist()):
        part = rows[i, :n]
        means.append((part * torch.arange(part.shape[0]).unsqueeze(1)).sum(0) / max(part.shape[0], 1))
    return torch.stack(means)


@rewritten("rows")
def masked_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.zeros_like(rows)
    for i, n in enumerate(lengths.tolist()):
        mask[i, :n] = 1
    return rows * mask


@rewritten("rows")
def padded_again(rows: Tensor, lengths: Tensor) -> Tensor:
    return pad_sequence([rows[i, :n] for i, n in enumerate(lengths.tolist())], batch_first=True)


@rewritten("rows")
def the_rest(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, n:].sum(0) for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def all_but_the_last(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, :-n] for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def the_rest_filled(rows: Tensor, lengths: Tensor) -> Tensor:
    out = rows.clone()
    for i, n in enumerate(lengths.tolist()):
        out[i, n:] = 0
    return out


@rewritten("rows")
def at_most_four(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, : min(n, 4)] for i, n in enumerate(lengths.tolist())])


@rewritten("rows")
def within_each(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, n - 2 : n + 1].sum(0) for i, n in enumerate(lengths.tolist())])


# ---------------------------------------------------------------- documents of a row


@rewritten("packed")
def joined(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e].flip(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)])


@rewritten("packed")
def written(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(cu.shape[0] - 1):
        out[cu[i] : cu[i + 1]] = torch.roll(x[cu[i] : cu[i + 1]], -1, 0)
    return out


@rewritten("packed")
def counted(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        part = x[s:e]
        out.append(part.sum(0) / (part.shape[0] + 1))
    return torch.stack(out)


@rewritten("packed")
def into_rows_by_size(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 15, 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        part = x[s:e] * 2
        out[i, : part.shape[0]] = part
    return out


@rewritten("packed")
def looped_over_again(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = [x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)]
    return torch.stack([part.sum(0) for part in parts]), torch.cat([part.flip(0) for part in parts])


# ---------------------------------------------------------------- windows by data


@rewritten("points")
def windows(x: Tensor, points: Tensor) -> Tensor:
    return torch.cat([x[p - 2 : p + 3] for p in points.tolist()])


@rewritten("points")
def windows_within(x: Tensor, points: Tensor) -> Tensor:
    return torch.stack([x[max(p - 2, 0) : min(p + 3, x.shape[0])].sum(0) for p in points.tolist()])


@rewritten("points")
def windows_filled(x: Tensor, points: Tensor) -> Tensor:
    out = x.clone()
    for i, p in enumerate(points.tolist()):
        out[p - 2 : p + 3] = i
    return out


@rewritten("points")
def windows_of_two(x: Tensor, points: Tensor) -> Tensor:
    y = x * x
    return torch.cat([x[p - 2 : p + 3] + y[p - 2 : p + 3] for p in points.tolist()])


@rewritten("points")
def windows_without_their_first(x: Tensor, points: Tensor) -> Tensor:
    return torch.cat([x[p - 2 : p + 3][1:] for p in points.tolist()])


@rewritten("rows")
def the_rest_behind_a_slot(rows: Tensor, lengths: Tensor) -> Tensor:
    first = torch.zeros(1, 3)
    return torch.cat([torch.cat((first, rows[i, n:])) for i, n in enumerate(lengths.tolist())])


# ---------------------------------------------------------------- what numbers must fit, and what is left


@left("rows")
def numbers_beside_parts(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, :n].sum() / max(n, 1) for i, n in enumerate(lengths.tolist())])


@left("rows")
def positions_by_number(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, :n] * torch.arange(n).unsqueeze(1) for i, n in enumerate(lengths.tolist())])


@left("rows")
def an_entry(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, n] for i, n in enumerate(lengths.clamp(max=5).tolist())])


@left("rows")
def an_entry_beyond(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, 6] for i in range(lengths.shape[0])]) * lengths.sum()


@left("rows")
def narrowed(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i].narrow(0, 0, n) for i, n in enumerate(lengths.tolist())])


@left("rows")
def both_ends(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([rows[i, :n] + rows[i, -n:] for i, n in enumerate(lengths.tolist())])


@left("rows")
def both_ends_apart(rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    first, last = [], []
    for i, n in enumerate(lengths.tolist()):
        first.append(rows[i, :n])
        last.append(rows[i, -n:])
    return torch.cat(first), torch.cat(last)


@left("rows")
def to_the_other_end(rows: Tensor, lengths: Tensor) -> Tensor:
    out = torch.zeros_like(rows)
    for i, n in enumerate(lengths.tolist()):
        out[i, -n:] = rows[i, :n]
    return out


@left("rows")
def by_size_from_the_end(rows: Tensor, lengths: Tensor) -> Tensor:
    """A size of 0, counted from the end, is all there is."""
    out = torch.zeros_like(rows)
    for i, n in enumerate(lengths.tolist()):
        part = rows[i, -n:] * 2
        out[i, -part.shape[0] :] = part
    return out


@left("rows")
def to_wider_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    out = rows.new_zeros(rows.shape[0], 8, 3)
    for i, n in enumerate(lengths.tolist()):
        out[i, :n] = rows[i, :n]
    return out


@left("rows")
def padded_by_number(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([F.pad(rows[i, :n], (0, 0, 0, 6 - n)) for i, n in enumerate(lengths.tolist())])


@left("rows")
def asserted(rows: Tensor, lengths: Tensor) -> Tensor:
    out = []
    for i, n in enumerate(lengths.tolist()):
        assert n <= 6
        out.append(rows[i, :n] * 2)
    return torch.cat(out)


@left("rows")
def by_a_branch(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([rows[i, :n].sum() if n > 0 else rows.sum() for i, n in enumerate(lengths.tolist())])


@left("falling")
def falling_joined(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)])


@left("falling")
def falling_written(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        out[s:e] = x[s:e].flip(0)
    return out


@left("falling")
def lengths_beside_documents(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.stack([x[s:e].sum(0) / (abs(e - s) + 1) for s, e in zip(bounds[:-1], bounds[1:], strict=True)])


@left("falling")
def skipped(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        if e <= s:
            continue
        out[s:e] = x[s:e].flip(0)
    return out


@left("packed")
def last_slots(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].sum(0) + x[e - 1] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)])


@left("packed")
def positions_written(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], dtype=torch.int64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        out[s:e] = torch.arange(e - s)
    return out.unsqueeze(1) * x


@left("packed")
def split(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part.flip(0) for part in x.split(cu.diff().tolist())])


@left("packed")
def all_but_one(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.stack([(x[s : e - 1] * x[s + 1 : e]).sum() for s, e in zip(bounds[:-1], bounds[1:], strict=True)])


@left("packed")
def of_rows_that_differ(x: Tensor, cu: Tensor) -> Tensor:
    y = torch.ones(15, 3)
    return torch.stack(
        [x[s:e].sum(0) * y[s:e].shape[0] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)]
    )


@left("packed")
def rows_of_padding(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 20, 3)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)):
        out[i, : e - s] = x[s:e]
    return out


@left("points")
def windows_added(x: Tensor, points: Tensor) -> Tensor:
    out = x.clone()
    for p in points.tolist():
        out[p - 2 : p + 3] += 1
    return out


@left("points")
def windows_stacked(x: Tensor, points: Tensor) -> Tensor:
    return torch.stack([x[p - 2 : p + 3] for p in points.tolist()])


@left("points")
def windows_and_their_numbers(x: Tensor, points: Tensor) -> Tensor:
    return torch.stack([x[p - 2 : p + 3].sum(0) * p for p in points.tolist()])


@left("points")
def windows_and_constants(x: Tensor, points: Tensor) -> Tensor:
    return torch.cat([x[p - 2 : p + 3] * torch.ones(5, 1) for p in points.tolist()])
