"""Documents that begin where the lengths in front of them add up to; parts of them whose slots are counted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


@program("f[T,3] cu", tail=False)
def begins_at_the_sum_in_front(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff()
    parts = []
    for i in range(len(lengths)):
        start = lengths[:i].sum()
        parts.append(x[start : start + lengths[i]].flip(0))
    return torch.cat(parts)


@program("f[T,3] cu64")
def ends_at_a_sum_as_well(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    out = torch.zeros_like(x)
    for i in range(lengths.size(0)):
        out[torch.sum(lengths[:i]) : torch.sum(lengths[: i + 1], dim=0)] = i
    return out + x


@program("f[T,3] cu", exact=False, tail=False)
def begins_at_the_sum_of_a_list(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu.diff().tolist()
    return torch.stack([x[sum(lengths[:i]) : sum(lengths[: i + 1])].sum(0) for i in range(len(lengths))])


@program("f[T,3] cu", tail=False)
def sum_of_a_list_and_a_length(x: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    parts = []
    for i in range(len(lengths)):
        start = sum(lengths[:i])
        parts.append(x[start : start + lengths[i]].cumsum(0))
    return torch.cat(parts)


@program("f[T,3] cu", exact=False, min_len=2, tail=False)
def mean_of_all_but_the_last(x: Tensor, cu: Tensor) -> Tensor:
    means = []
    for i in range(cu.numel() - 1):
        part = x[cu[i] : cu[i + 1] - 1]
        means.append(part.sum(0) / len(part))
    return torch.stack(means)


@program("f[T,5] i[T] cu", exact=False, lead_empty=False, tail=False)
def loss_by_slots_that_may_be_none(logits: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    losses = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        scores, wanted = logits[s : e - 1], labels[s + 1 : e] % 5
        losses.append(F.cross_entropy(scores, wanted, reduction="sum") / max(wanted.numel(), 1))
    return torch.stack(losses).mean()


@program("f[T,3] cu", tail=False)
def first_slots_counted(x: Tensor, cu: Tensor) -> Tensor:
    counts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e][:4]
        counts.append(part.sum(0) * part.size(0))
    return torch.stack(counts)


@program("f[T] f[T] cu", tail=False)
def differences_to_the_next_added_up(rewards: Tensor, values: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for i in range(len(cu) - 1):
        own = values[cu[i] : cu[i + 1]]
        later = torch.cat([own[1:], torch.zeros(1)])
        delta = rewards[cu[i] : cu[i + 1]] + 0.5 * later - own
        parts.append(delta.flip(0).cumsum(0).flip(0))
    return torch.cat(parts)


@program("f[T,3] f[1,3] cu", tail=False)
def differences_to_the_one_before(x: Tensor, first: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        before = torch.cat([first, x[s : e - 1]]) if s < e else x[s:e]
        out.append((x[s:e] - before).roll(1, 0))
    return torch.cat(out)


@program("f[1,T,3] cu", reads=1, tail=False, demand=False)  # torch 2.11 compares the lengths of both sides
def packed_batch_of_one_padded(x: Tensor, cu: Tensor) -> Tensor:
    lengths = cu[1:] - cu[:-1]
    out = torch.zeros(lengths.shape[0], lengths.max(), x.shape[2])
    for i in range(lengths.shape[0]):
        out[i, : cu[i + 1] - cu[i], :] = x[:, cu[i] : cu[i + 1], :]
    return out
