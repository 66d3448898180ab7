"""Programs that look like shifts along packed rows and must be left alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import packpass
from tests.shifts.harness import WIDTH, leaves

# === Looks at the neighbour ==================================================================================


@leaves("no-fill")
def look_ahead(ids, bool_mask, cu_seqlens):
    return bool_mask & (torch.roll(ids, -1, 1) == 7)


@leaves("look-ahead")
def look_ahead_filled(ids, bool_mask, cu_seqlens):
    nxt = torch.roll(ids, -1, 1)
    nxt[:, -1] = 0
    return bool_mask & (nxt == 7)


@leaves()
def changes_of_a_value(ids, cu_seqlens):
    return ids[:, 1:] != ids[:, :-1]


@leaves()
def differences(ids, cu_seqlens):
    return ids[:, 1:] - ids[:, :-1]


@leaves()
def starts_from_positions(position_ids, cu_seqlens):
    return torch.cat(
        [torch.ones_like(position_ids[:, :1], dtype=torch.bool), position_ids[:, 1:] <= position_ids[:, :-1]], 1
    )


# === Counts ==================================================================================================


@leaves()
def segment_ids_by_cumsum(ids, cu_seqlens):
    ends = torch.cumsum((ids == 7).long(), 1)
    ends = torch.roll(ends, 1, 1)
    ends[:, 0] = 0
    return ends


@leaves()
def exclusive_cumsum(weights, cu_seqlens):
    total = weights.cumsum(-1)
    return F.pad(total, (1, 0))[:, :-1]


@leaves()
def lengths_of_documents(cu_seqlens, ids):
    return cu_seqlens[1:] - cu_seqlens[:-1], ids + 1


@leaves()
def boundaries_shifted(cu_seqlens, ids):
    ends = torch.roll(cu_seqlens, -1)
    ends[-1] = cu_seqlens[-1]
    return ends, ids + 1


# === Treats boundaries itself ================================================================================


@leaves("already-bounded")
def fills_document_ends(ids, cu_seqlens):
    y = torch.roll(ids, -1, 1)
    y.index_fill_(1, (cu_seqlens[1:] - 1).long().clamp(min=0), -100)
    return y


@leaves("already-bounded")
def fills_row_and_document_ends(ids, cu_seqlens):
    y = torch.roll(ids, -1, 1)
    y[:, -1] = -100
    y[:, (cu_seqlens[1:] - 1).long().clamp(min=0)] = -100
    return y


@leaves("already-bounded")
def masks_document_ends(ids, cu_seqlens):
    n = ids.shape[1]
    last = torch.zeros(n + 1, dtype=torch.bool).index_fill(0, cu_seqlens.long(), True)[1:]
    y = F.pad(ids, (0, 1), value=-100)[:, 1:]
    return torch.where(last, -100, y)


@leaves("already-bounded")
def compares_segments(ids, cu_seqlens):
    n = ids.shape[1]
    seg = torch.bucketize(torch.arange(n), cu_seqlens, right=True)
    y = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], -100)), 1)
    nxt = torch.cat((seg[1:], seg[-1:]))
    return y.masked_fill(seg != nxt, -100)


@leaves()
def rolls_by_the_op(ids, cu_seqlens):
    return packpass.ops.packed_roll(ids, cu_seqlens, -1, -1, -100)


# === Other dimensions and rows ===============================================================================


@leaves()
def rotate_half_by_roll(hidden_states, cu_seqlens):
    return torch.roll(hidden_states, WIDTH // 2, -1)


@leaves()
def feature_shift(hidden_states, cu_seqlens):
    y = torch.roll(hidden_states, 1, -1)
    y[..., 0] = 0
    return y


@leaves()
def window_shift(images, ids, cu_seqlens):
    return torch.roll(images, shifts=(-1, -1), dims=(1, 2)), ids + 1


@leaves()
def unpacked_tensor(images, ids, cu_seqlens):
    y = torch.roll(images, -1, 1)
    y[:, -1] = 0
    return y, ids + 1


@leaves("ambiguous-rows", input_ids="batch")
def several_rows(input_ids, cu_seqlens):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y


@leaves()
def batch_dimension(ids, cu_seqlens):
    y = torch.roll(torch.cat((ids, ids)), 1, 0)
    y[0] = 0
    return y


@leaves()
def conv_state(hidden_states, scale, cu_seqlens):
    state = hidden_states[:, :4].detach().clone()
    state = torch.roll(state, -1, 1)
    state[:, -1] = scale.detach()
    return state


@leaves("no-fill")
def circular_convolution(hidden_states, cu_seqlens):
    return hidden_states + torch.roll(hidden_states, 1, 1) * 0.5


@leaves("no-fill")
def next_sentence_negative(hidden_states, cu_seqlens):
    return F.cosine_similarity(hidden_states, torch.roll(hidden_states, 1, 1), dim=-1)


@leaves()
def flipped(ids, cu_seqlens):
    y = torch.roll(ids.flip(1).sort(1).values, -1, 1)
    y[:, -1] = 0
    return y


@leaves()
def stepped(ids, cu_seqlens):
    return torch.cat((ids[:, 1::2], ids[:, ::2]), 1)


@leaves("no-fill")
def swapped_halves(ids, cu_seqlens):
    n = ids.shape[1] // 2
    return torch.cat((ids[:, n:], ids[:, :n]), 1)


@leaves("no-fill")
def different_sources(input_ids, labels, cu_seqlens):
    return torch.cat((input_ids[:, 1:], labels[:, :1]), 1)


@leaves("no-fill")
def fill_depends_on_data(ids, cu_seqlens):
    y = torch.roll(ids, -1, 1)
    y[:, -1] = ids[:, 0] + 1
    return y


@leaves()
def edge_replicated(weights, cu_seqlens):
    return F.pad(weights[:, 1:], (0, 1), mode="replicate")


@leaves("no-fill")
def two_fills(ids, cu_seqlens):
    y = torch.roll(ids, -2, 1)
    y[:, -1] = 3
    y[:, -2] = 4
    return y


@leaves()
def too_much_filled(ids, cu_seqlens):
    y = torch.roll(ids, -1, 1)
    y[:, -2:] = 0
    return y


@leaves("no-fill")
def too_little_filled(ids, cu_seqlens):
    y = torch.roll(ids, -2, 1)
    y[:, -1] = 0
    return y + 0


@leaves("no-fill")
def wrong_end_filled(ids, cu_seqlens):
    y = torch.roll(ids, -1, 1)
    y[:, 0] = 0
    return y


# === Losses ==================================================================================================


@leaves("no-fill")
class GatherLogProbabilities(nn.Module):
    def forward(self, logits, labels, cu_seqlens):
        picked = logits[:, :-1].log_softmax(-1).gather(2, labels[:, 1:].unsqueeze(2)).squeeze(2)
        return picked.sum(-1)


@leaves()
def aligned_targets(logits, labels, cu_seqlens):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@leaves("unaligned-targets")
def same_cut_of_both(logits, labels, cu_seqlens):
    return F.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, 1:].flatten())


@leaves("unaligned-targets")
def scores_from_another_cut(logits, labels, cu_seqlens):
    scores = torch.cat((logits[:, :3], logits[:, 4:]), 1)
    return F.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())


@leaves("unaligned-targets")
def targets_after_the_prompt(logits, labels, cu_seqlens):
    return F.cross_entropy(logits[:, 2:-1].flatten(0, 1), labels[:, 3:].flatten())


@leaves()
def probabilities_as_targets(logits, cu_seqlens):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), logits[:, 1:].flatten(0, 1).softmax(-1))


# === Memory ==================================================================================================


@leaves("source-written")
def source_changed_before_use(ids, cu_seqlens):
    x = ids + 0
    windows = x.unfold(1, 1, 1)
    y = F.pad(x, (0, 1))
    windows.add_(1)
    return y[:, 1:] + 0, x


@leaves("running-value")
def counted_along_the_row(ids, cu_seqlens):
    y = torch.roll(ids + torch.arange(ids.shape[1]), -1, 1)
    y[:, -1] = 0
    return y


# === No boundaries ===========================================================================================


@leaves()
def no_boundaries(input_ids):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y


@leaves()
def offsets_are_not_boundaries(input_ids, offsets):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y, offsets + 1


class _Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cu_seqlens", torch.tensor([0, 3, 7, 19], dtype=torch.int32))

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.roll(input_ids, -1, 1)
        y[:, -1] = -100
        return y, self.cu_seqlens.sum()


leaves()(_Buffers)


@leaves("ambiguous-fields", labels="longer")
def rows_of_different_lengths(input_ids, labels, cu_seqlens):
    y = torch.roll(input_ids, -1, 1)
    y[:, -1] = -100
    return y, labels
