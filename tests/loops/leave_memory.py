"""Loops that must keep eager's results: memory that changes around the loop, grad modes around it, odd indexing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import leave

# ---------------------------------------------------------------- boundaries that change after they were read


@leave("f[2,T] cu", mutates=True)
def list_read_then_boundaries_changed(x: Tensor, cu: Tensor) -> Tensor:
    bounds = cu.tolist()
    cu.clamp_(max=3)
    out = x.clone()
    for i in range(len(bounds) - 1):
        out[:, bounds[i] : bounds[i + 1]] = x[:, bounds[i] : bounds[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T] cu", mutates=True)
def copies_then_boundaries_changed(x: Tensor, cu: Tensor) -> Tensor:
    starts, ends = cu[:-1].clone(), cu[1:].clone()
    cu.zero_()
    out = x.clone()
    for s, e in zip(starts, ends):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", mutates=True)
def views_then_boundaries_changed(x: Tensor, cu: Tensor) -> Tensor:
    starts, ends = cu[:-1], cu[1:]
    cu.clamp_(max=5)
    out = x.clone()
    for s, e in zip(starts, ends):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu", mutates=True, tail=False)
def lengths_then_boundaries_changed(x: Tensor, cu: Tensor) -> Tensor:
    lens = cu.diff().tolist()
    cu.mul_(0)
    return torch.cat([seg.roll(1, -1) for seg in x.split(lens, -1)], -1)


@leave("f[2,T] cu", mutates=True)
def length_tensor_then_boundaries_changed(x: Tensor, cu: Tensor) -> Tensor:
    lens = cu[1:] - cu[:-1]
    first = cu[:1].clone()
    cu.mul_(0)
    bounds = torch.cat((first, first + lens.cumsum(0)))
    out = x.clone()
    for i in range(len(bounds) - 1):
        out[:, bounds[i] : bounds[i + 1]] = x[:, bounds[i] : bounds[i + 1]].roll(-1, -1)
    return out


@leave("f[2,T+1] cu", mutates=True)
def boundaries_changed_after_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    cu += 1
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = out[:, cu[i] : cu[i + 1]] * 2
    return out


# ---------------------------------------------------------------- rows that change around the loop


@leave("f[2,T] cu", mutates=True)
def source_changed_between_clone_and_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    x.add_(1)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    x.mul_(2)
    return out


@leave("f[2,T] cu", mutates=True, tail=False)
def source_changed_between_loop_and_cat(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e])
    x.mul_(3)
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def appended_view_of_the_accumulator(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out, parts = x.clone(), []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(out[:, s:e])
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return torch.cat(parts, -1), out


@leave("f[2,T] cu", tail=False)
def appended_then_changed(x: Tensor, cu: Tensor) -> Tensor:
    parts = []
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e].roll(-1, -1)
        parts.append(seg)
        seg[:, -1:] = 0
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def list_filled_by_two_loops(x: Tensor, cu: Tensor) -> Tensor:
    parts: list[Tensor] = []
    for s, e in zip(cu[:-1], cu[1:]):
        parts.append(x[:, s:e].roll(-1, -1))
    for i in range(len(cu) - 1):
        parts.append(x[:, cu[i] : cu[i + 1]].flip(-1))
    return torch.cat(parts, -1)


@leave("f[2,T] cu", tail=False)
def one_list_catted_twice(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    parts = [x[:, s:e].roll(-1, -1) for s, e in zip(cu[:-1], cu[1:])]
    first = torch.cat(parts, -1)
    first += 1
    return first, torch.cat(parts, dim=-1)


@leave("i[2,T] cu")
def accumulator_is_a_row_of_a_buffer(x: Tensor, cu: Tensor) -> Tensor:
    buffer = torch.zeros(3, *x.shape, dtype=x.dtype)
    out = buffer[1]
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return buffer + out


@leave("i[2,T] cu")
def accumulator_is_transposed(x: Tensor, cu: Tensor) -> Tensor:
    buffer = torch.zeros(x.shape[1], x.shape[0], dtype=x.dtype)
    out = buffer.t()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].flip(-1)
    return buffer


@leave("f[2,T] cu")
def accumulator_seen_through_a_detached_alias(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    alias = out.detach()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return alias * 2, out


@leave("f[2,T] cu")
def accumulator_returned_twice(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out, out, out[:]


@leave("f[2,T] cu")
def accumulator_of_the_covered_length(x: Tensor, cu: Tensor) -> Tensor:
    total = int(cu[-1])
    out = x.new_zeros(2, total)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def row_cut_to_the_covered_length(x: Tensor, cu: Tensor) -> Tensor:
    body = x[:, : int(cu[-1])]
    out = body.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = body[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def rows_of_two_lengths(x: Tensor, cu: Tensor) -> Tensor:
    longer = torch.cat((x, x[:, :3] * 0), -1)
    out = longer.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def written_twice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
        out[:, s:e] += out[:, s:e].roll(1, -1)
        out[:, s:e][:, :1] = out[:, s:e][:, -1:]
    return out


@leave("f[2,T] f[2,T] cu", mutates=True)
def swap_of_two_rows(x: Tensor, y: Tensor, cu: Tensor) -> None:
    for s, e in zip(cu[:-1], cu[1:]):
        keep = x[:, s:e].clone()
        x[:, s:e] = y[:, s:e].flip(-1)
        y[:, s:e] = keep.roll(-1, -1)


@leave("f[2,T] f[2,T] cu", mutates=True)
def swap_without_a_copy(x: Tensor, y: Tensor, cu: Tensor) -> None:
    for s, e in zip(cu[:-1], cu[1:]):
        keep = x[:, s:e]
        x[:, s:e] = y[:, s:e] + 1
        y[:, s:e] = keep


@leave("f[2,T] cu")
def tuple_assignment(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.clone(), x * 2
    for s, e in zip(cu[:-1], cu[1:]):
        a[:, s:e], b[:, s:e] = b[:, s:e], a[:, s:e].roll(-1, -1)
    return a, b


@leave("f[2,T] cu", mutates=True)
def in_place_on_the_read_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        seg *= 2
        seg[:, -1:] = 0
        out[:, s:e] = seg.roll(-1, -1)
    return out


@leave("f[2,T] cu", mutates=True)
def in_place_on_a_view_of_the_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        seg[0].mul_(2)
        seg.t()[:1] = 5
        out[:, s:e] = seg
    return out


@leave("i[T] cu", mutates=True)
def same_dtype_cast_is_the_same_memory(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids)
    for s, e in zip(cu[:-1], cu[1:]):
        seg = ids[s:e].long()
        seg[-1:] = 0
        out[s:e] = seg.contiguous().roll(1)
    return out


@leave("f[2,T] cu")
def contiguous_copies_here(x: Tensor, cu: Tensor) -> Tensor:
    # a part of a [2, T] row is not contiguous, so the copy may be written (unless there is only one token or row)
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = (x[:, s:e] + 0).contiguous()
        seg[:, -1:] = 0
        out[:, s:e] = seg
    return out


@leave("i[T] cu", mutates=True, tail=False)
def in_place_on_split_parts(ids: Tensor, cu: Tensor) -> Tensor:
    for part in ids.split(cu.diff().tolist()):
        part.mul_(2)
        part[:1] = 0
    return ids


# ---------------------------------------------------------------- grad modes around the loop


@leave("f[2,T] cu")
def loop_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    with torch.no_grad():
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out * 2


@leave("f[2,T] cu")
def accumulator_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    with torch.no_grad():
        out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[:, s:e].roll(-1, -1)
    return out * 2


@leave("f[2,T] cu")
def list_without_gradients(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    with torch.no_grad():
        scaled = x * 3
        for s, e in zip(cu[:-1], cu[1:]):
            out[:, s:e] = scaled[:, s:e].flip(-1)
    return out + x


@leave("f[2,T] cu")
def detached_source(x: Tensor, cu: Tensor) -> Tensor:
    fixed = x.detach()
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = fixed[:, s:e].roll(-1, -1)
    return out


@leave("f[2,T] cu")
def detached_accumulator(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out.detach()[:, s:e] = x[:, s:e].roll(-1, -1)
    return out * 2, out.detach()


@leave("f[2,T] cu")
def data_attribute(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x.data[:, s:e].roll(-1, -1)
    return out + x


@leave("f[2,T] cu")
def gradient_through_saved_source(x: Tensor, cu: Tensor) -> Tensor:
    y = x * x
    out = y.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = y[:, s:e]
        out[:, s:e] = seg * seg.roll(-1, -1)
    return out * y


@leave("f[T,2] cu", exact=False)
def autocast_around_the_loop(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for s, e in zip(cu[:-1], cu[1:]):
            out[s:e] = x[s:e].roll(-1, 0) * 2
    return out


# ---------------------------------------------------------------- other ways to index


@leave("f[3,T] cu")
def rows_by_index_tensor(x: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    pick = torch.tensor([2, 0])
    out = torch.zeros(2, x.shape[1])
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[pick, s:e]  # a copy: writing to it leaves x alone
        seg[:, -1:] = 0
        out[:, s:e] = seg
    return out, x * 1


@leave("f[3,T] cu")
def rows_written_by_index_tensor(x: Tensor, cu: Tensor) -> Tensor:
    pick = torch.tensor([2, 0])
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[pick, s:e] = x[:2, s:e].roll(-1, -1)
    return out


@leave("f[3,T] cu")
def rows_written_by_mask(x: Tensor, cu: Tensor) -> Tensor:
    rows = torch.tensor([True, False, True])
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[rows, s:e] = 0
    return out


@leave("f[3,T] cu")
def some_rows_by_slice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[1:, s:e] = x[:-1, s:e].roll(-1, -1)
        out[:1, s:e] = 4
    return out


@leave("f[3,T] cu")
def overlapping_rows(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[0, s:e] = x[1, s:e]
        out[-3, s:e] += out[:, s:e].sum(0) * 0 + 1
        out[1:, s:e] = out[:2, s:e].clone()
    return out


@leave("f[2,T,3] cu")
def one_feature(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e, 0] = x[:, s:e, 2].roll(-1, -1)
        out[:, s:e, 1:] = x[:, s:e, :2].flip(1)
    return out


@leave("f[T] cu")
def new_axis(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(2, x.shape[0])
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = x[None, s:e].roll(-1, -1)
    return out


@leave("f[2,T] f[2] cu")
def broadcast_that_only_fits_two_tokens(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = (x[:, s:e].t() * w).t()
    return out


@leave("f[2,T] f[T] cu")
def whole_row_cut_by_length(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    # every document is weighted by the first entries of w, not by those at its own slots
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e] * w[: e - s]
    return out


@leave("f[2,T] f[T] cu")
def lengths_as_indices(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e] + w[e - s - 1 if e > s else 0]
    return out


@leave("f[2,T] cu")
def gather_in_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        order = torch.arange(e - s).flip(0)
        out[:, s:e] = x[:, s:e][:, order]
    return out


@leave("f[2,T] cu")
def index_copy_of_document(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out.index_copy_(1, torch.arange(s, e), x[:, s:e].roll(-1, -1))
    return out


@leave("f[2,T] cu")
def reshape_of_the_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e].reshape(-1).roll(1).view(2, -1) if e > s else 0
    return out


@leave("f[2,T] cu")
def squeezed_one_token_documents(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[:, s:e].squeeze(-1)  # one dimension less for a document of one token
        out[:, s:e] = seg.reshape(2, e - s) * 2
    return out


# ---------------------------------------------------------------- memory that only a name hides


@leave("f[2,T] cu")
def written_where_it_is_told_to_by_position(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = x[:, s:e] * 1.0
        double = seg * 2
        out[:, s:e] = F.relu(seg, True) + double
    return out


@leave("f[2,T] cu", mutates=True)
def the_conjugate_of_a_real_number_is_itself(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        seg = torch.conj_physical(x[:, s:e])
        seg += 1
        out[:, s:e] = seg
    return out


@leave("f[2,T] cu")
def a_sum_of_the_document_that_is_changed_under_another_name(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        total = x[:, s:e].sum(1, keepdim=True)
        same, kept, cast = total.detach(), F.dropout(total, 0.5, False), (x[:, s:e] * 1.0).type_as(total)
        same += 1
        kept *= 2
        cast += total
        out[:, s:e] = cast + total
    return out


@leave("f[T] cu", min_len=1, must_refuse=True, why="an empty document marks slots of others, and last")
def both_ends_marked_otherwise(x: Tensor, cu: Tensor) -> Tensor:
    mark = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        mark[e - 1] = 2.0
        mark[s] = 1.0
    return mark


# === The first rows of what all documents share ==============================================================


@leave("f[T,3] f[T,3] cu", refusal=True)
def first_rows_of_a_table_are_written(x: Tensor, table: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    """Each document sees what those before have added."""
    table, out = table.clone(), torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows = table[: e - s]
        rows.add_(1)
        out[s:e] = x[s:e] + rows
    return out, table


@leave("f[T,3] f[T,3] cu", refusal=True)
def first_rows_by_narrow_are_written(x: Tensor, table: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    table, out = table.clone(), torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows = table.narrow(0, 0, e - s)
        rows[:, 0] += 1
        out[s:e] = x[s:e] + rows
    return out, table


@leave("f[T,3] cu", refusal=True)
def positions_that_go_on_from_document_to_document(x: Tensor, cu: Tensor) -> Tensor:
    positions, out = torch.arange(x.shape[0]), torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        own = positions[: e - s]
        own += 1
        out[s:e] = x[s:e] + own[:, None]
    return out


@leave("f[T,3] f[T,3] cu", tail=False)
def a_copy_of_the_first_rows_is_written(x: Tensor, table: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        rows = table[: e - s].clone()
        rows.add_(1)
        out[s:e] = x[s:e] * rows
    return out


def _rows_and_lengths(x: Tensor, cu: Tensor) -> tuple[Any, ...]:
    lengths = cu.diff()
    width = int(lengths.max()) if len(lengths) else 0
    return torch.arange(float(len(lengths) * width * 2)).reshape(len(lengths), width, 2), lengths


@leave("f[T,3] cu", tail=False, wrap=_rows_and_lengths)
def parts_of_unbound_rows_are_written(rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """With one document torch unrolls the loop, whose row is a view as well."""
    rows, parts = rows.clone(), []
    for row, n in zip(rows.unbind(0), lengths.tolist()):
        part = row[:n]
        part[:, 0] = 0
        parts.append(part)
    return torch.cat(parts), rows
