"""Loops that must be rewritten: branches on what documents hold, which add to totals, or leave one thing or another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .harness import program


def with_mask(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, x > 1, cu


def weighed(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, x * 2, x > 1, cu


# === Totals of documents that hold something =================================================================


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, reads=1)
def total_of_those_with_a_token(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].any():
            total = total + (x[s:e] * mask[s:e]).sum() / mask[s:e].sum()
    return total


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, reads=1)
def total_in_place_of_those_with_a_token(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if not mask[s:e].any():
            continue
        total += (x[s:e] * mask[s:e]).sum() / mask[s:e].sum()
    return total


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, reads=2)
def total_and_count_of_masks(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Any, int]:
    losses, count = 0.0, 0
    for i in range(len(cu) - 1):
        own = mask[cu[i] : cu[i + 1]]
        if own.sum() == 0:
            continue
        losses = losses + (x[cu[i] : cu[i + 1]] * own).sum() / own.sum()
        count += 1
    return losses, count


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, reads=1)
def total_of_a_number_of_masked(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    """Where no document has such a slot, the total has no gradient in eager."""
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        own = mask[cu[i] : cu[i + 1]]
        n = own.sum().item()
        if n > 0:
            total += (x[cu[i] : cu[i + 1]] * own).sum() / n
    return total


@program("d[T] cu", tail=False, exact=False, reads=1)
def logarithms_of_positive_sums(x: Tensor, cu: Tensor) -> Any:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = x[s:e]
        if document.sum() > 0:
            total += document.sum().log()
    return total


@program("d[T] cu", tail=False, exact=False, wrap=weighed, depends=False)
def total_of_a_row_that_is_used_anyway(x: Tensor, y: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total = y.sum()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].any():
            total = total + (y[s:e] * mask[s:e]).sum()
    return total


# === Lists ===================================================================================================


@program("d[T] cu", tail=False, exact=False, wrap=with_mask)
def mean_or_nothing(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    x, out = x.detach(), []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].any():
            out.append((x[s:e] * mask[s:e]).sum() / mask[s:e].sum())
        else:
            out.append(x.new_zeros(()))
    return torch.stack(out)


@program("f[T] cu", tail=False, wrap=with_mask)
def one_thing_or_the_other(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].all():
            out.append(x[s:e] * 2)
        else:
            out.append(x[s:e] - 1)
    return torch.cat(out)


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, reads=1)
def sum_of_a_list_of_some(x: Tensor, mask: Tensor, cu: Tensor) -> Any:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].any():
            losses.append((x[s:e] * mask[s:e]).sum() / mask[s:e].sum())
    return sum(losses)


# === Checks of what documents hold ===========================================================================


@program("f[T,3] cu", tail=False)
def no_document_has_a_nan(x: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        document = x[s:e]
        if torch.isnan(document).any():
            raise ValueError("a document has NaN")
        out.append(document.sum(0))
    return torch.stack(out)


@program("f[T,3] cu", tail=False, depends=False)
def all_documents_are_small(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        assert (x[s:e].abs() < 100).all()
        assert not (x[s:e] > 90).any(), "too large"
        out[s:e] = x[s:e] * 2
    return out


# === Numbers of documents in a column ========================================================================


def in_a_column(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    number = torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff().long(), output_size=x.shape[0])
    return x, torch.stack((number, torch.arange(x.shape[0])), 1)


@program("f[T,3] cu", tail=False, min_len=1, wrap=in_a_column, reads=1, depends=False)
def batch_of_coordinates(x: Tensor, coordinates: Tensor) -> Tensor:
    """As OpenPCDet's modules go over the samples of a batch of voxels."""
    out = torch.zeros_like(x)
    for i in range(coordinates[:, 0].max().int().item() + 1):
        own = coordinates[:, 0] == i
        here = coordinates[own, :]
        out[own] = x[own, :] * here[:, 1:2]
    return out


@program("d[T,3] cu", tail=False, exact=False, min_len=1, wrap=in_a_column, reads=1)
def sums_by_a_column(x: Tensor, coordinates: Tensor) -> Tensor:
    column = coordinates[:, 0]
    return torch.stack([x[column == i].sum(0) for i in range(int(column.max()) + 1)])


# === Rows that both ways write ===============================================================================


@program("d[T] d[T] cu", tail=False, exact=False)
def rows_of_both_ways(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(y)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if (x[s:e] > 3).any():
            made = torch.zeros_like(x[s:e])
            made += x[s:e]
            out[s:e] = made
        else:
            out[s:e] = x[s:e] - 1
    return out * y
