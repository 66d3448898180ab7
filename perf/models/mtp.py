"""Multi-token prediction on top of a GPT: at depth k, every position predicts the token k + 1 places ahead.

Depth k takes the hidden states of depth k - 1 and the embeddings of the tokens k places ahead, projects both to one
hidden state, and runs one transformer block; embedding and output head are those of the GPT.

Everything is written for rows of one document each: the next token is the next slot of the row. On packed rows these
shifts give the last tokens of each document the first ones of its neighbour.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perf.models.aux_loss import AutoScaledAuxLoss, AuxLoss, DepthLosses
from perf.models.gpt import GPT, Attention, Block, Config, RMSNorm, rotary

IGNORE = -100


# People write "one to the left" in many ways; each field has its own here.


def next_tokens(x: Tensor) -> Tensor:
    """Every field of the row one slot to the left, 0 at its end."""
    rolled = torch.roll(x, shifts=-1, dims=-1)
    rolled.select(-1, -1).fill_(0)
    return rolled


def next_labels(labels: Tensor) -> Tensor:
    """The same with nothing to predict at the end."""
    return torch.cat((labels[..., 1:], torch.full_like(labels[..., :1], IGNORE)), dim=-1)


def next_mask(loss_mask: Tensor) -> Tensor:
    """The same for a mask, into a new tensor."""
    shifted = torch.zeros_like(loss_mask)
    shifted[..., :-1] = loss_mask[..., 1:]
    return shifted


class Output(NamedTuple):
    """What a step gives: sums over tokens, so that rows and micro-batches add up; divide by ``tokens`` of the main
    loss, as megatron's per-token loss does."""

    loss: Tensor
    """0-d: summed cross entropy of the next token. Its gradient contains the depths' losses."""
    tokens: Tensor
    """0-d: how many tokens that is."""
    depth_losses: Tensor
    """[depths]: summed cross entropy per depth; detached."""
    depth_tokens: Tensor
    """[depths]."""
    labels: Tensor
    """[1 + depths, B, T]: what was predicted, ``IGNORE`` where nothing."""
    masks: Tensor
    """[1 + depths, B, T]: which of it counted."""


class MTPLayer(nn.Module):
    """One depth: ``(embeddings, hidden states) -> hidden states``, all ``[B, T, H]``."""

    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.size = config.hidden // config.heads
        self.embedding_norm, self.hidden_norm = RMSNorm(config.hidden), RMSNorm(config.hidden)
        self.project = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.block = Block(config, attention)
        self.norm = RMSNorm(config.hidden)

    def forward(self, embedded: Tensor, hidden: Tensor, position_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        both = torch.cat((self.hidden_norm(hidden), self.embedding_norm(embedded)), dim=-1)
        cos, sin = rotary(position_ids, self.size)
        return self.norm(self.block(self.project(both), cos, sin, cu_seqlens))


class MTPBlock(nn.Module):
    """All depths; ``config.repeat_layer`` makes them share one layer."""

    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.depths = config.depths
        self.layers = nn.ModuleList(
            MTPLayer(config, attention) for _ in range(1 if config.repeat_layer else config.depths)
        )

    def forward(
        self, hidden: Tensor, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, embedding: nn.Module
    ) -> list[Tensor]:
        """Hidden states of every depth."""
        per_depth = []
        for depth in range(self.depths):
            input_ids, position_ids = next_tokens(input_ids), next_tokens(position_ids)
            layer = self.layers[depth % len(self.layers)]
            hidden = layer(embedding(input_ids), hidden, position_ids, cu_seqlens)
            per_depth.append(hidden)
        return per_depth


class MTPModel(nn.Module):
    """GPT with multi-token prediction and its losses."""

    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.config = config
        self.gpt = GPT(config, attention)
        self.mtp = MTPBlock(config, attention)
        self.log: DepthLosses | None = None

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        loss_mask: Tensor,
        cu_seqlens: Tensor,
        scale: Tensor | None = None,
    ) -> Output:
        """One step.

        Args:
            input_ids, position_ids: int64 ``[B, T]``.
            loss_mask: float ``[B, T]``, 0 for tokens that nothing is to be learned from.
            cu_seqlens: ``[N+1]``, for the attention.
            scale: factor of the auxiliary losses' gradients (a loss scale, for instance), 0-d; default 1. Without
                meaning if the configuration takes it from the class attribute.
        """
        hidden = self.gpt(input_ids, position_ids, cu_seqlens)
        labels, mask = next_labels(input_ids), next_mask(loss_mask)
        main_labels, main_mask = labels, mask
        kept_labels, kept_masks, losses, counts = [labels], [mask], [], []
        per_depth = self.mtp(hidden, input_ids, position_ids, cu_seqlens, self.gpt.embedding)
        for depth, states in enumerate(per_depth):
            labels, mask = next_labels(labels), next_mask(mask)
            loss, tokens = self.cross_entropy(states, labels, mask)
            if self.log is not None:
                self.log.save(depth, loss, tokens)
            hidden = self.with_auxiliary(hidden, loss * (self.config.mtp_scale / self.config.depths), scale)
            kept_labels.append(labels)
            kept_masks.append(mask)
            losses.append(loss.detach())
            counts.append(tokens)
        loss, tokens = self.cross_entropy(hidden, main_labels, main_mask)
        return Output(
            loss, tokens, torch.stack(losses), torch.stack(counts), torch.stack(kept_labels), torch.stack(kept_masks)
        )

    def cross_entropy(self, hidden: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Summed loss and number of tokens, both 0-d."""
        logits = self.gpt.logits(hidden).float()
        per_token = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORE)
        return (per_token * mask.flatten()).sum(), mask.sum()

    def with_auxiliary(self, hidden: Tensor, loss: Tensor, scale: Tensor | None) -> Tensor:
        if self.config.scale_by_class_attribute:
            return AutoScaledAuxLoss.apply(hidden, loss)
        return AuxLoss.apply(hidden, loss, loss.new_ones(()) if scale is None else scale)
