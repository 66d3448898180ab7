"""Loops that must be rewritten: sums over documents, counters, several entries per document, generators, and lists of
numbers (`packpass.capture.totals`, `lists`, `entries`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T] cu", lead_empty=False, depends=False)
def sum_of_sums(x: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + x[s:e].sum()
    return total


@program("f[T,3] cu", depends=False)
def sum_in_place_from_a_number(x: Tensor, cu: Tensor) -> Any:
    total = 0.0
    for i in range(len(cu) - 1):
        total += x[cu[i] : cu[i + 1]].sum(0)
    return total


@program("f[T] f[T] cu", min_len=1, exact=False, depends=False)
def loss_and_tokens(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    loss, count = torch.zeros(()), torch.zeros((), dtype=torch.int64)
    for s, e in zip(cu[:-1], cu[1:]):
        loss = loss + (x[s:e] - y[s:e]).pow(2).sum()
        count = count + (y[s:e] > 0).sum()
    return loss / (count + 1)


@program("f[T] cu", min_len=1, exact=False, tail=False)
def mean_of_means(x: Tensor, cu: Tensor) -> Tensor:
    total: Any = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + x[s:e].pow(2).mean()
    return total / (cu.numel() - 1)


@program("f[T] cu", depends=False)
def difference(x: Tensor, cu: Tensor) -> Tensor:
    left = torch.ones(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        left -= x[s:e].sum()
    return left


@program("f[T] cu", depends=False)
def into_a_tensor_of_the_caller(x: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros(3)
    seen = total
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += x[s:e].sum()
    return seen * 2


@program("f[T] cu")
def sum_beside_a_write(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, total = torch.zeros_like(x), torch.zeros((), dtype=torch.float64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].flip(0)
        total = total + x[s:e].sum()
    return out, total


@program("f[T] cu", min_len=1, exact=False, tail=False)
def sum_of_a_list(x: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        losses.append(x[s:e].pow(2).mean())
    return sum(losses) / len(losses)


@program("f[T] cu", tail=False, depends=False)
def sum_of_a_comprehension(x: Tensor, cu: Tensor) -> Any:
    return sum([part.sum() * 2 for part in x.split(cu.diff().tolist())])


@program("f[T] cu", tail=False, depends=False)
def sum_of_a_generator(x: Tensor, cu: Tensor) -> Any:
    return sum(part.sum() * 2 for part in torch.split(x, (cu[1:] - cu[:-1]).tolist()))


@program("f[T,2] cu")
def counter_for_rows(x: Tensor, cu: Tensor) -> Tensor:
    out, row = torch.zeros(cu.shape[0] - 1, 2), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[row] = x[s:e].sum(0)
        row += 1
    return out


@program("f[2,T] cu")
def counter_after_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out, count = x.clone(), 3
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
        count += 2
    return out * count


@program("f[T] cu", tail=False, reads=1)
def offset_that_cuts_the_row(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, start = [], 0
    for n in cu.diff().tolist():
        parts.append(x[start : start + n].flip(0))
        start += n
    return torch.cat(parts), x[:start].sum()


def segments(x: Tensor, cu: Tensor) -> Iterator[Tensor]:
    for i in range(len(cu) - 1):
        yield x[cu[i] : cu[i + 1]]


@program("f[T,2] cu", tail=False, where=(segments,))
def generator_in_a_comprehension(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part.flip(0) for part in segments(x, cu)])


@program("f[T] cu", tail=False, where=(segments,))
def generator_in_a_loop(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for part in segments(x, cu):
        parts.append(part - part.sum())
    return torch.cat(parts)


@program("f[T] cu", tail=False, where=(segments,), depends=False)
def generator_in_list(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat(list(segments(x * 2, cu)))


@program("f[T] cu", tail=False)
def two_entries_per_document(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e].sum())
        parts.append(x[s:e].sum() * 2)
    return torch.stack(parts)


@program("f[T,2] cu", tail=False)
def extended_by_statistics(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.extend([x[s:e].sum(0, keepdim=True), -x[s:e].sum(0, keepdim=True)])
    return torch.cat(parts)


@program("f[T] cu", tail=False)
def boundaries_as_ints(x: Tensor, cu: Tensor) -> Tensor:
    bounds = [int(b) for b in cu]
    return torch.cat([x[s:e].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("f[T] cu", tail=False)
def lengths_by_subtraction(x: Tensor, cu: Tensor) -> Tensor:
    lengths = [e - s for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([part.flip(0) for part in x.split(lengths)])


@program("f[T] cu", tail=False, min_len=1, reads=1)
def padded_to_the_longest(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    longest = max(lengths)
    padded = x.new_zeros(len(lengths), longest)
    for i, part in enumerate(x.split(lengths)):
        padded[i, : part.shape[0]] = part
    return padded


@program("f[T] cu", exact=False, depends=False)
def sum_of_losses_with_targets(x: Tensor, cu: Tensor) -> Any:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + (F.gelu(x[s:e]) - x[s:e].detach() * 2).abs().sum()
    return total


def restoring(x: Tensor, cu: Tensor) -> Tensor:
    """As libraries wrap a model's forward to collect outputs on the way."""
    collected: list[Tensor] = []
    try:
        out = x.clone()
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0)
        return out
    finally:
        collected.clear()


@program("f[T] cu", where=(restoring,))
def inside_try_finally(x: Tensor, cu: Tensor) -> Tensor:
    return restoring(x * 2, cu)


@program("f[T] cu")
def handler_that_raises_again(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    try:
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out[s:e] = x[s:e].flip(0)
    except RuntimeError as error:
        raise ValueError("documents do not fit") from error
    return out


@program("f[T] cu", where=(segments,), exact=False, depends=False)
def total_over_a_generator(x: Tensor, cu: Tensor) -> tuple[Tensor, int]:
    total, count = x.new_zeros(()), 0
    for part in segments(x, cu):
        total = total + part.pow(2).sum()
        count += 1
    return total, count


@program("f[T] cu")
def counted_rows_beside_a_list(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, parts, row = torch.zeros(cu.shape[0]), [x.new_zeros(())], 1
    total = x.new_zeros(())
    for s, e in zip(cu[:-1], cu[1:]):
        sums[row] = x[s:e].sum()
        row += 1
        total += x[s:e].sum()
    return sums, total + parts[0]


@program("f[T,2] cu", tail=False, reads=1)
def squares_of_lengths(x: Tensor, cu: Tensor) -> Any:
    """What a document adds is not linear in its length: a value of its own, not a difference of boundaries."""
    out, pairs = torch.empty_like(x), 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].cumsum(0)
        pairs += (e - s) ** 2
    return out / max(pairs, 1)


@program("f[T,2] cu", tail=False, reads=1)
def largest_of_squares(x: Tensor, cu: Tensor) -> Tensor:
    squares, parts = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e].flip(0))
        squares.append((e - s) ** 2)
    return torch.cat(parts) / (1 + max(squares))


# ---------------------------------------------------------------- rows that are inputs of their own, all of one length


@program("d[T,2] d[T,2] cu", tail=False, min_len=1, exact=False, demand=False)
def mean_of_losses_of_two_rows(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    total: Any = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total + F.mse_loss(x[s:e], y[s:e])
    return total / (len(cu) - 1)


@program("f[T,2] f[T,2] cu", tail=False)
def lists_of_two_rows_side_by_side(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    first = [x[s:e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    second = [y[s:e] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    return torch.cat([a.cumsum(0) - b.type_as(a) for a, b in zip(first, second)])


@program("f[T,3] f[T,3] cu", exact=False, tail=False, min_len=1, rule="ragged_grids")
def two_shares_of_a_document(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    total = 0
    for i in range(len(cu) - 1):
        distances = torch.cdist(p[cu[i] : cu[i + 1]], q[cu[i] : cu[i + 1]])
        total = total + distances.min(1).values.mean() + distances.min(0).values.mean()
    return total / (len(cu) - 1)


@program("f[T,3] f[T,3] cu", exact=False, tail=False, min_len=1)
def two_shares_one_after_the_other(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    total = 0.0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total += p[s:e].mean()
        total += 0.5 * q[s:e].mean()
    return total


@program("f[T,3] f[T,3] cu", exact=False, depends=False)
def shares_added_and_subtracted(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    total = torch.ones(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = total - p[s:e].sum(0) + q[s:e].sum(0) - 1
    return total


@program("f[T,3] f[T,3] cu", exact=False, depends=False)
def shares_in_place(p: Tensor, q: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total -= p[s:e].sum(0)
        total += q[s:e].sum(0)
    return total, total


@program("i[T,3] i[T,3] cu", min_len=1, depends=False)
def larger_of_three(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    total = torch.zeros(3, dtype=torch.long)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = torch.maximum(torch.maximum(total, p[s:e].amax(0)), q[s:e].amax(0))
    return total


@program("f[T,3] f[T,3] cu", exact=False, tail=False, min_len=1)
def total_at_the_end_of_the_sum(p: Tensor, q: Tensor, cu: Tensor) -> Tensor:
    loss = 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        loss = (p[s:e] - q[s:e]).square().mean() + 0.25 * p[s:e].abs().mean() + loss
    return loss / (len(cu) - 1)


@program("f[T,3] f[T,3] cu", exact=False, depends=False)
def added_where_nothing_is_recorded(p: Tensor, q: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    total = torch.zeros(3)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        share = p[s:e].sum(0)
        with torch.no_grad():
            total = total + share + q[s:e].sum(0)
    return total, (p * q).sum()


@program("f[T,3] cu", exact=False, depends=False)
def metric_under_no_grad(p: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    metrics, loss = {"norm": torch.zeros(())}, torch.zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = p[s:e].square().sum()
        loss = loss + own
        with torch.no_grad():
            metrics["norm"] += own
    return metrics["norm"], loss
