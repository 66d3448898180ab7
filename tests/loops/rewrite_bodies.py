"""Loops that must be rewritten: the operations people put into the body."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .harness import program

# ---------------------------------------------------------------- roll, in every spelling


@program("f[2,T] cu")
def roll_keywords(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = torch.roll(input=x[:, cu[i] : cu[i + 1]], shifts=-1, dims=1)
    return out


@program("f[2,T,3] cu")
def roll_tuples(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = torch.roll(x[:, cu[i] : cu[i + 1]], shifts=(-1,), dims=(-2,))
    return out


@program("i[T] cu")
def roll_flat_row(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = torch.roll(ids[cu[i] : cu[i + 1]], 3)
    return out


@program("i[2,T] cu")
def roll_beyond_documents(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        seg = ids[:, cu[i] : cu[i + 1]].roll(-7, -1)
        seg[:, -7:] = 0
        out[:, cu[i] : cu[i + 1]] = seg
    return out


@program("i[2,T] cu")
def roll_far_wrapped(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = ids[:, cu[i] : cu[i + 1]].roll(11, -1)
    return out


@program("f[T,2] cu")
def roll_two_fill_one(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[cu[i] : cu[i + 1]].roll(-2, 0)
        seg[-1:] = 9  # the slot before the last keeps the wrapped value
        out[cu[i] : cu[i + 1]] = seg
    return out


@program("f[T,2] cu")
def roll_one_fill_three(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[cu[i] : cu[i + 1]].roll(1, 0)
        seg[:3] = 0
        out[cu[i] : cu[i + 1]] = seg
    return out


@program("f[T,2] cu")
def roll_left_fill_front(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[cu[i] : cu[i + 1]].roll(-1, 0)
        seg[:1] = 4
        out[cu[i] : cu[i + 1]] = seg
    return out


@program("f[2,T] cu")
def roll_twice_in_body(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        one = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        one[:, -1:] = 0
        two = one.roll(-1, -1)
        two[:, -1:] = 0
        out[:, cu[i] : cu[i + 1]] = two
    return out


@program("f[2,T] cu")
def fill_before_roll(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[:, cu[i] : cu[i + 1]].clone()
        seg[:, :1] = 5
        out[:, cu[i] : cu[i + 1]] = seg.roll(-1, -1)
    return out


@program("f[2,T] cu")
def flip_roll_flip(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(-1).roll(1, -1).flip(-1)
    return out


# ---------------------------------------------------------------- fills


@program("i[T] cu", min_len=1)
def fill_last_index(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        r = ids[cu[i] : cu[i + 1]].roll(-1, 0)
        r[-1] = -100
        out[cu[i] : cu[i + 1]] = r
    return out


@program("f[2,T] cu", min_len=1)
def fill_select(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        r = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
        r.select(-1, -1).fill_(0)
        out[:, cu[i] : cu[i + 1]] = r
    return out


@program("f[2,T] cu", min_len=1)
def fill_narrow_zero(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        r = x[:, cu[i] : cu[i + 1]].roll(1, -1)
        r.narrow(-1, 0, 1).zero_()
        out[:, cu[i] : cu[i + 1]] = r
    return out


@program("f[2,T] cu", min_len=2)
def fill_second_to_last(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        r = x[:, cu[i] : cu[i + 1]].roll(-2, -1)
        r[..., -1] = 0
        r[..., -2] = 1
        out[:, cu[i] : cu[i + 1]] = r
    return out


@program("f[2,T] cu", min_len=1)
def fill_method_on_index(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        r = torch.roll(x[:, cu[i] : cu[i + 1]], -1, -1)
        r[:, -1].fill_(2.5)
        out[:, cu[i] : cu[i + 1]] = r
    return out


@program("m[T] cu")
def loss_mask_last_token(mask: Tensor, cu: Tensor) -> Tensor:
    out = mask.clone()
    for i in range(len(cu) - 1):
        doc = out[cu[i] : cu[i + 1]]
        doc[-1:] = False
    return out


@program("i[T] cu")
def write_at_the_end_slot(ids: Tensor, cu: Tensor) -> Tensor:
    # an empty document writes into its neighbour (or, at 0, into the last slot of the row): eager does that too
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[cu[i + 1] - 1] = -100
    return out


@program("i[T] cu", min_len=1)
def write_at_the_start_slot(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for s, _e in zip(cu[:-1], cu[1:]):
        out[s] = 1
    return out


# ---------------------------------------------------------------- shifts spelled without roll


@program("i[T] cu", lead_empty=False)
def shift_by_subslices(ids: Tensor, cu: Tensor) -> Tensor:
    labels = ids.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        labels[s : e - 1] = ids[s + 1 : e]
        labels[e - 1] = -100
    return labels


@program("f[2,T] cu")
def shift_inside_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        seg, dst = x[:, cu[i] : cu[i + 1]], out[:, cu[i] : cu[i + 1]]
        dst[:, :-1] = seg[:, 1:]
    return out


@program("f[2,T] cu")
def shift_right_inside_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e][:, 1:] = x[:, s:e][:, :-1]
    return out


@program("i[T] cu")
def shift_by_cat(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        seg = ids[cu[i] : cu[i + 1]]
        out[cu[i] : cu[i + 1]] = torch.cat((seg[1:], seg.new_full((1,), -100)))
    return out


@program("f[2,T] cu", tail=False)
def shift_by_cat_and_append(x: Tensor, cu: Tensor) -> Tensor:
    rows = []
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        rows.append(torch.cat([seg[:, 1:], torch.zeros_like(seg[:, :1])], dim=1))
    return torch.cat(rows, dim=1)


@program("f[2,T] cu")
def shift_by_cat_repeat_last(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        out[:, s:e] = torch.cat([seg[:, 1:], seg[:, -1:]], dim=1)
    return out


@program("f[2,T] cu")
def shift_by_pad(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = F.pad(x[:, cu[i] : cu[i + 1]], (0, 1), value=0.0)[..., 1:]
    return out


@program("i[T] cu")
def shift_by_pad_of_slice(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = F.pad(ids[cu[i] : cu[i + 1]][:-1], (1, 0), value=2)
    return out


# ---------------------------------------------------------------- elementwise work


@program("f[2,T] cu")
def difference_with_previous(x: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for s, e in zip(cu[:-1], cu[1:]):
        seg = x[:, s:e]
        prev = seg.roll(1, -1)
        prev[:, :1] = 0
        out[:, s:e] = seg - prev
    return out


@program("f[2,T] cu", depends=False)
def arithmetic(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = -(x[:, s:e] * 3 - 0.5) / 2 + abs(x[:, s:e])
    return out


@program("f[2,T] cu")
def activations(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        seg = F.relu(x[:, s:e]).clamp(max=2.0)
        out[:, s:e] = torch.roll(seg, -1, -1)
    return out


@program("f[2,T] cu", exact=False)
def smooth_activation(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1], cu[1:]):
        out[:, s:e] = torch.sigmoid(x[:, s:e]).roll(-1, -1)
    return out


@program("f[2,T] cu")
def where_with_scalars(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        seg = x[:, cu[i] : cu[i + 1]]
        out[:, cu[i] : cu[i + 1]] = torch.where(seg > 0, seg.roll(1, -1), 0.25)
    return out


@program("f[2,T] f[2,T] cu")
def two_sources(x: Tensor, y: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[:, s:e] = x[:, s:e] * y[:, s:e] + y[:, s:e].flip(-1)
    return out


@program("f[T,4] f[4] cu")
def whole_row_weight(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[cu[i] : cu[i + 1]] = (x[cu[i] : cu[i + 1]] * w + 1).roll(1, 0)
    return out


@program("f[2,T] f[2,1] cu")
def row_bias(x: Tensor, bias: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].flip(1) + bias
    return out


@program("i[2,T] m[2,T] cu")
def labels_where_mask(ids: Tensor, mask: Tensor, cu: Tensor) -> Tensor:
    out = torch.full_like(ids, -100)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        moved = ids[:, s:e].roll(-1, -1)
        moved[:, -1:] = -100
        out[:, s:e] = torch.where(mask[:, s:e], moved, -100)
    return out


@program("i[2,T] cu")
def same_document_compare(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros_like(ids, dtype=torch.bool)
    for i in range(len(cu) - 1):
        seg = ids[:, cu[i] : cu[i + 1]]
        out[:, cu[i] : cu[i + 1]] = (seg > seg.roll(1, -1)) & (seg != 5)
    return out


@program("i[2,T] cu")
def casts(ids: Tensor, cu: Tensor) -> tuple[Tensor, Tensor]:
    real = torch.zeros_like(ids, dtype=torch.float32)
    half = torch.zeros(ids.shape, dtype=torch.bfloat16)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        real[:, s:e] = ids[:, s:e].float().roll(-1, -1) / 2
        half[:, s:e] = ids[:, s:e].to(torch.bfloat16).roll(1, -1)
    return real, half


@program("i[2,T] cu")
def cast_on_write(ids: Tensor, cu: Tensor) -> Tensor:
    out = torch.zeros(ids.shape, dtype=torch.int32)
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = ids[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


# ---------------------------------------------------------------- positions


@program("i[T] cu")
def positions(ids: Tensor, cu: Tensor) -> Tensor:
    pos = torch.zeros_like(ids)
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        pos[s:e] = torch.arange(e - s, dtype=torch.long)
    return pos


@program("f[T] cu", tail=False)
def positions_cat(x: Tensor, cu: Tensor) -> Tensor:
    lens = (cu[1:] - cu[:-1]).tolist()
    return x * torch.cat([torch.arange(n, device=x.device) for n in lens])


@program("f[2,T] cu")
def positions_times_segment(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[:, s:e] * torch.arange(e - s) + torch.arange(0, e - s, dtype=torch.float32)
    return out


@program("i[T] cu")
def positions_masked(ids: Tensor, cu: Tensor) -> Tensor:
    out = ids.clone()
    for i in range(len(cu) - 1):
        s, e = cu[i], cu[i + 1]
        out[s:e] = torch.where(torch.arange(e - s) < 2, 0, ids[s:e])
    return out


# ---------------------------------------------------------------- checks of the user, which must survive


@program("f[2,T] cu")
def user_assert(x: Tensor, cu: Tensor) -> Tensor:
    assert x.shape[-1] >= 1, "empty row"
    assert cu.dim() == 1
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


@program("f[2,T] cu")
def user_torch_check(x: Tensor, cu: Tensor) -> Tensor:
    torch._assert_async((cu[-1] <= x.shape[-1]).all(), "boundaries beyond the row")
    out = x.clone()
    for i in range(len(cu) - 1):
        out[:, cu[i] : cu[i + 1]] = x[:, cu[i] : cu[i + 1]].roll(-1, -1)
    return out


# ---------------------------------------------------------------- new dimensions


@program("f[2,T] cu")
def batch_dimension_in_the_slice(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        out[:, s:e] = x[None, :, s:e].roll(-1, -1)[0]
    return out


@program("f[T,3] cu")
def new_dimensions_everywhere(x: Tensor, cu: Tensor) -> Tensor:
    out = x.clone()
    for i in range(len(cu) - 1):
        part = x[None, cu[i] : cu[i + 1], None, ..., None]
        out[cu[i] : cu[i + 1]] = part.flip(1)[0, :, 0, :, 0] + x[cu[i] : cu[i + 1], 1, None]
    return out
