"""More programs to leave alone: edges of runs, segment ids, windows, caches, losses that are no shift."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import packpass
from tests.shifts.harness import LONG, WIDTH, Row, leaves

# === Edges and segment ids ===================================================================================


@leaves("look-ahead")
def starts_of_documents_by_difference(ids, position_ids, cu_seqlens):
    step = position_ids - F.pad(position_ids, (1, 0))[:, :-1]
    return torch.where(step == 1, ids, 0)


@leaves("look-ahead")
def ends_of_masked_runs(ids, cu_seqlens):
    nxt = F.pad(ids > 20, (0, 1), value=False)[:, 1:]
    return (ids > 20) & ~nxt


@leaves("look-ahead")
def last_slots_before_padding(padding_mask, cu_seqlens):
    nxt = torch.roll(~padding_mask, -1, 1)
    nxt[:, -1] = False
    return ~padding_mask & nxt.logical_not()


@leaves("look-ahead")
def edges_by_xor(padding_mask, cu_seqlens):
    return padding_mask ^ F.pad(padding_mask, (1, 0))[:, :-1]


@leaves("running-value")
def segment_ids_from_end_tokens(ids, cu_seqlens):
    after_end = F.pad(ids == 7, (1, 0))[:, :-1]
    return after_end.long().cumsum(-1)


@leaves("running-value")
def segment_ids_from_rolled_ends(ids, cu_seqlens):
    starts = torch.roll((ids == 7).int(), 1, 1)
    starts[:, 0] = 0
    return (starts * 1 + 0).cumsum(1)


@leaves("running-value")
def positions_since_last_end(ids, cu_seqlens):
    starts = F.pad(ids == 7, (1, 0), value=True)[:, :-1]
    at = torch.where(starts, torch.arange(ids.shape[1]), 0)
    return torch.arange(ids.shape[1]) - at.cummax(1).values


@leaves("look-ahead")
def neighbours_in_one_document(ids, cu_seqlens):
    doc = ids // 5
    before = F.pad(doc[:, :-1], (1, 0), value=-1)
    return doc == before


@leaves("look-ahead")
def repeated_tokens(input_ids, cu_seqlens):
    prev = torch.full_like(input_ids, -1)
    prev[:, 1:] = input_ids[:, :-1]
    return input_ids.ne(prev)


@leaves("look-ahead")
def next_is_a_special_token(input_ids, cu_seqlens):
    nxt = F.pad(input_ids[:, 1:], (0, 1), value=0)
    return torch.isin(nxt, torch.tensor([3, 5, 7]))


# === Windows, caches, convolutions ===========================================================================


@leaves()
def causal_convolution(hidden_states, cu_seqlens):
    x = F.pad(hidden_states.transpose(1, 2), (3, 0))
    return F.conv1d(x, torch.ones(WIDTH, 1, 4), groups=WIDTH).transpose(1, 2)


@leaves(rows=LONG)
def sliding_windows(hidden_states, cu_seqlens):
    return hidden_states.unfold(1, 3, 1).sum(-1)


@leaves(rows=LONG)
def cache_is_full(hidden_states, scale, cu_seqlens):
    cache = torch.zeros(1, 5, WIDTH)
    cache = torch.cat((cache[:, 1:], hidden_states[:, -1:]), 1)
    return cache * scale


@leaves()
def relative_shift(hidden_states, cu_seqlens):
    scores = hidden_states @ hidden_states.transpose(1, 2)
    n = scores.shape[1]
    return F.pad(scores, (1, 0)).reshape(1, n + 1, n)[:, 1:]


@leaves()
def rotary_halves(thd, cu_seqlens):
    return torch.cat((-thd[..., WIDTH // 2 :], thd[..., : WIDTH // 2]), -1)


@leaves()
def shifted_heads(thd, cu_seqlens):
    y = torch.zeros_like(thd)
    y[:, 1:] = thd[:, :-1]
    return y


@leaves(rows=LONG)
def average_of_neighbours(hidden_states, cu_seqlens):
    return (hidden_states[:, 1:] + hidden_states[:, :-1]) / 2


@leaves(rows=LONG)
def smoothness_penalty(hidden_states, cu_seqlens):
    return F.mse_loss(hidden_states[:, 1:], hidden_states[:, :-1])


@leaves(rows=LONG)
def pooling_of_pairs(hidden_states, cu_seqlens):
    n = hidden_states.shape[1] // 2 * 2
    return hidden_states[:, 0:n:2] + hidden_states[:, 1:n:2]


@leaves("no-fill")
def doubly_wrapped(ids, cu_seqlens):
    return torch.roll(torch.roll(ids, -1, 1), 3, 1) + 1


@leaves("no-fill")
def contrastive_negatives(logits, hidden_states, cu_seqlens):
    other = hidden_states.roll(1, dims=1)
    return F.cosine_similarity(hidden_states, other, dim=-1)


@leaves()
def whole_roll_of_the_batch(batch, cu_seqlens):
    return torch.roll(batch, 1)


@leaves()
def roll_in_two_dimensions(hidden_states, cu_seqlens):
    y = torch.roll(hidden_states, (1, 1), (1, 2))
    y[:, 0] = 0
    return y


@leaves("no-fill")
def masked_by_a_look_ahead(input_ids, labels, cu_seqlens):
    ends = torch.roll(labels, -1, 1) == 7
    return torch.roll(input_ids, 1, 1).masked_fill(ends, 0)


@leaves("no-fill")
def masked_and_looked_at(input_ids, loss_mask, cu_seqlens):
    y, mask = torch.roll(input_ids, -1, 1), torch.roll(loss_mask, -1, 1)
    y[mask == 0] = -100
    return y, mask.cumsum(1)


@leaves("no-fill")
class LearnedStart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.ones(1, 1, WIDTH))

    def forward(self, hidden_states, cu_seqlens):
        return torch.cat((self.start, hidden_states[:, :-1]), 1) * 2


@leaves("no-fill")
def first_value_again(weights, cu_seqlens):
    values = packpass.packed(weights, cu_seqlens)
    return torch.cat((values[:, :1], values[:, :-1]), 1) + values


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.roll(x, 1, 1)
        y[:, 0] = 0
        return y

    @staticmethod
    def backward(ctx, g):
        y = torch.roll(g, -1, 1)
        y[:, -1] = 0
        return y


@leaves("autograd-function")
def inside_an_autograd_function(hidden_states, cu_seqlens):
    return _Shift.apply(hidden_states) * 2


@leaves("autograd-function")
def declared_inside_of_a_gradient(hidden_states, cu_seqlens):
    def energy(h):
        h = packpass.packed(h, cu_seqlens, dim=1)
        return (F.pad(h, (0, 0, 1, 0))[:, :-1] * h).pow(2).sum()

    return torch.func.grad(energy)(hidden_states.detach())


@leaves("autograd-function")
def declared_inside_of_vmap(hidden_states, cu_seqlens):
    def one(h):
        h = packpass.packed(h, cu_seqlens, dim=0)
        return F.pad(h, (0, 0, 1, 0))[:-1] * h

    return torch.vmap(one)(hidden_states.detach())


# === Losses ==================================================================================================


@leaves("no-fill")
class PolicyGradient(nn.Module):
    def forward(self, logits, input_ids, loss_mask, cu_seqlens):
        logp = torch.log_softmax(logits[:, :-1], -1)
        picked = torch.gather(logp, 2, input_ids[:, 1:, None])[..., 0]
        return (picked * loss_mask[:, 1:]).sum()


@leaves("no-fill")
class ChosenAndRejected(nn.Module):
    def forward(self, logits, labels, cu_seqlens):
        labels = labels[:, 1:].clone()
        logits = logits[:, :-1, :]
        mask = labels != -100
        labels[labels == -100] = 0
        picked = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (picked * mask).sum(-1)


@leaves()
def weighted_targets(logits, labels, weights, cu_seqlens):
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, :-1].flatten(), reduction="none")
    return loss * weights[:, 1:].flatten()


@leaves("unaligned-targets")
def targets_of_something_else(logits, labels, cu_seqlens):
    other = logits.flip(1)[:, :-1]
    return F.cross_entropy(other.flatten(0, 1), labels[:, 1:].flatten())


@leaves("unaligned-targets")
def pooled_scores(logits, labels, cu_seqlens):
    scores = logits.cumsum(1)[:, :-1]
    return F.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())


@leaves("unaligned-targets")
def shifted_scores(logits, labels, cu_seqlens):
    return F.cross_entropy(logits[:, 1:].roll(1, 1).flatten(0, 1), labels[:, 1:].flatten())


@leaves("already-bounded")
def targets_masked_at_ends(logits, labels, cu_seqlens):
    n = labels.shape[1]
    first = torch.zeros(n + 1, dtype=torch.bool).index_fill(0, cu_seqlens.long(), True)[:n]
    targets = labels[:, 1:].masked_fill(first[1:], -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())


@leaves()
def targets_of_changes(logits, labels, cu_seqlens):
    targets = torch.where(labels[:, 1:] == labels[:, :-1], -100, labels[:, 1:])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten())


@leaves()
def targets_to_the_right(logits, labels, cu_seqlens):
    return F.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, :-1].flatten())


# === Rolled elsewhere ========================================================================================


@leaves()
def rolled_along_two_dimensions_before(hidden_states, cu_seqlens):
    rolled = torch.roll(packpass.packed(hidden_states, cu_seqlens, 1), (1, 2), (1, 2))
    return F.pad(rolled[:, 1:], (0, 0, 0, 1))


@leaves()
def rolled_by_a_size_before(hidden_states, cu_seqlens):
    rolled = torch.roll(packpass.packed(hidden_states, cu_seqlens, 1), hidden_states.shape[1] // 2, 1)
    return F.pad(rolled[:, 1:], (0, 0, 0, 1))


# === Already right ===========================================================================================


@leaves()
def gathers_by_document(ids, cu_seqlens):
    at = torch.arange(ids.shape[1])
    ends = cu_seqlens[1:][torch.bucketize(at, cu_seqlens[1:-1], right=True)] - 1 if cu_seqlens.numel() > 2 else at[-1:]
    return ids[:, torch.minimum(at + 1, ends)]


@leaves()
def loops_over_documents(ids, cu):
    y = ids.clone()
    for s, e in zip(cu.tolist()[:-1], cu.tolist()[1:], strict=True):
        if e > s:
            y[:, s:e] = torch.roll(ids[:, s:e], -1, 1)
    return y


@leaves()
def packed_ops_only(ids, labels, cu_seqlens):
    a = packpass.ops.packed_roll(ids, cu_seqlens, -1, 1, 0)
    return a, packpass.ops.packed_roll(labels, cu_seqlens, -1, 1, -100)


@leaves("already-bounded")
def masks_by_segment_ids(ids, cu_seqlens):
    n = ids.shape[1]
    seg = packpass.ops.segment_ids(cu_seqlens, n)
    y = F.pad(ids[:, 1:], (0, 1), value=-100)
    other = F.pad(seg[1:], (0, 1), value=-1) != seg
    return torch.where(other, -100, y)


# === Splits, and distances that are parts of the row =========================================================


@leaves("no-fill")
def split_and_turned_round(input_ids, cu_seqlens):
    first, rest = input_ids.split([1, input_ids.shape[1] - 1], 1)
    return torch.cat((rest, first), 1)


@leaves()
def halves_of_features(hidden_states, cu_seqlens):
    first, rest = hidden_states.split([WIDTH // 2, WIDTH // 2], -1)
    return torch.cat((-rest, first), -1)


@leaves()
def second_half_by_chunk(input_ids, cu_seqlens):
    first, rest = input_ids[:, : input_ids.shape[1] // 2 * 2].chunk(2, 1)
    return torch.cat((rest, torch.zeros_like(first)), 1)


@leaves("unknown-bounds")
def second_half_of_the_row(input_ids, cu_seqlens):
    half = (input_ids.shape[1] + 1) // 2
    return torch.cat((input_ids[:, half:], torch.zeros_like(input_ids[:, :half])), 1)


@leaves("unknown-bounds")
def last_slot_in_front(input_ids, cu_seqlens):
    return torch.cat((input_ids[:, -1:], torch.zeros_like(input_ids[:, 1:])), 1)


@leaves("unknown-bounds", rows=(Row((30, 21, 29)),))
def a_quarter_of_a_long_row(input_ids, cu_seqlens):
    quarter = input_ids.shape[1] // 4
    return F.pad(input_ids, (quarter, 0))[:, : input_ids.shape[1]]
