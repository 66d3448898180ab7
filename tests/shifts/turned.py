"""Shifts of rows that are turned round and back, written to ``out=``, or seen in another shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import packpass

from .harness import leaves, rewrites

# === Turned round ============================================================================================


@rewrites()
def turned_padded_and_turned_back(ids, cu_seqlens):
    return F.pad(ids.flip(1)[:, :-1], (1, 0), value=-100).flip(1)


@rewrites()
def turned_rolled_and_turned_back(hidden_states, ids, cu_seqlens):
    turned = torch.roll(torch.fliplr(hidden_states), 2, dims=1)
    turned[:, :2] = 0
    return torch.fliplr(turned) * 2


@rewrites(source="packpass.packed")
def turned_joined_and_turned_back(flat, cu_seqlens):
    turned = torch.flip(packpass.packed(flat, cu_seqlens), (0,))
    return torch.cat((turned.new_full((1,), -100), turned[:-1])).flipud()


@rewrites()
def the_token_before_of_a_turned_row(ids, cu_seqlens):
    turned = ids.flip(-1)
    return torch.cat([turned[:, 1:], torch.zeros_like(turned[:, :1])], 1).flip(-1)


@leaves("moved-slots")
def turned_and_shifted(ids, cu_seqlens):
    return F.pad(ids.flip(1)[:, :-1], (1, 0), value=-100)


@leaves("moved-slots")
def looked_at_before_it_is_turned_back(ids, cu_seqlens):
    turned = F.pad(ids.flip(1)[:, :-1], (1, 0), value=-100)
    return (turned.cumsum(1) > 0).sum(), turned.flip(1)


@leaves()
def only_turned(ids, cu_seqlens):
    return ids.flip(1), ids.flip(1)[:, 1:]


@leaves()
def turned_twice(ids, cu_seqlens):
    return ids.flip(1).flip(1) * 2


# === Written to memory that is there =========================================================================


@rewrites()
def joined_into_memory(ids, cu_seqlens):
    out = torch.empty_like(ids)
    torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], dim=1, out=out)
    return out


@rewrites()
def joined_into_memory_and_filled(ids, cu_seqlens):
    out = torch.zeros_like(ids)
    torch.cat((ids[:, 1:], ids[:, :1]), 1, out=out)
    out[..., -1] = -100
    return out


@leaves("no-fill")
def joined_into_memory_without_a_fill(ids, cu_seqlens):
    out = torch.empty_like(ids)
    torch.cat((ids[:, 1:], ids[:, :1]), 1, out=out)
    return out


@rewrites()
def joined_into_memory_of_another_dtype(ids, cu_seqlens):
    out = torch.empty(ids.shape, dtype=torch.float64)
    torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], dim=1, out=out)
    return out


@rewrites()
def joined_into_memory_that_was_read_before(ids, cu_seqlens):
    """What is shifted is overwritten before anybody looks at the shift."""
    row = ids.clone()
    out = torch.roll(row, -1, 1)
    out[:, -1] = -100
    torch.cat((ids[:, :1], ids[:, 1:]), 1, out=row)
    return out, row


# === Chosen by values ========================================================================================


@leaves("no-fill")
def chosen_by_values(ids, cu_seqlens):
    return torch.where(ids == 5, -100, torch.roll(ids, -1, 1))


@leaves("no-fill")
def masked_by_another_field(ids, loss_mask, cu_seqlens):
    return torch.roll(ids, -1, 1).masked_fill(loss_mask == 0, -100)


@leaves("no-fill")
def kept_where_a_row_says(ids, labels, cu_seqlens):
    return torch.where(labels != 0, torch.cat((ids[:, 1:], ids[:, :1]), 1), labels)


@leaves("no-fill")
def written_where_values_say(ids, cu_seqlens):
    out = torch.roll(ids, -1, 1)
    out[ids == 5] = -100
    return out


@rewrites()
def filled_and_chosen_by_values(ids, loss_mask, cu_seqlens):
    out = torch.roll(ids, -1, 1)
    out[:, -1] = -100
    return torch.where(loss_mask == 0, -100, out)


# === Pads of other kinds =====================================================================================


@leaves("no-fill")
def the_first_slot_twice(hidden_states, ids, cu_seqlens):
    return F.pad(hidden_states.transpose(1, 2), (1, 0), mode="replicate")[..., :-1].transpose(1, 2)


@leaves()
def padded_at_both_sides_by_its_own(hidden_states, ids, cu_seqlens):
    return F.pad(hidden_states.transpose(1, 2), (1, 1), mode="replicate").sum()


# === Other shapes ============================================================================================


def _square(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    """[1, T, 2, 2]: two dimensions that may be exchanged and have the same shape as before."""
    return packpass.packed(hidden_states[..., :4].unflatten(2, (2, 2)), cu_seqlens, 1)


@rewrites(source="packpass.packed")
def cut_of_exchanged_dimensions(hidden_states, cu_seqlens):
    x = _square(hidden_states, cu_seqlens)
    return torch.cat([x.transpose(2, 3)[:, 1:], torch.zeros_like(x[:, :1])], 1)


@rewrites(source="packpass.packed")
def written_from_exchanged_dimensions(hidden_states, cu_seqlens):
    x = _square(hidden_states, cu_seqlens)
    out = torch.zeros_like(x)
    out[:, :-1] = x.mT[:, 1:]
    return out


@rewrites(source="packpass.packed")
def filled_through_exchanged_dimensions(hidden_states, cu_seqlens):
    out = torch.roll(_square(hidden_states, cu_seqlens), -1, 1)
    out.transpose(2, 3)[:, -1] = 0
    return out.transpose(2, 3)


@leaves("moved-slots")
def padded_exchanged_and_cut(hidden_states, cu_seqlens):
    return F.pad(_square(hidden_states, cu_seqlens), (0, 0, 0, 0, 0, 1)).transpose(2, 3)[:, 1:]


@leaves("moved-slots")
def padded_flattened_and_cut(ids, cu_seqlens):
    return F.pad(ids, (0, 1), value=-100).reshape(-1)[1:].view(1, -1)
