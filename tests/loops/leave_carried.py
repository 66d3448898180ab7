"""Look-alikes of totals, counters and lists behind a branch: each needs what another document left, or its data."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import leave


@leave("f[T] cu", must_refuse=True, why="every document reads the total of those before")
def total_read_behind_a_skip(x: Tensor, cu: Tensor) -> Tensor:
    total, out = x.new_zeros(()), x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        out[s:e] = x[s:e] + total
        total = total + x[s:e].sum()
    return out


@leave("f[T] cu", must_refuse=True, why="the counter is where the next value is written")
def rows_packed_by_a_counter(x: Tensor, cu: Tensor) -> Tensor:
    out, row = x.new_zeros(cu.shape[0]), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        out[row] = x[s:e].sum()
        row += 1
    return out


@leave("f[T] cu", must_refuse=True, why="the value of the document with tokens before it")
def value_of_the_last_document_with_tokens(x: Tensor, cu: Tensor) -> Tensor:
    before, total = x.new_ones(()), x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        total = total + before * x[s:e].sum()
        before = x[s:e].sum()
    return total


@leave("f[T] cu", must_refuse=True, why="the function ends at the first document without tokens")
def returns_at_the_first_empty(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e == s:
            return total
        total = total + x[s:e].sum()
    return total * 2


@leave("f[T] m[T] cu", exact=False)
def skipped_by_a_mask(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if mask[s:e].sum() == 0:
            continue
        total = total + (x[s:e] * mask[s:e]).sum()
        count += 1
    return total / max(count, 1)


@leave("f[T] m[T] cu", exact=False)
def skipped_by_a_number_of_a_mask(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if not mask[s:e].any().item():
            continue
        total = total + (x[s:e] * mask[s:e]).sum()
        count += 1
    return total / max(count, 1)


@leave("f[T] cu", exact=False)
def skipped_by_another_vector(x: Tensor, cu: Tensor) -> Tensor:
    flags, total = cu % 2, x.new_zeros(())
    for i in range(len(cu) - 1):
        if flags[i] == 0:
            continue
        total = total + x[cu[i] : cu[i + 1]].sum()
    return total


@leave("f[T] cu", must_refuse=True, why="the length of the next document decides")
def skipped_by_the_end_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        if cu[-1] - cu[i] == 0:
            continue
        total = total + x[cu[i] : cu[i + 1]].sum() + 1
    return total


@leave("f[T] cu", must_refuse=True, why="two limits: documents of one token are a third kind")
def total_of_documents_between_two_limits(x: Tensor, cu: Tensor) -> Tensor:
    total, count = x.new_zeros(()), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        if e - s > 1:
            total = total + x[s:e].sum()
        count += 1
    return total / max(count, 1)


@leave("f[T] cu", must_refuse=True, exact=False, why="a short document's own slots have a logarithm that is no number")
def logarithms_of_documents_of_two(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        total = total + (x[s:e] - x[s:e].min() + 1).log().sum()
    return total


@leave("f[T] cu", tail=False, must_refuse=True, why="documents of one token are not in the row")
def row_without_short_documents(x: Tensor, cu: Tensor) -> Tensor:
    parts, count = [x[:0]], 0
    kept = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s < 2:
            continue
        kept.append(x[s:e])
        count += 1
    return torch.cat(kept) * count if count else torch.cat(parts)


@leave("f[T] cu", tail=False, must_refuse=True, why="the entries are views of what is written through them")
def entries_that_are_views(x: Tensor, cu: Tensor) -> Tensor:
    row, firsts = x * 1, []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        firsts.append(row[s])
    if firsts:
        firsts[0].mul_(2)
    return row


@leave("f[T] cu", must_refuse=True, why="the number is 1 or 0, not how many documents there are")
def flag_of_a_document_with_tokens(x: Tensor, cu: Tensor) -> Tensor:
    some, total = 0, x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        some = 1
        total = total + x[s:e].sum()
    return total * some


@leave("f[T] cu", must_refuse=True, why="an error of one document is caught")
def caught_behind_a_skip(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s == 0:
            continue
        try:
            total = total + x[s:e].sum()
        except ValueError:
            pass
    return total
