"""Look-alikes of documents that lie elsewhere: documents that overlap, rows that are too short, other rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import Args, leave


@leave("f[T] cu")
def later_documents_win(x: Tensor, cu: Tensor) -> Tensor:
    """All documents are written over each other."""
    out = x.new_zeros(400)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i : i + e - s] = x[s:e]
    return out


@leave("f[T] cu", must_refuse=True, why="documents that overlap are added up")
def overlap_and_add(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(400)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i : i + e - s] += x[s:e]
    return out


@leave("f[T] cu", must_refuse=True, why="each document reads what the one before has written")
def reads_what_was_written(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.cat((x, x))
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i + 1 : i + 1 + e - s] = out[i : i + e - s] * 0.5
    return out


@leave("f[T] cu")
def added_to_padded_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, : e - s] += x[s:e]
    return out


@leave("f[T] cu")
def the_row_after(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0], 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i + 1, : e - s] = x[s:e]
    return out


@leave("f[T] cu")
def all_in_one_row(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(2, 200)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[1, : e - s] = x[s:e]
    return out


@leave("f[T] cu", min_len=1)
def all_but_the_last_token(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i, : e - s - 1] = x[s : e - 1]
    return out


@leave("f[T] cu")
def zeroed_and_filled(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones(cu.shape[0] - 1, 200)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[i] = 0
        out[i, : e - s] = x[s:e]
    return out


@leave("f[T] cu")
def columns_instead_of_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = x.new_zeros(200, cu.shape[0] - 1)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[: e - s, i] = x[s:e]
    return out


@leave("f[T] cu", min_len=1, tail=False)
def rows_of_a_view(x: Tensor, cu: Tensor) -> Tensor:
    """Rows of another tensor's, some of which are of no document."""
    rows = x.sum() * torch.arange(400.0).reshape(-1, 200)[:, 10:190].repeat(30, 1)
    return torch.cat([rows[i, : e - s] for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist()))])


@leave("f[T] cu", tail=False)
def padded_on_both_sides(x: Tensor, cu: Tensor) -> Tensor:
    rows = [F.pad(x[s:e], (1, 199 - (e - s))) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.stack(rows)


@leave("f[T] cu", tail=False)
def padded_by_reflection(x: Tensor, cu: Tensor) -> Tensor:
    rows = [
        F.pad(x[None, s:e], (0, e - s - 1), mode="reflect")[0] if e - s > 1 else x[s:e]
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())
    ]
    return torch.cat(rows)


@leave("f[T] f[N,1] cu", must_refuse=True, why="a slice of one slot is one slot, which broadcasts")
def rows_of_one_slot(x: Tensor, rows: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e] = x[s:e] + rows[i, : e - s]
    return out


@leave("f[T] cu", tail=False)
def slots_one_further(x: Tensor, cu: Tensor) -> Tensor:
    """Those of the last document reach beyond the row, where Python cuts them off."""
    return torch.cat([x[s + 1 : e + 1] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", tail=False)
def slots_one_before(x: Tensor, cu: Tensor) -> Tensor:
    """Those of the first document begin with -1, which Python counts from the row's end."""
    return torch.cat([x[s - 1 : e - 1] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[2*T] f[T] cu", must_refuse=True, why="a document has two lengths")
def two_rates(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = y[s:e] * x[2 * s : 2 * e].view(-1, 2).mean(1)
    return out


@leave("f[2*T] cu", must_refuse=True, why="documents overlap")
def twice_two_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 2):
        out[2 * cu[i] : 2 * cu[i + 2]] = x[2 * cu[i] : 2 * cu[i + 2]] * 2
    return out


@leave("f[2*T] cu", lead_empty=False, unfit=True)
def more_than_the_row_has(x: Tensor, cu: Tensor) -> Tensor:
    """Slices are cut at the row's end."""
    y = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        y[3 * s : 3 * e] = x[3 * s : 3 * e] * 2
    return y


@leave("f[T] cu", tail=False)
def documents_turned_round(x: Tensor, cu: Tensor) -> Tensor:
    """Slices that end where they begin, or before."""
    return torch.cat([x[2 * e : 2 * s].cumsum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


def _some_below_zero(x: Tensor, cu: Tensor) -> Args:
    """A number for every row, of which some count from the row's end."""
    return x, cu.diff() % 8 - 3


@leave("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False, why="both ends may count from the row's end")
def between_two_that_may_be_below_zero(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([x[i, n // 2 : min(n, 3)] for i, n in enumerate(numbers.tolist())])


@leave("f[N,9,3] cu", wrap=_some_below_zero, depends=False, tail=False, why="the rest of what may count from the end")
def behind_the_smaller_of_two(x: Tensor, numbers: Tensor) -> Tensor:
    return torch.cat([x[i, min(n, 4) :].flip(0) for i, n in enumerate(numbers.tolist())])


@leave("f[T,3] cu", depends=False, tail=False, why="what is written for a document is read for the next")
def parts_that_overlap_are_added_to(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(cu.diff().tolist()):
        out[i : i + n] += 1
    return out


@leave("f[T,3] cu", depends=False, tail=False, why="what a document writes is written again for the next", unfit=True)
def parts_that_overlap_are_set(x: Tensor, cu: Tensor) -> Tensor:
    out = x * 2
    for i, n in enumerate(cu.diff().tolist()):
        out[i : i + n] = x[i : i + n] * 3
    return out
