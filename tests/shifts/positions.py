"""Shifts that are written by an index of positions, or by the parts of a row; and what looks like them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.shifts.harness import LONG, WIDTH, leaves, rewrites

# === Indices made of positions ===============================================================================


@rewrites()
def index_clamped(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    index = (torch.arange(total) + 1).clamp(max=total - 1)
    labels = input_ids[:, index]
    labels[:, -1] = -100
    return labels


@rewrites()
def index_around(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    labels = input_ids[:, (torch.arange(total) + 1) % total].clone()
    labels[:, -1] = -100
    return labels


@rewrites()
def gathered(input_ids, cu_seqlens):
    total = input_ids.size(1)
    index = torch.arange(1, total + 1).clamp(max=total - 1).unsqueeze(0)
    labels = torch.gather(input_ids, 1, index)
    labels[:, -1] = -100
    return labels


@rewrites()
def selected_by_the_smaller(input_ids, cu_seqlens):
    total = input_ids.size(1)
    index = torch.minimum(torch.arange(total) + 1, torch.tensor(total - 1))
    labels = input_ids.index_select(1, index)
    labels[..., -1] = -100
    return labels


@rewrites(ids="flat")
def taken_from_a_longer_row(ids, cu_seqlens):
    longer = torch.cat([ids, torch.tensor([-100])])
    return torch.take(longer, torch.arange(ids.shape[0]) + 1)


@rewrites()
def padded_and_indexed(input_ids, cu_seqlens):
    return F.pad(input_ids, (0, 1), value=-100)[:, torch.arange(1, input_ids.shape[1] + 1)]


@rewrites()
def negative_positions(input_ids, cu_seqlens):
    before = input_ids[:, torch.arange(input_ids.shape[1]) - 1]
    before[:, 0] = 1
    return before


@rewrites(rows=LONG)
def two_back_by_positions(hidden_states, cu_seqlens):
    total = hidden_states.shape[1]
    out = hidden_states.index_select(1, (torch.arange(total) - 2).clamp_min(0))
    return out.masked_fill(~(torch.arange(total) >= 2).view(1, total, 1), 0.0)


@rewrites(rows=LONG)
def chosen_positions(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    places = torch.arange(total, dtype=torch.int32)
    ahead = torch.where(places < total - 2, places + 2, torch.zeros_like(places))
    out = input_ids[:, ahead.long()]
    out[:, -2:] = -100
    return out


@rewrites()
def rolled_positions(hidden_states, cu_seqlens):
    total = hidden_states.shape[1]
    index = torch.arange(total).roll(-1)[None, :, None].expand(1, total, WIDTH)
    out = torch.gather(hidden_states, 1, index)
    out[:, -1] = 0
    return out


@rewrites()
def joined_positions(input_ids, cu_seqlens):
    out = input_ids[:, torch.cat([torch.arange(1, input_ids.shape[1]), torch.tensor([0])])]
    out[:, -1] = 3
    return out


@rewrites()
def written_positions(input_ids, cu_seqlens):
    index = torch.arange(input_ids.shape[1]) + 1
    index[-1] = input_ids.shape[1] - 1
    out = input_ids[:, index]
    out[:, -1] = 3
    return out


@rewrites(2)
def index_of_an_indexed_row(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    index = (torch.arange(total) + 1) % total
    first = input_ids[:, index]
    first[:, -1] = 0
    second = first[:, index]
    second[:, -1] = 0
    return first, second


# === Parts of a row ==========================================================================================


@rewrites()
def split_and_joined(input_ids, cu_seqlens):
    first, rest = input_ids.split([1, input_ids.shape[1] - 1], dim=1)
    return torch.cat([rest, torch.full_like(first, -100)], 1)


@rewrites()
def split_at_a_place(input_ids, cu_seqlens):
    first, rest = torch.tensor_split(input_ids, [1], dim=1)
    return torch.cat([rest, torch.zeros_like(first)], 1)


@rewrites(tails=False)
def split_for_a_loss(logits, labels, cu_seqlens):
    total = labels.shape[1]
    _, targets = labels.split([1, total - 1], 1)
    scores, _ = logits.split([total - 1, 1], 1)
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1), reduction="sum")


@rewrites()
def written_through_a_part(input_ids, cu_seqlens):
    row = input_ids.roll(-1, 1)
    _, last = row.split([row.shape[1] - 1, 1], 1)
    last.fill_(-100)
    return row


# === Left alone ==============================================================================================


@rewrites()
def parts_that_are_written(input_ids, cu_seqlens):
    row = input_ids.clone()
    first, rest = row.split([1, row.shape[1] - 1], 1)
    rest.add_(1)
    return torch.cat((rest, torch.zeros_like(first)), 1)


@rewrites()
def rolled_by_all_but_one(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    labels = torch.roll(input_ids, total - 1, 1)
    labels[:, -1] = -100
    return labels


@rewrites()
def chosen_by_what_comes_next(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    return torch.where(torch.arange(total) + 1 < total, torch.roll(input_ids, -(1 - total), 1), -100)


@rewrites()
def put_into_a_longer_row(input_ids, cu_seqlens):
    longer = input_ids.new_full((input_ids.shape[0], input_ids.shape[1] + 1), -100)
    longer[:, :-1] = input_ids
    return longer[:, 1:]


@rewrites()
def padded_and_cut_in_one(input_ids, cu_seqlens):
    return torch.constant_pad_nd(input_ids, (-1, 1), -100)


@leaves("mask-used")
def filled_by_a_mask_and_its_opposite(input_ids, cu_seqlens):
    keep = torch.ones_like(input_ids)
    keep[:, -1] = 0
    return torch.roll(input_ids, -1, 1) * keep + (1 - keep) * -100


@leaves("mask-used")
def losses_that_the_mask_weighs(input_ids, logits, cu_seqlens):
    keep = torch.arange(input_ids.shape[1]) < input_ids.shape[1] - 1
    labels = torch.where(keep, torch.roll(input_ids, -1, 1), 0)
    losses = F.cross_entropy(logits.mT, labels, reduction="none")
    return (losses * keep).sum() / keep.sum()


@rewrites()
def filled_twice_by_one_mask(input_ids, cu_seqlens):
    keep = torch.arange(input_ids.shape[1]) < input_ids.shape[1] - 1
    return torch.where(keep, torch.roll(input_ids, -1, 1), 0) * keep


@leaves("no-fill")
def goes_around_by_positions(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    return input_ids[:, (torch.arange(total) + 1) % total]


@leaves("no-fill")
def the_last_one_twice(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    return input_ids[:, (torch.arange(total) + 1).clamp(max=total - 1)]


@leaves()
def every_slot_by_its_place(input_ids, cu_seqlens):
    return input_ids[:, torch.arange(input_ids.shape[1])] + 1


@leaves()
def the_first_slots(input_ids, cu_seqlens):
    return input_ids[:, torch.arange(3)]


@leaves()
def places_that_are_data(input_ids, position_ids, cu_seqlens):
    return input_ids[:, position_ids[0]]


@leaves()
def the_last_slot_of_every_document(input_ids, cu_seqlens):
    return input_ids[:, cu_seqlens[1:].long() - 1]


@leaves("moved-slots")
def the_other_way_round(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    return input_ids[:, total - 1 - torch.arange(total)]


@leaves("moved-slots")
def windows_by_positions(input_ids, cu_seqlens):
    total = input_ids.shape[1]
    places = torch.arange(total)[:, None] + torch.arange(1, 4)[None]
    return torch.where(places < total, input_ids[0][places.clamp(max=total - 1)], -100)


@leaves("moved-slots")
def windows_by_unfold(input_ids, cu_seqlens):
    return F.pad(input_ids, (0, 3), value=-100).unfold(1, 4, 1)[..., 1:]


@leaves("moved-slots")
def copied_to_positions(input_ids, cu_seqlens):
    labels = torch.full_like(input_ids, -100)
    labels.index_copy_(1, torch.arange(input_ids.shape[1] - 1), input_ids[:, 1:])
    return labels


@leaves("moved-slots")
def one_channel_of_the_next_slot(hidden_states, cu_seqlens):
    index = torch.arange(hidden_states.shape[1]).roll(-1)[None, :, None]
    return torch.gather(hidden_states, 1, index)


@leaves("no-fill")
def embedded_next_tokens(input_ids, hidden_states, cu_seqlens):
    table = torch.arange(38.0 * WIDTH).view(38, WIDTH)
    return hidden_states[:, :-1] + F.embedding(input_ids, table)[:, 1:]


@leaves("already-bounded")
def masked_where_documents_end(logits, labels, cu_seqlens):
    places = torch.arange(labels.shape[1])
    segments = torch.searchsorted(cu_seqlens[1:].contiguous(), places, right=True)
    picked = logits[:, :-1].log_softmax(-1).gather(-1, labels[:, 1:, None]).squeeze(-1)
    return torch.where((segments[1:] == segments[:-1])[None], picked, 0.0).sum()
