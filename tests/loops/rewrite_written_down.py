"""Loops that must be rewritten: places that are written down in the body, masks that depend on what a mask keeps, and
numbers of a list that are asked for twice."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program


def times_4(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return torch.cat([x, x.flip(0), x * 2, x * 3]), cu * 4


def with_mask(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, x > 0, cu.diff()


# === Places that are written down ============================================================================


@program("f[T,3] cu", tail=False, wrap=times_4, rule="ragged_grids", graphs=3)
def chunks_by_a_tensor(x: Tensor, cu: Tensor) -> Tensor:
    """As Megatron's shards of packed rows are made."""
    rank, parts = 1, []
    for i in range(cu.shape[0] - 1):
        val = x[cu[i] : cu[i + 1]]
        val = val.view(4, val.shape[0] // 4, *val.shape[1:])
        index = torch.tensor([rank, 3 - rank], device="cpu").to(x.device)
        parts.append(val.index_select(0, index).view(-1, *x.shape[1:]))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False, wrap=times_4, rule="ragged_grids", graphs=3)
def chunks_by_a_list(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e].view(4, (e - s) // 4, 3)[[0, 3]].flatten(0, 1))
    return torch.cat(parts)


@program("f[T,3] cu", tail=False)
def features_by_a_list(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[s:e][:, [-1, 0]] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,3] cu", tail=False, min_len=1, rule="ragged_grids")
def first_and_last_by_a_list(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e][[0, -1]] * 2 for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


# === Masks, and what they have kept ==========================================================================


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, rule="ragged_grids", graphs=3)
def kept_of_parts_and_their_mean(x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    sums = []
    for part, own in zip(x.split(lengths.tolist()), mask.split(lengths.tolist())):
        sums.append((part * part.sum())[own].sum())
    return torch.stack(sums)


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, rule="ragged_grids", graphs=3)
def ratios_of_sequences(x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """As the losses of GSPO."""
    total: Any = 0
    for part, own in zip(x.split(lengths.tolist()), mask.split(lengths.tolist())):
        ratio = torch.exp(part[own].sum() / torch.clamp_min(own.sum(), 1))
        loss = -torch.clamp(part - part.detach() + ratio.detach(), max=2.0)
        total = total + loss[own].sum() / torch.clamp_min(own.sum(), 1)
    return total


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, rule="ragged_grids", graphs=3)
def mask_by_what_another_kept(x: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    sums, kept = [], []
    for part, own in zip(x.split(lengths.tolist()), mask.split(lengths.tolist())):
        mean = part[own].sum() / torch.clamp_min(own.sum(), 1)
        above = own & (part > mean)
        sums.append((part * mean)[above].sum() / torch.clamp_min(above.sum(), 1))
        kept.append(part[above] * mean)
    return torch.stack(sums), torch.cat(kept)


@program("d[T] cu", tail=False, exact=False, wrap=with_mask, rule="ragged_grids", graphs=3)
def masks_of_masks(x: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    sums = []
    for part, own in zip(x.split(lengths.tolist()), mask.split(lengths.tolist())):
        for _ in range(2):
            own = own & (part > part[own].sum() / torch.clamp_min(own.sum(), 1))
        sums.append(part[own].sum() + own.sum())
    return torch.stack(sums)


# === Skipped documents =======================================================================================


@program("f[T,4] cu f[N,3,4]", tail=False, exact=False, lead_empty=True, graphs=3)
def experts_with_tokens(x: Tensor, cu: Tensor, weights: Tensor) -> Tensor:
    outs = []
    for i, part in enumerate(x.split(cu.diff().tolist())):
        if part.numel() == 0:
            continue
        outs.append(part @ weights[i].T)
    return torch.cat(outs)


# === Numbers that are asked for twice ========================================================================


@program("i[T] cu", tail=False, reads=1)
def square_of_two_sums(ids: Tensor, cu: Tensor) -> Tensor:
    lengths, start = cu.diff().tolist(), 0
    mask = torch.zeros((sum(lengths), sum(lengths)), dtype=torch.bool)
    for i in range(len(lengths)):
        end = start + lengths[i]
        mask[start:end, start:end] = True
        start = end
    return mask & (ids[:, None] != ids[None])


@program("f[T,3] cu", tail=False, reads=1)
def padded_to_the_longest_twice(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    lengths = cu.diff().tolist()
    rows = [F.pad(part, (0, 0, 0, max(lengths) - part.shape[0])) for part in x.split(lengths)]
    return torch.stack(rows), torch.arange(max(lengths))[None] < cu.diff()[:, None]
