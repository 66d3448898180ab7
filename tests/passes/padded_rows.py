"""Helpers of training frameworks between padded batches and packed rows, as programs; and look-alikes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Lengths = Sequence[int]
Make = Callable[[Lengths], tuple[Any, ...]]


def boundaries(lengths: Lengths) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def mask(lengths: Lengths, width: int | None = None, left: bool = False) -> Tensor:
    made = torch.arange(width or max(lengths))[None] < torch.tensor(lengths)[:, None]
    return made.flip(1) if left else made


def rows(lengths: Lengths, *rest: int, more: int = 0) -> Tensor:
    return torch.randn(len(lengths), max(lengths) + more, *rest, requires_grad=True)


# === Rows of a padded batch ==================================================================================


def zipped(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([row[:n] for row, n in zip(x, lengths)])


def numbered(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([row[: lengths[i]] * 2 for i, row in enumerate(x)])


def lengths_late(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.cat([x[i, : lengths[i].item()] for i in range(x.shape[0])])


def fields(attention_mask: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    lengths = attention_mask.sum(dim=1, dtype=torch.int32)
    cu = F.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    longest, total, out = lengths.max().item(), int(cu[-1].item()), []
    for value in (x, y):
        packed = value.new_empty(total, *value.shape[2:])
        for i in range(attention_mask.shape[0]):
            start, end = cu[i].item(), cu[i + 1].item()
            packed[start:end] = value[i][: end - start]
        out.append(packed * longest)
    return out


def joined(a: Tensor, b: Tensor, n: Tensor, m: Tensor) -> Tensor:
    out = a.new_zeros(a.shape[0], int((n + m).max()), a.shape[2])
    start = torch.zeros(a.shape[0], dtype=torch.int64)
    for x, length in zip([a, b], [n, m], strict=True):
        end = start + length
        for i in range(a.shape[0]):
            out[i, start[i] : end[i]] = x[i, : length[i]]
        start = end
    return out


def to_width(x: Tensor, lengths: Tensor) -> Tensor:
    parts = [row[:n] for row, n in zip(x, lengths)]
    return torch.stack([torch.cat([u, u.new_zeros(24 - u.size(0), u.size(1))]) for u in parts])


# === Masks ===================================================================================================


def picked(x: Tensor, attention_mask: Tensor) -> Tensor:
    return torch.cat([row[m.bool()] for row, m in zip(x, attention_mask)])


def packed_by_masks(ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    cu = torch.zeros(ids.shape[0] + 1, dtype=torch.int32)
    cu[1:] = torch.cumsum(lengths, 0)
    starts, counts = cu.tolist(), lengths.tolist()
    out = torch.zeros(sum(counts), dtype=ids.dtype)
    for i in range(ids.shape[0]):
        out[starts[i] : starts[i] + counts[i]] = ids[i, attention_mask[i]]
    return out, cu


def put_by_masks(attention_mask: Tensor, packed: Tensor, cu: Tensor) -> Tensor:
    new = torch.zeros(*attention_mask.shape, packed.shape[-1])
    lengths = attention_mask.sum(1).tolist()
    for i in range(attention_mask.shape[0]):
        new[i, attention_mask[i]] = packed[cu[i] : cu[i] + lengths[i]]
    return new


def from_mask_to_mask(x: Tensor, to: Tensor, of: Tensor) -> Tensor:
    new = torch.zeros_like(x)
    for i in range(x.shape[0]):
        new[i, to[i]] = x[i, of[i]]
    return new


def counted(x: Tensor, attention_mask: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        n = attention_mask[i].sum()
        out[i, :n] = x[i, -n:]
    return out


def listed(x: Tensor, attention_mask: Tensor) -> Tensor:
    lengths = [int(m.sum()) for m in attention_mask]
    return torch.cat([x[i, :n] for i, n in enumerate(lengths)])


def pooled(x: Tensor, attention_mask: Tensor) -> Tensor:
    return torch.stack([row[m].mean(0) for row, m in zip(x, attention_mask)])


# === Parts of documents ======================================================================================


def halves(cu: Tensor) -> Tensor:
    index = torch.zeros((cu[-1].item(),), dtype=torch.bool)  # type: ignore[call-overload]
    for i in range(len(cu) - 1):
        start, end = cu[i], cu[i + 1]
        end = (start + end) // 2
        index[start:end] = True
    return index


def spans(x: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    return torch.cat([x[s:e] * 2 for s, e in zip(starts.tolist(), ends.tolist(), strict=True)])


def without_prompts(x: Tensor, cu: Tensor, prompts: Tensor) -> Tensor:
    edges = zip(cu[:-1].tolist(), cu[1:].tolist(), prompts.tolist(), strict=True)
    return torch.cat([x[s + n : e] for s, e, n in edges])


def shard(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    out = torch.zeros(lengths.sum().item() // 2)  # type: ignore[call-overload]
    for i in range(len(lengths)):
        half = (lengths[i] // 2) // 2
        start, d = cu[i] // 2, x[cu[i] : cu[i + 1]]
        out[start : start + half] = d[:half]
        first = lengths[i] - half
        last = min(lengths[i] - half * 0, d.shape[0])
        out[start + half : start + half + (last - first)] = d[first:last]
    return out


def chunked(x: Tensor, cu: Tensor) -> Tensor:
    out: list[Tensor] = []
    for i in range(len(cu) - 1):
        assert (cu[i + 1] - cu[i]).item() % 4 == 0
        parts = x[:, cu[i] : cu[i + 1]].chunk(4, dim=1)
        out.extend([parts[1], parts[2]])
    return torch.cat(out, dim=1)


def chunked_in_unequal_parts(x: Tensor, cu: Tensor) -> Tensor:
    out: list[Tensor] = []
    for i in range(len(cu) - 1):
        parts = x[:, cu[i] : cu[i + 1]].chunk(4, dim=1)
        out.extend([parts[0], parts[1]])
    return torch.cat(out, dim=1)


def twice(x: Tensor, cu: Tensor) -> Tensor:
    edges = zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)
    return torch.cat([torch.cat([x[s:e], x[s:e] * 2]) for s, e in edges])


def overlapping(x: Tensor, cu: Tensor) -> Tensor:
    """Where documents meet, what the later one writes stays, whichever of its two writes that is."""
    out = torch.zeros(64)
    for i in range(len(cu) - 1):
        n = (cu[i + 1] - cu[i]) // 2
        d = x[cu[i] : cu[i + 1]]
        out[i : i + n] = d[:n]
        out[i + 2 : i + 2 + n] = d[n : n + n]
    return out


def of_two_vectors(x: Tensor, a: Tensor, b: Tensor, n: Tensor) -> Tensor:
    """A start that is the sum of two numbers: each has to be read from its own vector."""
    return torch.cat([x[a[i] + b[i] : a[i] + b[i] + n[i]] for i in range(len(n))])


def mean_of_losses(x: Tensor, weights: Tensor, lengths: Tensor) -> Tensor:
    total: Any = 0
    for i, part in enumerate(x.split(lengths.tolist())):
        total = total + (part.exp() * weights[i]).sum() / len(part)
    return total


PROGRAMS: dict[Callable[..., Any], Make] = {
    zipped: lambda n: (rows(n, 3), torch.tensor(n)),
    numbered: lambda n: (rows(n, 3), torch.tensor(n)),
    lengths_late: lambda n: (rows(n, 3), torch.tensor(n)),
    fields: lambda n: (mask(n), rows(n, 3), torch.arange(len(n) * max(n)).reshape(len(n), -1)),
    joined: lambda n: (rows(n, 3), rows(n, 3), torch.tensor(n), torch.tensor(n).flip(0)),
    to_width: lambda n: (rows(n, 3), torch.tensor(n)),
    picked: lambda n: (rows(n, 3, more=1), mask(n, max(n) + 1, left=True).long()),
    packed_by_masks: lambda n: (torch.arange(len(n) * max(n)).reshape(len(n), -1), mask(n, left=True)),
    put_by_masks: lambda n: (mask(n, left=True), torch.randn(sum(n) + 2, 3, requires_grad=True), boundaries(n)),
    from_mask_to_mask: lambda n: (rows(n, 3, more=2), mask(n, max(n) + 2, left=True), mask(n, max(n) + 2)),
    counted: lambda n: (rows(n, more=1), mask(n, max(n) + 1, left=True)),
    listed: lambda n: (rows(n, 2), mask(n).long()),
    pooled: lambda n: (rows(n, 3, more=1), mask(n, max(n) + 1, left=True)),
    halves: lambda n: (boundaries(n),),
    spans: lambda n: (torch.randn(sum(n), requires_grad=True), boundaries(n)[:-1] + 1, boundaries(n)[1:]),
    without_prompts: lambda n: (torch.randn(sum(n), 2, requires_grad=True), boundaries(n), torch.tensor(n) // 2),
    shard: lambda n: (torch.randn(sum(n), requires_grad=True), boundaries(n)),
    chunked: lambda n: (torch.randn(1, sum(n), 3, requires_grad=True), boundaries(n)),
    twice: lambda n: (torch.randn(sum(n) + 3, 2, requires_grad=True), boundaries(n)),
    overlapping: lambda n: (torch.randn(sum(n), requires_grad=True), boundaries(n)),
    of_two_vectors: lambda n: (
        torch.randn(sum(n) + 9, requires_grad=True), boundaries(n)[:-1], torch.arange(len(n)), torch.tensor(n)
    ),
    mean_of_losses: lambda n: (torch.randn(sum(n), requires_grad=True), torch.randn(len(n)), torch.tensor(n)),
}  # fmt: skip


# === Look-alikes =============================================================================================


def other_mask(ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Documents take the mask of the row before."""
    return torch.cat([ids[i, attention_mask[i - 1]] for i in range(ids.shape[0])])


def changed_mask(ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The mask is changed while rows are counted."""
    out = []
    for i in range(ids.shape[0]):
        out.append(ids[i, : attention_mask[i].sum()])
        attention_mask[:, 0] = False
    return torch.cat(out)


def two_masks(x: Tensor, chosen: Tensor, rejected: Tensor) -> Tensor:
    """What two masks pick from a row need not be as many tokens."""
    return torch.cat([torch.cat([row[a], row[b]]) for row, a, b in zip(x, chosen, rejected)])


def weighted_mask(ids: Tensor, weights: Tensor) -> Tensor:
    """Sums of weights are no counts of true places: as many slots as their sum says."""
    return torch.cat([ids[i, : weights[i].sum()] for i in range(ids.shape[0])])


def read_back(x: Tensor, cu: Tensor) -> Tensor:
    """What was written for one document is read for another."""
    out = torch.zeros(64)
    for i in range(len(cu) - 1):
        n = (cu[i + 1] - cu[i]) // 2
        out[i : i + n] = x[cu[i] : cu[i] + n]
        out[i + 2 : i + 2 + n] = out[i : i + n] + 1
    return out


def two_lengths(x: Tensor, cu: Tensor) -> Tensor:
    """The two halves of a document are not of one length."""
    out = torch.zeros(64)
    for i in range(len(cu) - 1):
        n = (cu[i + 1] - cu[i]) // 2
        d = x[cu[i] : cu[i + 1]]
        out[cu[i] : cu[i] + n] = d[:n]
        out[cu[i] + n : cu[i + 1]] = d[n:] * 2
    return out


def beyond(x: Tensor, cu: Tensor) -> Tensor:
    """A slice of a document that Python cuts off at its end."""
    edges = zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True)
    return torch.cat([x[s:e][(e - s) // 2 : (e - s) // 2 * 3] for s, e in edges])


def columns(x: Tensor, lengths: Tensor) -> Tensor:
    """The loop goes over the columns of a batch."""
    return torch.stack([x[:, j].sum() + lengths.sum() for j in range(x.shape[1])])


def layers(x: Tensor, lengths: Tensor, weights: list[Tensor]) -> Tensor:
    """As many layers as rows."""
    for weight in weights:
        x = x * weight + lengths.sum()
    return x


def rows_of_one_size(logits: Tensor, labels: Tensor) -> Tensor:
    """Rows of one size: there are no documents."""
    return torch.stack([row[label] for row, label in zip(logits, labels)])


LOOK_ALIKES: dict[Callable[..., Any], Make] = {
    other_mask: lambda n: (rows(n, 3), mask(n)),
    changed_mask: lambda n: (rows(n, 3), mask(n)),
    two_masks: lambda n: (rows(n, 3), mask(n), mask([k // 2 for k in n], max(n))),
    weighted_mask: lambda n: (rows(n, 3), mask([k // 2 for k in n], max(n)).long() * 2),
    read_back: lambda n: (torch.randn(sum(n), requires_grad=True), boundaries(n)),
    two_lengths: lambda n: (torch.randn(sum(n), requires_grad=True), boundaries(n)),
    beyond: lambda n: (torch.randn(sum(n), requires_grad=True), boundaries(n)),
    columns: lambda n: (rows(n), torch.tensor(n)),
    layers: lambda n: (rows(n), torch.tensor(n), [torch.randn(()) for _ in n]),
    chunked_in_unequal_parts: lambda n: (
        torch.randn(1, sum(n) + len(n), 3, requires_grad=True), boundaries([k + 1 for k in n])
    ),
    rows_of_one_size: lambda n: (rows(n, 5), torch.arange(len(n) * 4).reshape(len(n), 4) % max(n)),
}  # fmt: skip
