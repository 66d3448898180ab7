"""Loops that must keep eager's results at the edges: short documents, spilling slices, garbage in the tail, dtypes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .harness import leave

# ---------------------------------------------------------------- slices that leave a short document


@leave("i[T] cu", min_len=1)
def last_two_slots(ids: Tensor, cu: Tensor) -> Tensor:
    # a one-token document reaches back into its neighbour, and at the start of the row the slice is empty
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[cu[i + 1] - 2 : cu[i + 1]] = -100
    return out


@leave("i[T] cu")
def last_slot_as_slice(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[cu[i + 1] - 1 : cu[i + 1]] = -100
    return out


@leave("i[T] cu")
def first_two_slots(ids: Tensor, cu: Tensor) -> Tensor:
    # a one-token document reaches into the next one or into the tail
    out = ids.clone()
    for s in cu[:-1].tolist():
        out[s : s + 2] = 0
    return out


@leave("i[T] cu")
def fixed_window_per_document(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s : s + 4] = out[s : s + 4] * 2
        out[s:e] += 1
    return out


@leave("i[T] cu", lead_empty=False)
def shift_by_two_subslices(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e < 2:
            continue
        out[s : e - 2] = ids[s + 2 : e]
        out[e - 2 : e] = -7
    return out


@leave("i[T] cu")
def clipped_ends(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[s : min(e, s + 3)] = ids[s : min(e, s + 3)] + 100
    return out


@leave("i[T] cu")
def everything_before_and_after(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = ids[s:e]
        out[s:e] = torch.cat((seg[-2:], seg[:-2]))
    return out


@leave("i[T] cu")
def swapped_halves(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg, half = ids[s:e], (e - s) // 2
        out[s:e] = torch.cat((seg[half:], seg[:half]))
    return out


@leave("f[2,T] cu")
def inner_slots_only(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e][:, 1:-1] = x[:, s:e][:, 2:] - x[:, s:e][:, :-2]
    return out


@leave("f[2,T] cu")
def first_three_of_rolled(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        out[:, s:e][:, :3] = seg.flip(-1)[:, :3]
        out[:, s:e][:, -2:] += seg.roll(1, -1)[:, -2:]
    return out


@leave("f[2,T] cu", min_len=1)
def first_from_last(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        out[:, s:e][:, :1] = seg[:, -1:]
        out[:, s:e][:, -1] = seg[:, 0] * 2
    return out


@leave("i[T] cu", min_len=1)
def last_token_everywhere(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = ids[e - 1]
    return out


# ---------------------------------------------------------------- conditions on the length


@leave("i[T] cu")
def skips_one_token_documents(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        if e - s < 2:
            continue
        out[s:e] = ids[s:e].flip(0)
        out[e - 1] = 0
    return out


@leave("i[2,T] cu")
def skips_by_numel(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[:, s:e]
        if seg.numel() <= 2:  # one token in each of the two rows
            continue
        out[:, s:e] = seg + 100
    return out


@leave("i[2,T] cu")
def len_of_the_wrong_dim(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[:, s:e]
        if len(seg) == 0:  # two rows, always
            continue
        out[:, s:e] = seg.roll(1, -1)
    return out


@leave("i[T] cu")
def skips_empty_by_shape(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[s:e]
        if seg.shape[0] == 0:
            continue
        out[e - 1] = -1
        out[s] = 1
    return out


@leave("i[T] cu")
def guarded_end_write(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        if s < e:
            out[e - 1] = -100
    return out


@leave("i[T] cu")
def not_empty_or_long(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == e or e - s > 5:
            continue
        out[s:e] = ids[s:e].flip(0)
    return out


@leave("i[T] cu")
def only_empty_documents(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if s == e:
            out[s : s + 1] = -5
    return out


@leave("i[T] cu")
def branch_on_length(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if e - s >= 3:
            out[s:e] = ids[s:e].roll(1)
        else:
            out[s:e] = 0
    return out


@leave("i[T] cu")
def conditional_expression_on_length(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        k = 1 if e > s + 1 else 0
        out[s:e] = ids[s:e] + k
    return out


@leave("i[T] cu")
def bounded_assert(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        assert e >= s
        assert e - s < 1000, "too long"
        out[s:e] = ids[s:e].flip(0)
    return out


# ---------------------------------------------------------------- garbage outside the documents


def _zero_tail(ids: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y[: cu[0]] = 0
    y[cu[-1] :] = 0
    return ids, y, cu


def _bad_tail(x: Tensor, y: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    clean = y.abs() + 1
    keep = torch.zeros(y.shape[-1], dtype=torch.bool)
    keep[cu[0] : cu[-1]] = True
    return x, torch.where(keep, clean, torch.tensor(math.nan)), cu


@leave("i[T] i[T] cu", wrap=_zero_tail)
def integer_division_with_zero_padding(ids: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = ids[s:e] // y[s:e]
    return out


@leave("i[T] i[T] cu", wrap=_zero_tail)
def remainder_with_zero_padding(ids: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids)
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = torch.remainder(ids[s:e], y[s:e]) + ids[s:e] % 7
    return out


@leave("i[T] cu")
def integer_division_by_neighbour(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[s:e]
        out[s:e][1:] = seg[1:] // seg[:-1]
    return out


@leave("i[T] cu")
def division_by_filled_roll(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        d = ids[s:e].roll(1)
        d[:1] = 3
        out[s:e] = ids[s:e] // d
    return out


@leave("f[2,T] f[2,T] cu", wrap=_bad_tail)
def nan_in_the_tail(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e] * y[:, s:e] + y[:, s:e].roll(1, -1)
    return out


@leave("f[2,T] f[2,T] cu", wrap=_bad_tail)
def nan_in_the_tail_by_where(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        seg = torch.where(x[:, s:e] > 0, x[:, s:e] / y[:, s:e], y[:, s:e])
        seg[:, -1:] = 0
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu", exact=False)
def square_root_of_differences(x: Tensor, cu: Tensor) -> Tensor:
    # at the slots that the slices leave out, the argument of the root would be negative or 0
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        out[:, s:e][:, 1:] = ((seg[:, 1:] - seg[:, :-1]) ** 2 + 0.25).sqrt() / (seg[:, 1:].abs() + 1)
    return out


@leave("f[2,T] cu")
def reciprocal_of_shifted(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.ones_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e].abs() + 0.5
        out[:, s:e][:, :-1] = seg[:, :-1] / seg[:, 1:]
    return out


@leave("f[2,T] cu", mutates=True)
def in_place_division_with_zeros_outside(x: Tensor, cu: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        y[:, s:e] = 2
    for s, e in zip(cu[:-1], cu[1:]):
        x[:, s:e] /= y[:, s:e]
    return x


# ---------------------------------------------------------------- dtypes and scalars


@leave("d[T] cu")
def decimal_fill_in_float64(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.full_like(x, 0.3)
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[s:e].roll(-1, 0)
        seg[-1:] = 0.1
        out[s:e] = seg
        out[s:e][:1] = 1 / 3
    return out


@leave("d[T] cu")
def decimal_whole_fill_in_float64(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = 0.1
    return out


@leave("i[T] cu")
def large_integers(ids: Tensor, cu: Tensor) -> Tensor:
    big = ids + 2**53
    out = big.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = big[s:e].roll(-1)
        seg[-1:] = 2**60 + 1
        out[s:e] = seg
    return out


@leave("i[T] cu")
def fraction_into_integers(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = ids[s:e] / 2 + 0.75
        out[s:e][:1] = -2.5
    return out


@leave("m[T] cu")
def numbers_into_bools(mask: Tensor, cu: Tensor) -> Tensor:
    out = mask.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = mask[s:e].roll(1)
        seg[:1] = 2
        out[s:e] = seg
    return out


@leave("i[T] cu")
def bytes_wrap(ids: Tensor, cu: Tensor) -> Tensor:
    small = (ids * 3).to(torch.uint8)
    out = torch.zeros_like(small)
    for s, e in zip(cu[:-1], cu[1:]):
        out[s:e] = ids[s:e] * 5 + 200
        out[s:e] += small[s:e].flip(0)
    return out


@leave("b[2,T] cu")
def mixed_precision_in_place(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] += x[:, s:e].float() * 1.3125
        out[:, s:e].mul_(x[:, s:e].double())
    return out


@leave("f[2,T] cu")
def infinity_and_nan_fills(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e].roll(-1, -1)
        seg[:, -1:] = float("-inf")
        seg[:, :1] = float("nan")
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def complex_row(x: Tensor, cu: Tensor) -> Tensor:
    z = torch.complex(x, x.flip(0))
    out = z.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = z[:, s:e].roll(-1, -1) * 1j
    return torch.view_as_real(out)


@leave("f[2,T] cu", wrap=lambda x, cu: (x, cu.to(torch.int16)))
def short_boundaries(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, torch.stack((cu, cu * 0 - 1), 1)))
def boundaries_in_a_column(x: Tensor, table: Tensor) -> Tensor:
    cu = table[:, 0]
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, torch.stack((cu[:-1], cu[1:]), 1)))
def table_of_starts_and_ends(x: Tensor, table: Tensor) -> Tensor:
    out = x.clone()
    for k in range(len(table)):
        out[:, table[k, 0] : table[k, 1]] = x[:, table[k, 0] : table[k, 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, torch.stack((cu[:-1], cu[1:]), 1)))
def rows_of_starts_and_ends(x: Tensor, table: Tensor) -> Tensor:
    out = x.clone()
    for s, e in table.tolist():
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", wrap=lambda x, cu: (x, cu.diff()))
def running_sum_of_lengths(x: Tensor, lens: Tensor) -> Tensor:
    cu = torch.nn.functional.pad(torch.cumsum(lens, 0), (1, 0))
    out = x.clone()
    for i in range(len(lens)):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


# ---------------------------------------------------------------- numbers of more than a document, or of too few slots


@leave("f[T] cu", min_len=1, tail=False)
def numbers_of_one_slot_more(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(e - s + 1) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", min_len=1, tail=False)
def numbers_of_a_part_that_count_down(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([torch.arange(e - 1, s, -1) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())])


@leave("f[T] cu", tail=False)
def tensor_of_sums_that_are_changed(x: Tensor, cu: Tensor) -> Tensor:
    sums = [x[s:e].detach().sum() for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
    before = torch.tensor(sums)
    for value in sums:
        value.mul_(2)
    return before + torch.tensor(sums)


@leave("cu", min_len=1, tail=False)
def first_length_that_is_told(cu: Tensor) -> Tensor:
    ends, found = (cu[1:] - cu[0]).tolist(), []
    for i in range(len(ends)):
        n = ends[i] - ends[i - 1] if i > 0 else 3
        found.append(torch.arange(n))
    return torch.cat(found)


@leave("cu", min_len=1, tail=False)
def one_more_in_the_first(cu: Tensor) -> Tensor:
    ends, found = (cu[1:] - cu[0]).tolist(), []
    for i in range(len(ends)):
        n = ends[i] - ends[i - 1] if i > 0 else ends[i] + 1
        found.append(torch.arange(n))
    return torch.cat(found)


@leave("cu", min_len=1, tail=False)
def first_length_twice(cu: Tensor) -> Tensor:
    ends, found = (cu[1:] - cu[0]).tolist(), []
    for i in range(len(ends)):
        n = ends[i] - ends[i - 1] if i > 0 else 2 * ends[i]
        found.append(torch.arange(n) + i)
    return torch.cat(found)


@leave("cu", min_len=1, tail=False)
def two_numbers_that_contradict_each_other(cu: Tensor) -> Tensor:
    ends, found = (cu[1:] - cu[0]).tolist(), []
    for i in range(len(ends)):
        n, more = (ends[i] - ends[i - 1], ends[i - 1]) if i > 0 else (ends[i], 1)
        found.append(torch.arange(n) + more)
    return torch.cat(found)
