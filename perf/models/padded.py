"""An encoder and a causal decoder as they are written for padded batches: plain torch, nothing knows of packing.

Shapes: B rows of S slots, of which a mask says which hold tokens; hidden size H.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORE = -100


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes; text is bytes. ``longest``: positions that the model knows."""

    hidden: int = 512
    heads: int = 8
    layers: int = 2
    longest: int = 512
    vocabulary: int = 256


class Block(nn.Module):
    """Attention under a mask that broadcasts to ``[B, heads, S, S]`` (True: is seen), and an MLP."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(config.hidden), nn.LayerNorm(config.hidden)
        self.qkv, self.out = nn.Linear(config.hidden, 3 * config.hidden), nn.Linear(config.hidden, config.hidden)
        self.up, self.down = nn.Linear(config.hidden, 4 * config.hidden), nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        rows, length, hidden = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, hidden))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Encoder(nn.Module):
    """Logits ``[B, S, vocabulary]`` of every token's own id, as for masked-token training."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = nn.Embedding(config.longest, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary)

    def visible(self, mask: Tensor) -> Tensor:
        return mask[:, None, None, :]

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """``ids`` int64 ``[B, S]``, ``mask`` bool ``[B, S]`` (True: a token), ``labels`` int64 ``[B, S]``, `IGNORE` at
        padding; the mean loss and the logits."""
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        visible = self.visible(mask)
        for block in self.blocks:
            x = block(x, visible)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE), logits


class Decoder(Encoder):
    """The same with causal attention; its labels are the next tokens."""

    def visible(self, mask: Tensor) -> Tensor:
        length = mask.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        return mask[:, None, None, :] & causal


# === Data ====================================================================================================


@dataclasses.dataclass(frozen=True)
class Batch:
    """``ids`` and ``labels`` int64, ``mask`` bool, all ``[B, S]``, padded at the right."""

    ids: Tensor
    mask: Tensor
    labels: Tensor

    @property
    def tokens(self) -> int:
        return int(self.mask.sum())

    @property
    def padding(self) -> float:
        return 1 - self.tokens / self.mask.numel()

    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.ids, self.mask, self.labels

    def to(self, device: str) -> Batch:
        return Batch(*(field.to(device) for field in self.arguments()))


def batch_of(texts: Iterable[bytes], length: int, *, next_token: bool) -> Batch:
    """One row per text, which is cut where it is longer than ``length``. Labels are the tokens themselves or the next
    ones."""
    kept = [text[:length] for text in texts]
    ids = torch.zeros(len(kept), length, dtype=torch.int64)
    labels, mask = torch.full_like(ids, IGNORE), torch.zeros_like(ids, dtype=torch.bool)
    for row, text in enumerate(kept):
        tokens = torch.tensor(list(text), dtype=torch.int64)
        ids[row, : len(text)] = tokens
        mask[row, : len(text)] = True
        targets = tokens[1:] if next_token else tokens
        labels[row, : targets.numel()] = targets
    return Batch(ids, mask, labels)


def lengths_for(padding: float, rows: int, length: int) -> list[int]:
    """Lengths of ``rows`` documents, evenly spread around their mean, that leave this share of ``[rows, length]``
    empty."""
    mean = (1 - padding) * length
    spread = min(mean, length - mean) / 2
    steps = [2 * row / (rows - 1) - 1 if rows > 1 else 0.0 for row in range(rows)]
    lengths = [round(mean + step * spread) for step in steps]
    lengths[rows // 2] += round(mean * rows) - sum(lengths)
    return lengths
