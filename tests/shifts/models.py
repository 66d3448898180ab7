"""Shifts inside models and losses: targets, hidden states, several depths, checkpoints, declarations, attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import packpass
from tests.shifts.harness import VOCABULARY, WIDTH, rewrites


class Base(nn.Module):
    """Embedding, one token-wise layer, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def body(self, input_ids: Tensor) -> Tensor:
        h = self.embed(input_ids)
        h = h + self.down(F.gelu(self.up(self.norm(h))))
        return h

    def logits(self, input_ids: Tensor) -> Tensor:
        return self.head(self.body(input_ids))


# === Losses ==================================================================================================


@rewrites(tails=False)
class SliceLoss(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids)
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1), reduction="sum")


@rewrites(tails=False)
class SliceLossContiguous(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        shift_logits = self.logits(input_ids)[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss_fct = nn.CrossEntropyLoss(reduction="sum")
        return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1).to(shift_logits.device))


@rewrites(tails=False)
class PadLoss(Base):
    def forward(self, input_ids, labels, **kwargs):
        logits = self.logits(input_ids).float()
        labels = F.pad(labels, (0, 1), value=-100)
        shift_labels = labels[..., 1:].contiguous().view(-1)
        return F.cross_entropy(logits.view(-1, VOCABULARY), shift_labels, ignore_index=-100, reduction="sum")


@rewrites(tails=False)
class InputsAndTargetsFromOne(Base):
    def forward(self, tokens, cu_seqlens):
        x, y = tokens[:, :-1], tokens[:, 1:]
        logits = self.logits(x)
        return F.cross_entropy(logits.transpose(1, 2), y, ignore_index=-1, reduction="sum")


@rewrites(tails=False, ids="flat")
class InputsAndTargetsFlat(Base):
    def forward(self, ids, cu_seqlens):
        return F.cross_entropy(self.logits(ids[:-1]), ids[1:], reduction="sum")


@rewrites(tails=False)
class NllOfLogSoftmax(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logp = F.log_softmax(self.logits(input_ids), dim=-1)
        return F.nll_loss(logp[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


@rewrites(tails=False)
class LossPerToken(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids)
        targets = torch.roll(labels, -1, 1)
        targets[:, -1] = -100
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), reduction="none")
        valid = targets.view(-1) != -100
        return loss.sum(), valid.sum(), loss


@rewrites(tails=False)
class LabelSmoothing(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids)[:, :-1]
        z = logits.logsumexp(-1).square().sum() * 0
        ce = F.cross_entropy(
            logits.reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1), label_smoothing=0.1, reduction="sum"
        )
        return ce + z


@rewrites(tails=False, count=2)
class MaskedMeanParts(Base):
    def forward(self, input_ids, labels, loss_mask, cu_seqlens):
        labels = torch.cat((labels[:, 1:], labels.new_zeros((1, 1))), 1)
        loss_mask = torch.cat((loss_mask[:, 1:], loss_mask.new_zeros((1, 1))), 1)
        losses = F.cross_entropy(self.logits(input_ids).view(-1, VOCABULARY), labels.view(-1), reduction="none")
        return (losses * loss_mask.view(-1)).sum(), loss_mask.sum()


@rewrites(tails=False)
class VocabularyInTheMiddle(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids).transpose(1, 2)
        targets = F.pad(labels[:, 1:], (0, 1), value=-100)
        return F.cross_entropy(logits, targets, reduction="none")


@rewrites(tails=False)
class TiedEmbeddings(Base):
    def forward(self, input_ids, cu_seqlens):
        h = self.body(input_ids)
        logits = F.linear(h, self.embed.weight)
        y = input_ids.roll(-1, -1)
        y[..., -1] = -100
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")


@rewrites(tails=False)
class ChunkedLoss(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        h = self.body(input_ids).view(-1, WIDTH)
        labels = F.pad(labels, (0, 1), value=-100)[:, 1:].reshape(-1)
        total = h.new_zeros(())
        for hs, ys in zip(h.chunk(3), labels.chunk(3), strict=True):
            total = total + F.cross_entropy(self.head(hs), ys, reduction="sum")
        return total


@rewrites(tails=False)
class LogProbabilitiesWithMask(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        targets = torch.roll(labels, -1, 1)
        targets[:, -1] = -100
        mask = targets != -100
        logp = self.logits(input_ids).log_softmax(-1)
        picked = logp.gather(2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
        return (picked * mask).sum()


@rewrites(tails=False, count=2)
class TwoLosses(Base):
    def forward(self, input_ids, labels, targets, cu_seqlens):
        logits = self.logits(input_ids)[:, :-1].reshape(-1, VOCABULARY)
        a = F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum")
        b = F.cross_entropy(logits, targets[:, 1:].reshape(-1), reduction="sum", ignore_index=0)
        return a + b


@rewrites(tails=False)
class PromptIsMasked(Base):
    def forward(self, input_ids, loss_mask, cu_seqlens):
        logits = self.logits(input_ids)[:, :-1]
        targets = input_ids[:, 1:].clone()
        targets[loss_mask[:, 1:] == 0] = -100
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@rewrites(tails=False)
class TargetsByWhere(Base):
    def forward(self, input_ids, padding_mask, cu_seqlens):
        logits = self.logits(input_ids)[..., :-1, :].transpose(1, 2)
        targets = torch.where(padding_mask[:, 1:], -1, input_ids[:, 1:])
        return F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")


@rewrites(tails=False)
class OffsetVocabulary(Base):
    def forward(self, input_ids, cu_seqlens):
        logits = self.logits(input_ids)
        targets = (input_ids[:, 2:] - 1).reshape(-1)
        return F.cross_entropy(logits[:, :-2].reshape(-1, VOCABULARY), targets, reduction="sum")


@rewrites(tails=False)
class CutAfterFlattening(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids).view(-1, VOCABULARY)
        return F.cross_entropy(logits[:-1], labels.view(-1)[1:], reduction="sum")


# === Hidden states ===========================================================================================


@rewrites()
class TokenShift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.mix = nn.Parameter(torch.ones(WIDTH) * 0.25)

    def forward(self, hidden_states, cu_seqlens):
        xx = self.shift(hidden_states) - hidden_states
        return hidden_states + xx * self.mix


@rewrites()
class TokenShiftCat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden_states, cu_seqlens):
        prev = torch.cat([torch.zeros_like(hidden_states[:, :1]), hidden_states[:, :-1]], dim=1)
        return self.w(torch.cat([hidden_states, prev], -1))


@rewrites()
def token_shift_functional(hidden_states, cu_seqlens, scale):
    return F.pad(hidden_states, (0, 0, 1, -1)) * scale


@rewrites(source="packpass.packed")
def time_first_shift(time_first, cu_seqlens):
    x = packpass.packed(time_first, cu_seqlens, dim=0)
    y = torch.zeros_like(x)
    y[1:] = x[:-1]
    return y


@rewrites(source="packpass.packed")
def channels_first_shift(channels_first, cu):
    x = packpass.packed(channels_first, cu, dim=-1)
    return F.pad(x, (1, 0))[..., :-1]


@rewrites(source="packpass.packed")
def bf16_shift(bf16, cu):
    x = packpass.packed(bf16, cu, dim=1)
    y = torch.roll(x, 1, 1)
    y[:, 0] = 0
    return y


@rewrites(source="packpass.packed")
def inner_dimensions(thd, cu):
    x = packpass.packed(thd, cu, dim=0)
    k = x.flatten(1)
    prev = torch.cat((torch.zeros_like(k[:1]), k[:-1]))
    return (k - prev).view(-1, 2, WIDTH)


@rewrites()
def embeddings_of_next_tokens(input_ids, hidden_states, cu_seqlens):
    nxt = torch.cat([hidden_states[:, 1:], torch.zeros_like(hidden_states[:, -1:])], dim=1)
    return torch.cat([hidden_states, nxt], -1)


@rewrites(count=2)
class Hash(nn.Module):
    """Bigram and trigram embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.two, self.three = nn.Embedding(64, WIDTH), nn.Embedding(64, WIDTH)

    def forward(self, input_ids, cu_seqlens):
        one = F.pad(input_ids, (1, 0))[:, :-1]
        two = F.pad(input_ids, (2, 0))[:, :-2]
        return self.two((input_ids * 3 + one) % 64) + self.three((input_ids * 5 + one * 3 + two) % 64)


# === Multi-token prediction ==================================================================================


def roll_tensor(x: Tensor, shifts: int = -1, dims: int = -1) -> tuple[Tensor, Tensor]:
    rolled = torch.roll(x, shifts=shifts, dims=dims)
    rolled.select(dims, shifts).fill_(0)
    return rolled, rolled.sum()


@rewrites(tails=False, count=8)
class MultiTokenPrediction(Base):
    depths = 2

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, input_ids, position_ids, labels, loss_mask, cu_seqlens):
        h = self.body(input_ids)
        out = []
        for _ in range(self.depths):
            input_ids, _ = roll_tensor(input_ids)
            position_ids, _ = roll_tensor(position_ids)
            labels, _ = roll_tensor(labels)
            loss_mask, count = roll_tensor(loss_mask)
            e = self.embed(input_ids) + position_ids.unsqueeze(-1)
            h = self.projection(torch.cat([self.norm(h), self.norm(e)], -1))
            loss = F.cross_entropy(self.head(h).view(-1, VOCABULARY), labels.view(-1), reduction="none")
            out += [(loss * loss_mask.view(-1)).sum(), count]
        return out


@rewrites(tails=False, count=4)
class DepthsBySlices(Base):
    """``labels[:, d:]`` filled up at the end, for every depth from the same labels."""

    def forward(self, input_ids, labels, cu_seqlens):
        h = self.body(input_ids)
        total = h.new_zeros(())
        for d in range(1, 5):
            target = torch.full_like(labels, -100)
            target[:, :-d] = labels[:, d:]
            total = total + F.cross_entropy(self.head(h).flatten(0, 1), target.flatten(), reduction="sum")
        return total


# === Subgraphs ===============================================================================================


@rewrites()
class Checkpointed(Base):
    def forward(self, hidden_states, cu_seqlens):
        def block(x: Tensor) -> Tensor:
            shifted = torch.roll(x, 1, 1)
            shifted[:, 0] = 0
            return self.down(self.up(shifted))

        return checkpoint(block, hidden_states, use_reentrant=False)


@rewrites(tails=False)
class LossInCheckpoint(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        def score(h: Tensor, y: Tensor) -> Tensor:
            logits = self.head(h)
            return F.cross_entropy(logits[:, :-1].flatten(0, 1), y[:, 1:].flatten(), reduction="sum")

        return checkpoint(score, self.body(input_ids), labels, use_reentrant=False)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None


@rewrites()
def after_an_autograd_function(hidden_states, cu_seqlens):
    h = _Scale.apply(hidden_states, 2.0)
    y = torch.roll(h, -1, 1)
    y[:, -1] = 0
    return y


# === Boundaries ==============================================================================================


@rewrites(source="packpass.packed")
def declared(ids, cu):
    x = packpass.packed(ids, cu)
    y = torch.roll(x, -1, -1)
    y[..., -1] = -100
    return y


@rewrites(source="packpass.packed", count=2)
def declared_once_for_two(ids, hidden_states, cu):
    x = packpass.packed(ids, cu)
    h = F.one_hot(x, VOCABULARY).float() @ hidden_states.new_ones(VOCABULARY, WIDTH) + hidden_states
    y = torch.cat((x[:, 1:], x[:, :1] * 0), 1)
    y = torch.where(torch.arange(y.shape[1]) == y.shape[1] - 1, 0, torch.roll(x, -1, 1))
    p = torch.cat((torch.zeros_like(h[:, :1]), h[:, :-1]), 1)
    return y, p


@rewrites(source="varlen_attention", tails=False)
class Attention(Base):
    def forward(self, ids, cu):
        h = self.body(ids)
        q = h.view(-1, 2, WIDTH // 2)
        a = packpass.ops.varlen_attention(q, q, q, cu, cu, is_causal=True).reshape(h.shape)
        return F.cross_entropy(self.head(a)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


# === Losses on their own =====================================================================================


@rewrites(tails=False)
def loss_of_given_scores(logits, labels, cu_seqlens):
    shift_logits, shift_labels = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, VOCABULARY), shift_labels.view(-1), reduction="sum")


@rewrites(tails=False)
def loss_of_given_scores_with_a_mask(logits, labels, loss_mask, cu_seqlens):
    targets = labels[:, 1:].masked_fill(loss_mask[:, 1:] == 0, -100)
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="sum")
