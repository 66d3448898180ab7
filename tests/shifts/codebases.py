"""Shifts as whole code bases write them, in our own words."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import packpass
from tests.shifts.harness import LONG, VOCABULARY, WIDTH, rewrites
from tests.shifts.models import Base


def packed_batch() -> tuple[Any, tuple[Tensor, ...]]:
    """A model and its arguments, for the command line."""
    tokens = torch.arange(12).view(1, -1)
    return batch_for_training, (tokens, torch.ones(1, 12), torch.tensor([0, 5, 12], dtype=torch.int32))


class Encoder(Base):
    """Decoder inputs are the labels, one to the right."""

    start, pad = 1, 2

    def shift_right(self, input_ids: Tensor) -> Tensor:
        shifted = input_ids.new_zeros(input_ids.shape)
        shifted[..., 1:] = input_ids[..., :-1].clone()
        shifted[..., 0] = self.start
        shifted.masked_fill_(shifted == -100, self.pad)
        return shifted


@rewrites()
class DecoderInputs(Encoder):
    def forward(self, labels, cu_seqlens):
        return self.logits(self.shift_right(labels))


@rewrites(tails=False)
class DecoderInputsAndLoss(Encoder):
    def forward(self, labels, cu_seqlens):
        decoder_input_ids = self.shift_right(labels)
        logits = self.logits(decoder_input_ids)
        return nn.CrossEntropyLoss(ignore_index=-100, reduction="sum")(logits.view(-1, VOCABULARY), labels.view(-1))


def causal_lm_loss(logits: Tensor, labels: Tensor, vocab_size: int, shift_labels: Any = None, **kwargs: Any) -> Tensor:
    logits = logits.float()
    if shift_labels is None:
        labels = nn.functional.pad(labels, (0, 1), value=-100)
        shift_labels = labels[..., 1:].contiguous()
    logits = logits.view(-1, vocab_size)
    shift_labels = shift_labels.view(-1).to(logits.device)
    return nn.functional.cross_entropy(logits, shift_labels, ignore_index=-100, reduction="sum")


@rewrites(tails=False)
class CausalLM(Base):
    def forward(self, input_ids, labels, position_ids, **kwargs):
        h = self.body(input_ids) + position_ids[..., None] * 0.125
        return causal_lm_loss(self.head(h), labels, VOCABULARY, **kwargs)


@rewrites(tails=False, count=2)
class TimeMix(nn.Module):
    """Token shift in both halves of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.k, self.r = (nn.Parameter(torch.full((1, 1, WIDTH), 0.5)) for _ in range(2))
        self.key, self.receptance = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def mix(self, x: Tensor) -> Tensor:
        xx = self.time_shift(x)
        k = self.key(x * self.k + xx * (1 - self.k))
        return torch.sigmoid(self.receptance(x * self.r + xx * (1 - self.r))) * torch.relu(k) ** 2

    def forward(self, hidden_states, cu_seqlens):
        h = hidden_states + self.mix(self.norm(hidden_states))
        return h + self.mix(self.norm(h))


@rewrites(tails=False)
class TokenShiftDelta(nn.Module):
    def forward(self, hidden_states, scale, cu_seqlens):
        b, _, d = hidden_states.shape
        last = hidden_states.new_zeros(b, 1, d)
        delta = torch.cat((last, hidden_states[:, :-1]), dim=1) - hidden_states
        return hidden_states + delta * scale


@rewrites(tails=False, count=3)
def batch_for_training(tokens, loss_mask, cu_seqlens):
    labels = torch.cat([tokens[:, 1:], tokens.new_full((tokens.shape[0], 1), 0)], -1)
    loss_mask = torch.cat([loss_mask[:, 1:], torch.zeros_like(loss_mask[:, :1])], -1)
    attend = F.pad(tokens.ne(0), (-1, 1), value=False)
    return {"labels": labels, "loss_mask": loss_mask, "attend": attend}


def roll_tensor(tensor: Tensor, shifts: int = -1, dims: int = -1) -> tuple[Tensor, Tensor]:
    rolled = torch.roll(tensor, shifts=shifts, dims=dims)
    rolled.select(dims, shifts).fill_(0)
    return rolled, rolled.sum()


class Layer(nn.Module):
    def __init__(self, embed: nn.Embedding) -> None:
        super().__init__()
        self.embed, self.norm = embed, nn.RMSNorm(WIDTH)
        self.projection = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, ids: Tensor, positions: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ids, _ = roll_tensor(ids)
        positions, _ = roll_tensor(positions)
        e = self.embed(ids).transpose(0, 1) + positions.transpose(0, 1)[..., None] * 0.125
        return self.projection(torch.cat((self.norm(h), self.norm(e)), -1)), ids, positions


@rewrites(tails=False, count=12)
class SequenceFirst(Base):
    """Hidden states ``[T, 1, D]``, three depths, losses with a rolled mask and its sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(self.embed) for _ in range(3))

    def forward(self, input_ids, position_ids, labels, loss_mask, packed_seq_params):
        h = self.body(input_ids).transpose(0, 1).contiguous()
        out = []
        for layer in self.layers:
            h, input_ids, position_ids = layer(input_ids, position_ids, h)
            labels, _ = roll_tensor(labels)
            loss_mask, tokens = roll_tensor(loss_mask)
            logits = F.linear(h, self.embed.weight).transpose(0, 1).contiguous()
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
            out += [(loss * loss_mask).sum(), tokens]
        return out


@rewrites(tails=False, count=2)
class PrefixOfSequence(Base):
    """Every depth predicts from ``h[:, :-d]``."""

    def forward(self, input_ids, cu_seqlens):
        h = self.body(input_ids)
        total = h.new_zeros(())
        for d in (1, 2):
            logits = self.head(h[:, :-d])
            total = total + F.cross_entropy(
                logits.reshape(-1, VOCABULARY), input_ids[:, d:].reshape(-1), reduction="sum"
            )
        return total


@rewrites(tails=False)
class BigramEmbedding(Base):
    def forward(self, tokens, cu_seqlens):
        prev = torch.zeros_like(tokens)
        prev[:, 1:] = tokens[:, :-1]
        return self.embed(tokens) + self.embed(prev)


@rewrites(tails=False, ids="flat")
class FlatTargets(Base):
    """A flat row: ``tokens[1:]`` filled up."""

    def forward(self, ids, cu_seqlens):
        targets = torch.empty_like(ids)
        targets[:-1] = ids[1:]
        targets[-1] = -1
        return F.cross_entropy(self.logits(ids), targets, ignore_index=-1, reduction="sum")


@rewrites(tails=False, rows=LONG, count=3)
class EveryDepthAtOnce(Base):
    """``stack`` of targets for three depths, one loss."""

    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids)
        targets = torch.stack([F.pad(labels[:, d:], (0, d), value=-100) for d in (1, 2, 3)])
        losses = [F.cross_entropy(logits.flatten(0, 1), t.flatten(), reduction="sum") for t in targets.unbind(0)]
        return sum(losses)


@rewrites(tails=False)
class Distillation(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        logits = self.logits(input_ids)
        teacher = logits.detach() * 0.5
        targets = F.pad(labels, (-1, 1), value=-100)
        keep = targets.ne(-100).unsqueeze(-1)
        kl = F.kl_div(logits.log_softmax(-1), teacher.softmax(-1), reduction="none")
        return (kl * keep).sum()


@rewrites(tails=False)
class Accuracy(Base):
    def forward(self, input_ids, labels, cu_seqlens):
        shifted = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)
        valid = shifted != -100
        hits = (self.logits(input_ids).argmax(-1) == shifted) & valid
        return hits.sum(), valid.sum()


@rewrites(tails=False, source="packpass.packed", count=2)
class DeclaredOnTop(Base):
    def forward(self, ids, labels, cu):
        ids = packpass.packed(ids, cu)
        h = self.body(ids)
        previous = F.pad(h, (0, 0, 1, 0))[:, :-1]
        logits = self.head(h + previous)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


@rewrites(source="packpass.packed")
def value_targets(weights, loss_mask, cu_seqlens):
    """The next slot's value, 0 behind the end (as in temporal differences)."""
    values = packpass.packed(weights, cu_seqlens)
    nxt = F.pad(values[:, 1:], (0, 1))
    return loss_mask + 0.5 * nxt - values
