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


@program("f[T,3] cu", tail=False, depends=False)
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


# === Sizes that are tensors still ============================================================================


@program("f[T,3] cu", tail=False)
def numbers_and_places_of_tensors(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    numbers, places = [], []
    for i, n in enumerate(cu.diff()):
        numbers.extend([i] * n)
        places.extend(list(range(n)))
    return x * torch.tensor(numbers, dtype=torch.int64)[:, None], torch.tensor(places, dtype=torch.int64)


@program("f[T,3] cu", tail=False)
def lists_in_a_list(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts: list[list[Tensor]] = [[] for _ in range(2)]
    bounds = [[0] for _ in range(2)]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts[1].append(x[s:e].flip(0))
        bounds[1].append(bounds[1][-1] + (e - s))
    return torch.cat(parts[1]), torch.tensor(bounds[1])


@program("f[T,3] cu", tail=False)
def lists_in_a_dict(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    packed: dict[str, Any] = {"parts": [], "bounds": [0]}
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        packed["parts"].append(x[s:e].cumsum(0))
        packed["bounds"].append(packed["bounds"][-1] + (e - s))
    return torch.cat(packed["parts"]), torch.tensor(packed["bounds"])


@program("f[T,3] cu", tail=False)
def counted_on_in_two_steps(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, bounds = [], [0]
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        parts.append(x[s:e] * 2)
        bounds.append(bounds[-1] + e - s)
    return torch.cat(parts), torch.tensor(bounds)


def with_numbers(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff())


@program("d[T,3] cu", tail=False, exact=False, min_len=1, wrap=with_numbers, reads=1)
def as_many_as_the_largest_says(x: Tensor, batch: Tensor) -> Tensor:
    return torch.stack([x[batch == i].mean(0) for i in range(batch.max() + 1)])


@program("d[T,3] cu", tail=False, exact=False, min_len=1, wrap=with_numbers, reads=1)
def as_many_as_the_last_says(x: Tensor, batch: Tensor) -> Tensor:
    return torch.stack([x[batch == i].mean(0) for i in range(batch[-1].item() + 1)])


# === Slots of a document at which another mask holds =========================================================


def with_numbers_and_a_mask(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    return x, x[:, 0] > 0, torch.repeat_interleave(torch.arange(len(cu) - 1), cu.diff()).flip(0)


@program("d[T,3] cu", tail=False, exact=False, min_len=1, wrap=with_numbers_and_a_mask, graphs=3)
def losses_of_documents_by_their_numbers(x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    losses = []
    for i in torch.unique(ids):
        own = (ids == i) & mask
        losses.append(x[own].sum(0) / own.sum().clamp(min=1))
    return torch.stack(losses).mean(0)


@program("d[T,3] cu", tail=False, exact=False, min_len=1, wrap=with_numbers_and_a_mask, graphs=3)
def kept_where_all_hold(x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    kept = []
    for i in torch.unique(ids):
        kept.append(x[~mask & (ids == i) & (x[:, 1] < 1)] * 2)
    return torch.cat(kept)


@program("d[T,3] cu", tail=False, exact=False, min_len=1, wrap=with_numbers_and_a_mask, graphs=3)
def beside_all_of_the_document(x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    sums = []
    for i in torch.unique(ids):
        own = ids == i
        sums.append(x[own & mask].sum(0) - x[own].mean(0))
    return torch.stack(sums)
