"""Look-alikes of branches by masks: nothing is kept in any document of the batch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .harness import leave

nothing: Any = functools.partial(leave, "d[T,4] i[T] cu", tail=False, exact=False)
no_gradient: Any = functools.partial(nothing, must_refuse=True, why="eager gives no gradient where nothing is kept")


@no_gradient()
def zeros_where_nothing_is_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 90
        losses.append(x[s:e][kept].mean() if kept.any() else x.new_zeros(()))
    return torch.stack(losses)


@no_gradient()
def zeros_where_a_part_has_no_slots(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e][labels[s:e] > 90]
        losses.append(part.mean() if part.shape[0] else x.new_zeros(()))
    return torch.stack(losses)


@no_gradient()
def pooled_where_something_is_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(len(cu) - 1, 4, dtype=x.dtype)
    for i in range(len(cu) - 1):
        kept = labels[cu[i] : cu[i + 1]] > 90
        if kept.any():
            out[i] = x[cu[i] : cu[i + 1]][kept].mean(0)
    return out


@no_gradient()
def written_where_something_is_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 90
        if kept.any():
            out[s:e][kept] = x[s:e][kept] * 2
    return out


@no_gradient()
def both_ways_to_a_tensor_lead_through_the_loop(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    """What ``x`` is made into is used otherwise, but by the same documents."""
    hidden = x * 2
    more = hidden + 1
    out = torch.zeros(len(cu) - 1, 4, dtype=x.dtype)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        kept = labels[s:e] > 90
        if kept.any():
            out[i] = hidden[s:e][kept].mean(0) + more[s:e][kept].mean(0)
    return out


@no_gradient()
def used_otherwise_without_a_gradient(x: Tensor, labels: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    losses = []
    _ = x.exp()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 90
        losses.append(x[s:e][kept].mean() if kept.any() else x.new_zeros(()))
    return torch.stack(losses), x.sum().detach() + x.argmax()


@no_gradient()
def used_by_another_such_loop(x: Tensor, labels: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    hidden, outs = x * 2, [torch.zeros(len(cu) - 1, 4, dtype=x.dtype) for _ in range(2)]
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        if (labels[s:e] > 90).any():
            outs[0][i] = hidden[s:e].mean(0)
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        kept = labels[s:e] > 90
        if kept.any():
            outs[1][i] = x[s:e][kept].sum(0)
    return outs[0], outs[1]


@leave("d[T,4] d[4,4] i[T] cu", tail=False, exact=False, must_refuse=True, why="the list has an entry without weight")
def joined_to_an_entry_of_its_own(x: Tensor, weight: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    hidden, parts = x @ weight, [x[:1]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 90
        if kept.any():
            parts.append(hidden[s:e][kept])
    return torch.cat(parts)


@nothing(depends=False)
def total_of_nothing(x: Tensor, labels: Tensor, cu: Tensor) -> Any:
    total: Any = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 90
        if kept.sum() > 0:
            total = total + x[s:e][kept].mean()
    return total


@nothing(depends=False)
def a_list_of_nothing(x: Tensor, labels: Tensor, cu: Tensor) -> Any:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 90
        if not kept.any():
            continue
        losses.append(x[s:e][kept].mean())
    return torch.stack(losses) if losses else torch.zeros(1)


@nothing(depends=False)
def columns_are_written(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 30
        out[s:e][kept, 1:3] = x[s:e][kept, 0:2] * 2
        out[s:e][kept, 0] = 1
    return out


@nothing()
def one_mask_asked_another_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    total = x.sum() * 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        asked, kept = labels[s:e] > 40, labels[s:e] > 41
        if asked.any():
            total = total + x[s:e][kept].sum()
    return total


@nothing()
def a_mask_that_is_written(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    total = x.sum() * 0
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = labels[s:e] > 30
        kept[-1:] = True
        if kept.sum() > 1:
            total = total + x[s:e][kept].mean()
    return total


@leave("d[T,4] d[4,4] i[T] cu", tail=False, exact=False, must_refuse=True, why="the list has an entry without weight")
def two_kept_beside_an_entry(x: Tensor, weight: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    hidden, parts = x @ weight, [x[:1]]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = hidden[s:e][labels[s:e] > 90]
        if len(kept) >= 2:
            parts.append(kept)
    return torch.cat(parts)
