"""Loops over documents that compute one value per document, or run along a document's slots.

Every program takes ``x`` [T, 4] (float32 with gradient) and ``cu`` [N + 1]; `Body` says what else and for which
documents eager is defined.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclasses.dataclass(frozen=True)
class Body:
    """``least``: slots of the shortest document; ``inputs``: makers of further arguments from (N, generator)."""

    fn: Callable[..., Any]
    least: int = 0
    tail: bool = True
    inputs: tuple[Callable[[int, torch.Generator], Tensor], ...] = ()
    graphs: int = 2

    @property
    def name(self) -> str:
        return self.fn.__name__


BODIES: dict[str, Body] = {}


def body(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        assert fn.__name__ not in BODIES
        BODIES[fn.__name__] = Body(fn, **options)
        return fn

    return register


# ---------------------------------------------------------------- written to the slots


@body()
def centred(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = x[s:e] - x[s:e].mean(0)
    return out


@body()
def mean_everywhere(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].mean(0, keepdim=True)
    return out


@body(least=2)
def normalised(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[cu[i] : cu[i + 1]]
        out[cu[i] : cu[i + 1]] = (seg - seg.mean(dim=0)) / (seg.std(0) + 1e-3)
    return out


@body()
def population_deviation(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[cu[i] : cu[i + 1]]
        out[cu[i] : cu[i + 1]] = seg * torch.std(seg, dim=0, correction=0, keepdim=True) + seg.var(unbiased=False)
    return out


@body()
def divided_by_sum_of_everything(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] / (1 + x[s:e].abs().sum())
    return out


@body()
def over_another_dim_of_the_row(x: Tensor, cu: Tensor) -> Tensor:
    y = x.t()
    out = torch.zeros_like(y)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = y[:, s:e] - y[:, s:e].sum(-1, keepdim=True)
    return out


@body()
def pooled_over_both(x: Tensor, cu: Tensor) -> Tensor:
    y = x.view(x.shape[0], 2, 2).transpose(0, 1)
    out = torch.zeros_like(y)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = y[:, s:e]
        out[:, s:e] = seg * seg.sum((1, 2), keepdim=True) + seg.mean((0, 1))
    return out


@body()
def number_of_the_document(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    ids, out = torch.full((x.shape[0],), -1, dtype=torch.int64), x.clone()
    for i in range(len(cu) - 1):
        s, e = int(cu[i]), int(cu[i + 1])
        ids[s:e] = i
        out[s:e] = x[s:e] * i + (e - s)
    return ids, out


@body()
def lengths_as_tensors(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[s:e] = x[s:e] / (e - s) + s - 2 * (e - s).float()
    return out


@body(least=1)
def python_numbers(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist()), start=2):
        scale = 1.0 / (e - s)
        out[s:e] = x[s:e] * scale * (e - s) ** 0.5 + (i * (e - s)) // 2 + (e - s) % 3 - math.sqrt(e - s)
    return out


@body()
def half_precision(x: Tensor, cu: Tensor) -> Tensor:
    y = x.bfloat16()
    out = y.clone()
    for i in range(len(cu) - 1):
        s, e = int(cu[i]), int(cu[i + 1])
        out[s:e] = y[s:e] * (e - s) / 7
    return out


@body()
def half_precision_pooled(x: Tensor, cu: Tensor) -> Tensor:
    y = x.bfloat16()
    out = torch.zeros_like(y)
    for i in range(len(cu) - 1):
        s, e = int(cu[i]), int(cu[i + 1])
        out[s:e] = y[s:e] - y[s:e].mean(0)
    return out


@body(least=1)
def in_place_on_a_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = out[s:e]
        seg -= x[s:e].amin(0)
        seg.div_(e - s)
    return out


@body(least=1)
def first_as_reference(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] - x[s:e][0] * x[s:e][-1]
    return out


@body()
def expanded(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 8)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pooled = x[s:e].sum(0)
        out[s:e] = torch.cat([x[s:e], pooled.unsqueeze(0).expand(e - s, -1)], -1)
    return out


@body()
def mask_of_longer_than_three(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = torch.where((e - s) > 3, x[s:e], 2 * x[s:e])
    return out


@body(least=1)
def largest_minus_smallest(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[s:e]
        out[s:e] = (seg - seg.min(0).values) / (seg.max(dim=0)[0] - seg.amin(dim=0) + 1) + seg.max() - torch.min(seg)
    return out


# ---------------------------------------------------------------- along the slots


@body()
def softmax_over_the_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e].softmax(0) + F.log_softmax(x[s:e], dim=0)
    return out


@body()
def scans(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[s:e]
        out[s:e] = seg.cumsum(0) + torch.cumprod(seg / 4, 0) + seg.cummax(0).values + torch.cummin(seg, 0)[0]
        out[s:e] += torch.logcumsumexp(seg, dim=0)
    return out


@body()
def running_count(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.int64)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] > 0).cumsum(0)
    return out


@body(least=3)
def windows(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = x[s:e] - x[s + 1 : e].mean(0) + x[s : e - 1].amax(0) * x[s + 1 : e - 1].sum(0)
    return out


@body(least=2)
def windowed_scan(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s + 1 : e] = x[s + 1 : e].cumsum(0) + x[s : e - 1].softmax(0)
    return out


@body()
def normalised_along_the_slots(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = F.normalize(x[s:e], dim=0) + F.normalize(x[s:e], p=1.0, dim=0)
    return out


# ---------------------------------------------------------------- lists


@body()
def stacked_means(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1], cu[1:]):
        ys.append(x[s:e].mean(0))
    return torch.stack(ys)


@body()
def stacked_in_a_comprehension(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e].sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())], dim=1)


@body()
def concatenated_rows(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(x[s:e].sum(0, keepdim=True))
    return torch.cat(ys) * 2


@body()
def concatenated_pairs(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(torch.stack([x[s:e].sum(0), x[s:e].prod(0)], dim=-1))
    return torch.cat(ys, dim=1)


@body()
def scalars(x: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        losses.append((x[s:e] ** 2).sum() / max(e - s, 1))
    return torch.stack(losses)


@body(least=1)
def last_slots(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1], cu[1:]):
        ys.append(x[e - 1] + x[s] * 2)
    return torch.stack(ys)


@body(least=3)
def kth_slots(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[s:e]
        ys.append(seg[2] + seg[-3] + x[s + 1] + seg.select(0, -1) + x[e - 2])
    return torch.stack(ys)


@body(least=1)
def argmaxes(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, b, c = [], [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        a.append(x[s:e].argmax(0))
        b.append(x[s:e].max(0).indices)
        c.append(x[s:e].argmin())
    return torch.stack(a), torch.stack(b), torch.stack(c)


@body()
def norms(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[s:e]
        ys.append(seg.norm(dim=0) + torch.linalg.vector_norm(seg) + seg.norm(p=1, dim=0) + torch.norm(seg))
    return torch.stack(ys)


@body(least=1)
def infinite_norm(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(torch.linalg.vector_norm(x[s:e], float("inf"), dim=0))
    return torch.stack(ys)


@body()
def truths(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    a, b = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        big = x[s:e] > 1
        a.append(big.any(0) & ~big.all(0))
        b.append(torch.count_nonzero(x[s:e], dim=0) + big.sum())
    return torch.stack(a), torch.stack(b)


@body()
def logsumexps(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(torch.logsumexp(x[s:e], 0) + x[s:e].logsumexp((0, 1)))
    return torch.stack(ys)


@body()
def padded(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(x[s:e] * 2)
    return pad_sequence(ys, batch_first=True, padding_value=-1.0)


@body()
def padded_time_first(x: Tensor, cu: Tensor) -> Tensor:
    return pad_sequence([x[s:e] for s, e in zip(cu[:-1], cu[1:])])


@body()
def attention_pooling(x: Tensor, cu: Tensor) -> Tensor:
    query = x.new_ones(4)
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        weights = (x[s:e] @ query).softmax(0)
        ys.append(weights @ x[s:e] + (weights.unsqueeze(-1) * x[s:e]).sum(0))
    return torch.stack(ys)


@body(inputs=(lambda n, g: torch.randn(3, 4, generator=g).requires_grad_(),))
def projected(x: Tensor, cu: Tensor, w: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        pooled = x[s:e].sum(0)
        ys.append(F.linear(pooled, w) + w @ pooled + torch.tanh(pooled @ w.t()) * F.layer_norm(pooled, (4,)).sum())
    return torch.stack(ys)


@body(least=1, inputs=(lambda n, g: torch.randn(4, generator=g).requires_grad_(),))
def weighted_mean(x: Tensor, cu: Tensor, w: Tensor) -> Tensor:
    """A division by the length of no document must not reach the gradient of ``w``."""
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append((x[s:e].sum(0) / (e - s)) * w)
    return torch.stack(ys)


@body()
def in_place_on_a_pooled_value(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = x[s:e].sum(0)
        total /= e - s + 1
        total.mul_(2)
        ys.append(total.clamp(max=3).softmax(0))
    return torch.stack(ys)


# ---------------------------------------------------------------- outer tensors with one row per document


@body()
def pooled_rows(x: Tensor, cu: Tensor) -> Tensor:
    pooled = torch.zeros(len(cu) - 1, 4)
    for i in range(len(cu) - 1):
        pooled[i] = x[cu[i] : cu[i + 1]].mean(0)
    return pooled * 2


@body()
def pooled_rows_of_nonempty(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    pooled, count = x.new_full((len(cu) - 1, 4), -1.0), torch.zeros(len(cu) - 1, dtype=torch.int64)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        if s == e:
            continue
        pooled[i] = x[s:e].max(0).values
        count[i] = e - s
    return pooled, count


@body()
def pooled_columns(x: Tensor, cu: Tensor) -> Tensor:
    pooled = torch.ones(4, len(cu) - 1)
    for i in range(len(cu) - 1):
        pooled[:, i] += x[cu[i] : cu[i + 1]].sum(0)
        pooled[:, i] *= 2
    return pooled


@body(inputs=(lambda n, g: torch.randn(n, 4, generator=g).requires_grad_(),), graphs=4)
def scaled_by_row(x: Tensor, cu: Tensor, scale: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] * scale[i]
    return out


@body(inputs=(lambda n, g: torch.randint(0, 5, (n,), generator=g),), graphs=4)
def labels_as_numbers(x: Tensor, cu: Tensor, labels: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = x[cu[i] : cu[i + 1]] + labels[i]
    return out


@body(inputs=(lambda n, g: torch.randn(60, 4, generator=g),))
def rows_beyond_the_documents(x: Tensor, cu: Tensor, table: Tensor) -> Tensor:
    for i in range(len(cu) - 1):
        table[i] = x[cu[i] : cu[i + 1]].detach().sum(0) + table[i]
    return table


@body()
def along_dimensions_of_a_sum(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1], cu[1:]):
        square = x[s:e].sum(0).view(2, 2)
        found = torch.logsumexp(square, -1) + square.norm(2, 1)
        rows.append(found + square.softmax(0).amax(1) + F.normalize(square)[0])
    return torch.stack(rows)
