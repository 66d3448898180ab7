"""Look-alikes of branches on what documents hold: what eager gives no gradient, and what the body reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import leave


def in_a_column(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    number = torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff().long(), output_size=x.shape[0])
    return x, torch.stack((number, torch.arange(x.shape[0])), 1)


def with_mask(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, x > 1, cu


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def no_document_adds(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    """No gradient, not one of zeros, and the number that the total began with."""
    total: Any = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 90).any():
            total = total + x[s:e].sum()
    return y * 2, total


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def no_document_adds_in_place(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Any, bool]:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 90).any():
            total += x[s:e].sum()
    return y * 2, total, total.requires_grad


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def no_number_of_a_document_adds(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Any]:
    total = torch.zeros((), dtype=x.dtype)
    for i in range(len(cu) - 1):
        n = (x[cu[i] : cu[i + 1]] > 90).sum().item()
        if n > 0:
            total += x[cu[i] : cu[i + 1]].sum() / n
    return y * 2, total


@leave("d[T] d[T] cu", tail=False, exact=False, must_refuse=True, why="rows without a gradient if all go one way")
def each_way_a_row_of_its_own(x: Tensor, y: Tensor, cu: Tensor) -> Any:
    total: Any = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 3).any():
            total = total + x[s:e].sum()
        else:
            total = total + y[s:e].sum()
    return total


@leave("d[T] cu", tail=False, exact=False, must_refuse=True, why="what has been added decides what is added next")
def a_total_that_decides(x: Tensor, cu: Tensor) -> Any:
    total: Any = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if total < 4:
            total = total + x[s:e].sum().abs()
    return total


@leave("d[T] cu", tail=False, exact=False, wrap=with_mask, must_refuse=True, why="the first document without ends it")
def until_one_has_none(x: Tensor, mask: Tensor, cu: Tensor) -> Any:
    total: Any = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if not mask[s:e].any():
            break
        total = total + x[s:e].sum()
    return total


@leave("i[T] cu", tail=False, depends=False)
def a_mask_that_is_written_in_the_branch(x: Tensor, cu: Tensor) -> Tensor:
    mask = x > 40
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].any():
            out[s:e] = x[s:e] * mask[s:e]
            mask[s:e] = False
        if not mask[s:e].any():
            out[s:e] += 1
    return out


@leave("d[T] cu", tail=False, exact=False, depends=False)
def nans_of_those_that_are_skipped(x: Tensor, cu: Tensor) -> Any:
    """What is skipped must not reach the total, nor its gradient."""
    total: Any = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if x[s:e].sum() > 0.5:
            total = total + x[s:e].sum().log() + (x[s:e].sum() - 0.5).sqrt()
    return total


# === Numbers of documents in a column ========================================================================


@leave("f[T,3] cu", depends=False, tail=False, wrap=in_a_column, lead_empty=False)
def a_column_that_the_loop_writes(x: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    out, own = torch.zeros_like(x), coordinates.clone()
    for i in range(int(own[:, 0].max()) + 1):
        mask = own[:, 0] == i
        out[mask] = x[mask] - x[mask].mean(0)
        own[:, 0] = own[:, 0] - 1
    return out, own


@leave("f[T,3] cu", depends=False, tail=False, wrap=in_a_column)
def a_column_of_the_document(x: Tensor, coordinates: Tensor) -> Tensor:
    """Another one for each."""
    out = torch.zeros_like(x)
    for i in range(2):
        mask = coordinates[:, i] == 1
        out[mask] = x[mask] * 2
    return out


# === Checks ==================================================================================================


@leave("f[T,3] cu", tail=False)
def raised_where_somebody_waits_for_it(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        try:
            if (x[s:e] > 2).any():
                raise ValueError
            out.append(x[s:e].sum(0))
        except ValueError:
            out.append(x[s:e].sum(0) * 2)
    return torch.stack(out)


# === Gradients of those that no document gives one ===========================================================


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def sums_or_numbers_of_slots(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """The other way makes something of the row, but gives it no gradient."""
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum() if (x[s:e] > 90).any() else (x[s:e] > 0).sum().to(x))
    return y * 2, torch.stack(out)


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def sums_or_new_zeros(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.append(x[s:e].sum() if (x[s:e] > 90).any() else x.new_zeros(()))
    return y * 2, torch.stack(out)


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def another_name_of_a_total(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total = other = torch.zeros((), dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 90).any():
            total += x[s:e].sum()
    return y * 2, other


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def a_view_of_a_total_in_a_list(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, list[Tensor]]:
    total = x.new_zeros(1)
    kept = [total.view(())]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 90).any():
            total += x[s:e].sum()
    return y * 2, kept


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def rows_written_where_one_is_high(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 90).any():
            out[s:e] = x[s:e] * 2
    return y * 2, out


@leave("d[T] d[T] cu", tail=False, exact=False, depends=False)
def rows_of_values_or_of_answers(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Both ways are made of the row, and one gives it no gradient."""
    out = torch.zeros_like(y)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 90).any():
            out[s:e] = x[s:e] * 2
        else:
            out[s:e] = (x[s:e] > 0).to(x)
    return y * 2, out
