"""One shift in every spelling people use, on ids, labels and masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.shifts.harness import LONG, rewrites


@rewrites()
def roll_then_select_fill(input_ids, cu_seqlens):
    labels = torch.roll(input_ids, shifts=-1, dims=-1)
    labels.select(-1, -1).fill_(-100)
    return labels


@rewrites()
def roll_then_assign(input_ids, cu_seqlens):
    labels = input_ids.roll(-1, 1)
    labels[..., -1] = 0
    return labels


@rewrites()
def roll_without_a_dimension(input_ids, cu_seqlens):
    labels = torch.roll(input_ids, -1)
    labels[0, -1] = -100
    return labels


@rewrites()
def roll_tuple_arguments(input_ids, cu_seqlens):
    labels = torch.roll(input_ids, shifts=(-1,), dims=(1,))
    labels[:, -1:] = -100
    return labels


@rewrites(ids="flat")
def roll_of_a_vector(ids, cu_seqlens):
    nxt = torch.roll(ids, -1)
    nxt[-1] = 2
    return nxt


@rewrites(ids="flat")
def roll_of_a_vector_last_dim(ids, cu_seqlens):
    nxt = ids.roll(shifts=-1, dims=0)
    nxt[ids.shape[0] - 1] = 2
    return nxt


@rewrites(token_mask="bool_mask")
def roll_bool_mask(token_mask, cu_seqlens):
    m = torch.roll(token_mask, -1, -1)
    m[:, -1] = False
    return m


@rewrites()
def roll_padding_mask_with_true(padding_mask, cu_seqlens):
    m = torch.roll(padding_mask, -1, -1)
    m[:, -1] = True
    return m


@rewrites()
def pad_then_slice(labels, cu_seqlens):
    return F.pad(labels, (0, 1), value=-100)[..., 1:]


@rewrites()
def pad_then_slice_contiguous(labels, cu_seqlens):
    labels = F.pad(labels, (0, 1), value=-100)
    shift_labels = labels[..., 1:].contiguous()
    return shift_labels.view(-1)


@rewrites()
def slice_then_pad(labels, cu_seqlens):
    return F.pad(labels[:, 1:], (0, 1), value=-100)


@rewrites()
def pad_negative(labels, cu_seqlens):
    return F.pad(labels, (-1, 1), mode="constant", value=-100)


@rewrites()
def constant_pad_module(labels, cu_seqlens):
    return nn.ConstantPad1d((-1, 1), -100)(labels)


@rewrites()
def pad_by_keyword(labels, cu_seqlens):
    return F.pad(input=labels[..., 1:], pad=[0, 1], mode="constant", value=-100.0)


@rewrites()
def cat_full_like(labels, cu_seqlens):
    return torch.cat((labels[..., 1:], torch.full_like(labels[:, :1], -100)), 1)


@rewrites()
def cat_new_full(labels, cu_seqlens):
    return torch.cat([labels[:, 1:], labels.new_full((labels.size(0), 1), -100)], dim=-1)


@rewrites()
def cat_full(labels, cu_seqlens):
    end = torch.full((1, 1), -100, dtype=labels.dtype, device=labels.device)
    return torch.cat([labels[:, 1:], end], dim=1)


@rewrites()
def cat_of_one_tensor(labels, cu_seqlens):
    return torch.cat([labels[:, 1:], torch.tensor([[-100]])], dim=1)


@rewrites(ids="flat")
def cat_zeros_vector(ids, cu_seqlens):
    return torch.cat([ids[1:], ids.new_zeros(1)])


@rewrites(ids="flat")
def hstack_vector(ids, cu_seqlens):
    return torch.hstack([ids[1:], ids.new_zeros(1)])


@rewrites()
def hstack_row(labels, cu_seqlens):
    return torch.hstack((labels[:, 1:], torch.full_like(labels[:, :1], -100)))


@rewrites()
def column_stack_row(labels, cu_seqlens):
    return torch.column_stack((labels[:, 1:], torch.full_like(labels[:, :1], -100)))


@rewrites()
def concat_alias(labels, cu_seqlens):
    return torch.concat((labels[:, 1:], -100 * torch.ones_like(labels[:, :1])), axis=1)


@rewrites()
def assign_into_full(input_ids, cu_seqlens):
    lab = torch.full_like(input_ids, -100)
    lab[:, :-1] = input_ids[:, 1:]
    return lab


@rewrites()
def assign_into_empty(input_ids, cu_seqlens):
    lab = torch.empty_like(input_ids)
    lab[:, :-1] = input_ids[:, 1:]
    lab[:, -1] = -100
    return lab


@rewrites()
def assign_into_clone(input_ids, cu_seqlens):
    lab = input_ids.clone()
    lab[:, :-1] = input_ids[:, 1:]
    lab[:, -1] = -100
    return lab


@rewrites()
def assign_into_itself(input_ids, cu_seqlens):
    lab = input_ids.clone()
    lab[..., :-1] = lab[..., 1:].clone()
    lab[..., -1:] = -100
    return lab


@rewrites()
def fill_first_assign_later(input_ids, cu_seqlens):
    lab = torch.zeros(input_ids.shape, dtype=torch.long)
    lab[:, -1] = 9
    lab[:, : input_ids.shape[1] - 1] = input_ids[:, 1:]
    return lab


@rewrites()
def assign_through_an_early_view(input_ids, cu_seqlens):
    lab = torch.roll(input_ids, -1, 1)
    last = lab[:, -1:]
    flat = lab.view(-1)
    last.fill_(-100)
    return lab, flat + 1


@rewrites()
def empty_that_is_filled_at_once(input_ids, cu_seqlens):
    lab = torch.empty_like(input_ids).fill_(-100)
    lab[:, :-1] = input_ids[:, 1:]
    return lab


@rewrites()
def empty_that_is_zero_at_once(input_ids, cu_seqlens):
    lab = torch.empty(input_ids.shape, dtype=input_ids.dtype).zero_()
    lab.narrow(1, 0, input_ids.size(1) - 1).copy_(input_ids[:, 1:])
    return lab


@rewrites()
def narrow_copy(input_ids, cu_seqlens):
    n = input_ids.size(1)
    y = torch.empty_like(input_ids)
    y.narrow(1, 0, n - 1).copy_(input_ids.narrow(1, 1, n - 1))
    y.narrow(1, n - 1, 1).fill_(-100)
    return y


@rewrites()
def where_last_position(input_ids, cu_seqlens):
    n = input_ids.shape[1]
    return torch.where(torch.arange(n) == n - 1, -100, torch.roll(input_ids, -1, 1))


@rewrites()
def where_before_last(input_ids, cu_seqlens):
    n = input_ids.shape[1]
    keep = (torch.arange(n, device=input_ids.device) < n - 1).unsqueeze(0)
    return torch.where(keep, torch.roll(input_ids, -1, 1), torch.full_like(input_ids, -100))


@rewrites()
def masked_fill_last(input_ids, cu_seqlens):
    n = input_ids.shape[-1]
    last = torch.arange(n)[None] == n - 1
    return torch.roll(input_ids, -1, 1).masked_fill(last, -100)


@rewrites()
def masked_fill_in_place(input_ids, cu_seqlens):
    n = input_ids.shape[-1]
    y = torch.roll(input_ids, -1, 1)
    y.masked_fill_(torch.arange(n).eq(n - 1).view(1, -1), -100)
    return y


@rewrites()
def mask_by_a_written_mask(input_ids, cu_seqlens):
    keep = torch.ones_like(input_ids, dtype=torch.bool)
    keep[:, -1] = False
    return torch.where(keep, torch.roll(input_ids, -1, 1), -100)


@rewrites()
def index_fill_last(input_ids, cu_seqlens):
    n = input_ids.shape[1]
    y = torch.roll(input_ids, -1, 1)
    return y.index_fill(1, torch.tensor([n - 1]), -100)


@rewrites()
def select_scatter_last(input_ids, cu_seqlens):
    y = torch.roll(input_ids, -1, 1)
    return torch.select_scatter(y, torch.full_like(y[:, 0], -100), 1, -1)


@rewrites()
def slice_scatter_last(input_ids, cu_seqlens):
    y = torch.full_like(input_ids, -100)
    return torch.slice_scatter(y, input_ids[:, 1:], dim=1, start=0, end=-1)


@rewrites()
def multiply_by_mask(input_ids, cu_seqlens):
    keep = torch.ones_like(input_ids)
    keep[:, -1] = 0
    return torch.roll(input_ids, -1, 1) * keep


@rewrites()
def unsqueezed_after(input_ids, cu_seqlens):
    y = torch.roll(input_ids.squeeze(0), -1)
    y[-1] = -100
    return y.unsqueeze(0)


@rewrites()
def flattened_first(input_ids, cu_seqlens):
    y = input_ids.reshape(-1).roll(-1, 0)
    y[-1] = -100
    return y.view_as(input_ids)


@rewrites()
def column_layout(input_ids, cu_seqlens):
    y = input_ids.t().contiguous()
    y = torch.roll(y, -1, 0)
    y[-1] = 0
    return y.transpose(0, 1)


@rewrites()
def int32_first(input_ids, cu_seqlens):
    y = torch.roll(input_ids.int(), -1, -1)
    y[..., -1] = -100
    return y.long()


@rewrites()
def right_shift_clone(labels, cu_seqlens):
    shifted = labels.new_zeros(labels.shape)
    shifted[..., 1:] = labels[..., :-1].clone()
    shifted[..., 0] = 7
    shifted.masked_fill_(shifted == -100, 3)
    return shifted


@rewrites()
def right_shift_cat(labels, cu_seqlens):
    bos = torch.full((labels.shape[0], 1), 1, dtype=labels.dtype)
    return torch.cat([bos, labels[:, :-1]], dim=1)


@rewrites()
def right_shift_pad(labels, cu_seqlens):
    return F.pad(labels, (1, 0), value=2)[:, :-1]


@rewrites()
def shift_by_three(labels, cu_seqlens):
    y = torch.roll(labels, -3, -1)
    y[..., -3:] = -100
    return y


@rewrites(rows=LONG, tails=False)
def shift_by_a_python_variable(labels, cu_seqlens):
    k = 2
    return torch.cat([labels[:, k:], labels.new_full((1, k), -100)], 1)


@rewrites()
def out_of_place_chain(labels, cu_seqlens):
    y = labels.roll(-1, 1)
    y = torch.cat([y[:, :-1], torch.zeros_like(y[:, -1:])], 1)
    return y.float() * 2


@rewrites(rows=LONG, tails=False)
def two_step_fill(labels, cu_seqlens):
    y = torch.roll(labels, -2, 1)
    y[:, -1] = 5
    y[:, -2] = 5
    return y


@rewrites()
def source_changed_after_the_copy(labels, cu_seqlens):
    x = labels.clone()
    y = F.pad(x, (0, 1))
    x.add_(1)
    return y[:, 1:] + 0, x


@rewrites()
def source_changed_between_the_writes(labels, cu_seqlens):
    x = labels.clone()
    y = torch.zeros_like(x)
    y[:, :-1] = x[:, 1:]
    x.mul_(2)
    y[:, -1] = 5
    return y + x


@rewrites()
def half_used(labels, cu_seqlens, weights):
    y = torch.roll(labels, -1, 1)
    y[:, -1] = 0
    return (y != 0).float() * weights, y


@rewrites(count=2)
def labels_and_mask_then_ignore(labels, loss_mask, cu_seqlens):
    labels = torch.roll(labels, -1, -1)
    mask = torch.roll(loss_mask, -1, -1)
    mask[:, -1] = 0
    labels[:, -1] = 0
    labels[mask == 0] = -100
    return labels


@rewrites(count=2)
def rolled_together(input_ids, loss_mask, cu_seqlens):
    labels = torch.roll(input_ids, shifts=-1, dims=1)
    mask = torch.roll(loss_mask.bool(), shifts=-1, dims=1)
    labels[~mask] = -100
    return labels


@rewrites(count=2)
def rolled_together_where(input_ids, loss_mask, cu_seqlens):
    labels, mask = input_ids.roll(-1, -1), loss_mask.roll(-1, -1)
    return torch.where(mask == 0, -100, labels)


@rewrites(count=2)
def rolled_together_masked_fill(input_ids, loss_mask, cu_seqlens):
    labels, mask = input_ids.roll(-1, -1), loss_mask.roll(-1, -1)
    return labels.masked_fill(mask.logical_not(), -100)


@rewrites()
def in_front_of_vmap(hidden_states, cu_seqlens):
    shifted = F.pad(hidden_states, (0, 0, 1, 0))[:, :-1]
    return torch.vmap(lambda h: h * 2)(shifted)


# === Splits ==================================================================================================


@rewrites()
def split_in_front(input_ids, cu_seqlens):
    first, rest = input_ids.split([1, input_ids.shape[1] - 1], 1)
    return torch.cat((rest, torch.full_like(first, -100)), 1)


@rewrites()
def split_by_a_place(hidden_states, cu_seqlens):
    first, rest = torch.tensor_split(hidden_states, [1], dim=1)
    return torch.cat((rest, torch.zeros_like(first)), 1)


@rewrites()
def split_of_a_shift(hidden_states, cu_seqlens):
    """The shift is put right; its parts are those of the new row."""
    shifted = F.pad(hidden_states, (0, 0, 1, 0))[:, :-1]
    first, rest = shifted.split([1, shifted.shape[1] - 1], 1)
    return torch.cat((first * 2, rest * 2), 1)
