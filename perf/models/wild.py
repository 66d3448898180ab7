"""Code as it is found: vision towers of transformers, unmodified, and helpers written as RL frameworks write them."""

from __future__ import annotations

import importlib
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATCH, TIME = 4, 2
TOWERS = {
    "Qwen2-VL": ("qwen2_vl", "Qwen2VLVisionConfig", "Qwen2VisionTransformerPretrainedModel"),
    "Qwen2.5-VL": ("qwen2_5_vl", "Qwen2_5_VLVisionConfig", "Qwen2_5_VisionTransformerPretrainedModel"),
}


def _settings(name: str, width: int, layers: int) -> dict[str, Any]:
    own: dict[str, Any] = {"depth": layers, "num_heads": width // 16, "patch_size": PATCH}
    if name == "Qwen2-VL":
        return {**own, "embed_dim": width, "hidden_size": width, "mlp_ratio": 2}
    windows = {"window_size": 32, "fullatt_block_indexes": [layers - 1]}
    return {**own, **windows, "hidden_size": width, "intermediate_size": 2 * width, "out_hidden_size": width}


class Tower(nn.Module):
    """A tower with random weights; a loss of its results, so that a step has a backward."""

    def __init__(self, name: str, width: int, layers: int) -> None:
        """Raises ImportError without transformers."""
        super().__init__()
        family, config, model = TOWERS[name]
        folder = f"transformers.models.{family}"
        made = getattr(importlib.import_module(f"{folder}.configuration_{family}"), config)(
            **_settings(name, width, layers)
        )
        made._attn_implementation = "sdpa"
        torch.manual_seed(0)
        self.tower = getattr(importlib.import_module(f"{folder}.modeling_{family}"), model)(made).train()

    def forward(self, pixels: Tensor, grid: Tensor) -> Tensor:
        found = self.tower(pixels, grid)
        loss: Tensor = found.pooler_output.square().mean() + found.last_hidden_state.square().mean()
        return loss


def images(count: int, sides: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Patches [total, features] and rows of sizes [count, 3]; even sides between these two, in patches."""
    draw = random.Random(0)
    grid = [(1, *(2 * draw.randint(sides[0] // 2, sides[1] // 2) for _ in range(2))) for _ in range(count)]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(sum(t * h * w for t, h, w in grid), 3 * TIME * PATCH * PATCH, generator=generator)
    return pixels, torch.tensor(grid)


def mean_of_sample_means(log_probs: Tensor, advantages: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """A policy loss, averaged over the tokens of every sample, then over samples."""
    loss = torch.zeros((), device=log_probs.device)
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):  # noqa: B905
        chosen = mask[start:end]
        share = -(log_probs[start:end].exp() * advantages[start:end] * chosen).sum() / chosen.sum().clamp(min=1)
        loss = loss + share
    return loss / (len(cu_seqlens) - 1)


def padded_rows(row: Tensor, cu_seqlens: Tensor, width: int) -> Tensor:
    """A packed row to one padded row per sample."""
    rows = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):  # noqa: B905
        rows.append(F.pad(row[start:end], (0, width - (end - start))))
    return torch.stack(rows)


def padded_rows_by_hand(row: Tensor, cu_seqlens: Tensor, width: int) -> Tensor:
    """`padded_rows` without a loop: one gather."""
    slots = cu_seqlens[:-1, None] + torch.arange(width, device=row.device)
    beyond = slots >= cu_seqlens[1:, None]
    return row[slots.masked_fill(beyond, 0)].masked_fill(beyond, 0)


def packed_rope(x: Tensor, cu_seqlens: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of a packed row ``[T, heads, size]``, as megatron-core does it without Transformer Engine."""
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    return torch.cat([_rotated(part, angles[: part.size(0)]) for part in torch.split(x, lengths)])


def packed_rope_by_hand(x: Tensor, cu_seqlens: Tensor, angles: Tensor) -> Tensor:
    """`packed_rope` without a loop: angles of every slot, then the row at once."""
    lengths = cu_seqlens.diff()
    starts = torch.repeat_interleave(cu_seqlens[:-1], lengths, output_size=x.size(0))
    return _rotated(x, angles[torch.arange(x.size(0), device=x.device) - starts])


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * angles.cos() + turned * angles.sin()
