"""Loops that must be rewritten: slots of a document that a mask keeps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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


# === Slots of several kinds in one loop ======================================================================


@program("f[T,2] m[T] cu", exact=False, tail=False)
def kept_beside_all(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e][mask[s:e]].sum(0) - x[s:e].sum(0) for s, e in zip(cu[:-1], cu[1:])])


@program("f[T,2] m[T] i[T] cu", exact=False, tail=False)
def kept_by_two_masks(x: Tensor, mask: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[s:e][mask[s:e]].sum(0) + x[s:e][labels[s:e] > 30].sum(0) for s, e in zip(cu[:-1], cu[1:])])


@program("d[T] m[T] m[T] i[T] cu64", exact=False, tail=False)
def kept_by_three_masks(x: Tensor, asked: Tensor, answered: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        first, second = x[s:e][asked[s:e]].logsumexp(0), x[s:e][answered[s:e]].sum()
        out.append(torch.stack([first, second * x[s:e][labels[s:e] > 30].sum()]))
    return torch.stack(out)


@program("d[T] m[T] cu", exact=False, tail=False)
def kept_and_not_kept(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        keep = mask[s:e]
        out.append(x[s:e][keep].sum() / (keep.sum() + 1) - x[s:e][~keep].sum() / ((~keep).sum() + 1))
    return torch.stack(out)


@program("d[T] m[T] cu", exact=False, tail=False)
def all_around_the_mean_of_the_kept(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e] = (x[s:e] - x[s:e][mask[s:e]].sum() / mask[s:e].sum().clamp(min=1)) * mask[s:e]
    return out


@program("d[T] m[T] m[T] cu", exact=False, tail=False)
def kept_around_others(x: Tensor, asked: Tensor, answered: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        start = x[s:e][asked[s:e]].sum()
        out.append((x[s:e][answered[s:e]] - start).pow(2).sum())
    return torch.stack(out)


@program("d[T] m[T] m[T] cu", exact=False, tail=False, depends=False)
def totals_of_two_masks(x: Tensor, asked: Tensor, answered: Tensor, cu: Tensor) -> Tensor:
    lengths = (cu[1:] - cu[:-1]).tolist()
    first, second = x.new_zeros(()), x.new_ones(())
    for part, one, other in zip(x.split(lengths), asked.split(lengths), answered.split(lengths)):
        first = first + part[one].sum()
        second = second + part[other].abs().sum()
    return first / second


@program("d[T] m[T] m[T] cu", exact=False, tail=False)
def counts_of_two_masks(x: Tensor, asked: Tensor, answered: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    sums, counts = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        first, second = x[s:e][asked[s:e]], x[s:e][answered[s:e]]
        sums.append(first.sum() - second.sum())
        counts.append(first.shape[0])
    return torch.stack(sums), torch.tensor(counts)


# === Lists of several kinds, places, and writes to what is kept ==============================================


@program("f[T,2] m[T] i[T] cu", tail=False, depends=False)
def lists_of_two_masks(x: Tensor, mask: Tensor, labels: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    first, second = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        first.append(x[s:e][mask[s:e]])
        second.append(x[s:e][labels[s:e] > 30])
    return torch.cat(first), torch.cat(second)


@program("f[T,2] m[T] cu", tail=False, exact=False)
def a_list_of_kept_beside_all(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    kept, sums = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept.append(x[s:e][mask[s:e]])
        sums.append(x[s:e].sum(0))
    return torch.cat(kept), torch.stack(sums)


@program("d[T] m[T] m[T] cu", tail=False, exact=False)
def lists_around_each_other(x: Tensor, one: Tensor, other: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first, second, counts = [], [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        a, b = x[s:e][one[s:e]], x[s:e][other[s:e]]
        first.append(a - b.sum())
        second.append(b * 2)
        counts.append(a.shape[0])
    return torch.cat(first), torch.cat(second), torch.tensor(counts)


@program("d[T] m[T] cu", tail=False, exact=False)
def whitened_within_a_mask(values: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    """Advantages, of the tokens that were generated."""
    out = torch.zeros_like(values)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        keep = mask[s:e]
        kept = values[s:e][keep]
        out[s:e][keep] = (kept - kept.mean()) / (kept.std(unbiased=False) + 1e-6)
    return out


@program("d[T,2] i[T] cu64", exact=False)
def rows_written_where_they_are_kept(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        keep = labels[s:e] != 3
        out[s:e][keep] = x[s:e][keep].softmax(0)
    return out * 3


@program("f[T] m[T] i[T] cu", exact=False)
def one_value_where_a_mask_says(x: Tensor, mask: Tensor, ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, numbers = x.clone(), ids.clone()
    for i, (s, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist())):
        out[s:e][mask[s:e]] = x[s:e].sum()
        numbers[s:e][mask[s:e]] = i
    return out, numbers


@program("f[T,2] m[T] cu", tail=False, depends=False, demand=False)
def places_of_the_kept(x: Tensor, mask: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts, places = [], []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = torch.where(mask[s:e])[0]
        parts.append(x[s:e][here])
        places.append(here + s)
    return torch.cat(parts), torch.cat(places)


@program("f[T] i[T] cu", tail=False, exact=False, demand=False)
def places_in_other_words(x: Tensor, labels: Tensor, cu: Tensor) -> Tensor:
    sums = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = torch.nonzero(labels[s:e] != 3).squeeze(-1)
        sums.append(x[s:e].index_select(0, here).sum())
    return torch.stack(sums)


@program("f[T] m[T] cu", depends=False, demand=False)
def zeroed_at_places(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s:e][mask[s:e].nonzero(as_tuple=True)[0]] = 0.0
    return out


@program("d[T] m[T] cu", exact=False, demand=False)
def sums_written_at_places(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = torch.where(mask[s:e])[0]
        out[s:e][here] = x[s:e][here].cumsum(0)
    return out


@program("f[T,3] m[T] cu64", tail=False, min_len=1)
def first_of_the_places(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        here = (mask[s:e] | ~mask[s:e]).nonzero().flatten()
        out.append(x[s + here[0]])
    return torch.stack(out)


# ---------------------------------------------------------------- kept slots go elsewhere, or only their number counts


@program("f[T,2] m[T] cu")
def kept_moved_to_the_end(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        kept = x[s:e][mask[s:e]]
        out[e - len(kept) : e] = kept
    return out


@program("f[T,2] m[T] cu")
def as_many_slots_as_are_kept(x: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s : s + len(x[s:e][mask[s:e]])] = 1
    return out


def _first_kept(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Of every row of a batch one slot at least is kept: ``[-0:]`` is all of a row, and no row fits that."""
    mask[:, 0] = True
    return x, mask


@program("f[N,T] m[N,T]", wrap=_first_kept, depends=False, graphs=3)
def rows_moved_to_the_end(x: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        kept = x[i][mask[i]]
        out[i, -len(kept) :] = kept
    return out


@program("f[N,T] m[N,T]", depends=False, graphs=3)
def as_many_of_a_row_as_are_kept(x: Tensor, mask: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i, : len(x[i, mask[i]])] = 1
    return out


@program("f[T,3] f[T,3] m[T] cu", exact=False, min_len=1, depends=False)
def losses_of_what_one_mask_keeps(x: Tensor, y: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    total = x.new_zeros(())
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        keep = mask[s:e]
        total = total + F.l1_loss(x[s:e][keep], y[s:e][keep], reduction="sum")
        total = total + F.huber_loss(x[s:e][keep], y[s:e][keep], reduction="sum")
    return total
