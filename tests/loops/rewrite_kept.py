"""Loops that must be rewritten: slots of a document that a mask keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from .harness import program


@program("f[T,2] m[T] cu", depends=False)
def kept_and_joined(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[s:e][mask[s:e]])
    return torch.cat(parts) if parts else x[:0]


@program("f[T,2] i[T] m[T] cu64", tail=False)
def kept_by_several_conditions(x: Tensor, labels: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.cat([x[s:e][(labels[s:e] != 3) & ~mask[s:e]].flip(0) for s, e in zip(bounds[:-1], bounds[1:])])


@program("d[T] i[T] cu", exact=False, tail=False)
def mean_of_what_is_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for i in range(len(cu) - 1):
        keep = labels[cu[i] : cu[i + 1]] != 0
        total = total + x[cu[i] : cu[i + 1]][keep].sum() / keep.sum().clamp(min=1)
    return total / (len(cu) - 1)


@program("d[T,3] m[T] cu", exact=False, tail=False)
def computed_on_what_is_kept(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, sums = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = x[s:e][mask[s:e]]
        parts.append((part.softmax(-1).cumsum(0) - part.mean(0, keepdim=True)).roll(1, 0))
        sums.append(part.sum(0))
    return torch.cat(parts), torch.stack(sums)


@program("f[T,2] m[T] cu", tail=False)
def counts_of_what_is_kept(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, counts = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        part = (x[s:e] * 2 + 1)[mask[s:e]]
        sums.append(part.sum(0))
        counts.append(part.shape[0])
    return torch.stack(sums), torch.tensor(counts)


@program("i[T] cu", tail=False, depends=False)
def kept_of_parts_of_a_split(ids: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([part[part != 0] for part in ids.split((cu[1:] - cu[:-1]).tolist())])


@program("f[1,T,2] m[1,T] cu", tail=False, depends=False)
def kept_of_the_only_row(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[0, s:e][mask[0][s:e]] for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program("f[T,2] m[T] cu", tail=False, depends=False)
def filled_where_a_mask_says(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e][mask[s:e]] = 0.5
    return out


@program("i[T] cu", exact=False, tail=False)
def selected_by_its_own_values(labels: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    parts = [torch.masked_select(labels[s:e], labels[s:e] != 3) for s, e in zip(bounds[:-1], bounds[1:])]
    return torch.cat([part.flip(0) for part in parts]) * 2


@program("f[T,3] m[T] cu", exact=False, tail=False)
def one_feature_of_what_is_kept(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    return torch.stack([x[s:e, 1][mask[s:e]].sum() for s, e in zip(bounds[:-1], bounds[1:])])


@program("i[T] cu", depends=False)
def filtered_documents(ids: Tensor, cu: Tensor) -> Tensor:
    parts = [ids[:0]]
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[s:e]
        parts.append(seg[seg > 20])
    return torch.cat(parts)


@program("f[T] cu", tail=False)
def slots_above_zero(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.cat((x[s:e][x[s:e] > 0], x.new_zeros(1))) for s, e in zip(cu[:-1], cu[1:])])
