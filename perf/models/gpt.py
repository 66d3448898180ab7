"""A compact GPT: RMSNorm, rotary positions from ``position_ids``, attention inside documents, a gated MLP.

Shapes: B rows of T tokens, hidden size H, vocabulary V. The attention is given by the caller, as a function of packed
queries, keys and values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# (q, k, v, cu_seqlens) -> out; q, k, v and out are [T, heads, head size]
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of a model. ``depths`` further tokens are predicted after the next one (see :mod:`perf.models.mtp`)."""

    vocabulary: int = 256
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    depths: int = 3
    repeat_layer: bool = False
    """One MTP layer is used for every depth."""
    mtp_scale: float = 0.3
    """Weight of the mean of the depths' losses."""
    scale_by_class_attribute: bool = False
    """Which of the two forms of the auxiliary loss scaler is used."""


class RMSNorm(nn.Module):
    """Written out, because ``nn.RMSNorm`` of a CPU build is no faster and this is what most code bases have."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotary(position_ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[B, T, 1, size]`` of the angles of ``position_ids`` ``[B, T]``."""
    steps = torch.arange(0, size, 2, device=position_ids.device, dtype=torch.float32)
    angles = position_ids[..., None].float() * 10_000.0 ** (-steps / size)
    angles = torch.cat((angles, angles), -1)[:, :, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x`` ``[B, T, heads, size]``."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class SelfAttention(nn.Module):
    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)
        self.attention = attention

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = self.attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_seqlens)
        return self.out(out.reshape(x.shape))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, 4 * config.hidden, bias=False)
        self.gate = nn.Linear(config.hidden, 4 * config.hidden, bias=False)
        self.down = nn.Linear(4 * config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(config.hidden), RMSNorm(config.hidden)
        self.attention, self.mlp = SelfAttention(config, attention), MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, cu_seqlens)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Token embedding, blocks and output head; ``forward`` gives hidden states, ``logits`` applies the head."""

    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Hidden states ``[B, T, H]`` of ``input_ids`` and ``position_ids`` ``[B, T]``."""
        x = self.embedding(input_ids)
        cos, sin = rotary(position_ids, self.config.hidden // self.config.heads)
        for block in self.blocks:
            x = block(x, cos, sin, cu_seqlens)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)
