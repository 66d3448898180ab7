"""Vision and audio towers of transformers: attention document by document, once per layer; positions per image."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.wild.batches import floats
from tests.wild.case import Arguments, Program, case

GRIDS = (
    ((1, 4, 6), (1, 8, 4)),
    ((1, 4, 4), (1, 6, 6), (2, 4, 6)),
    ((1, 8, 8),) * 5,
    ((1, 16, 16), (1, 4, 8), (3, 8, 8), (1, 12, 6), (1, 4, 4), (1, 6, 10), (2, 6, 4)),
)
"""Frames, rows and columns of patches of each image."""


def patches(width: int) -> list[Callable[[], Arguments]]:
    """Patches [total, width] of all images, and their grids."""

    def one(grids: Sequence[tuple[int, int, int]]) -> Callable[[], Arguments]:
        return lambda: ((floats(sum(t * h * w for t, h, w in grids), width), torch.tensor(grids)), {})

    return [one(grids) for grids in GRIDS]


def tower(family: str, config: str, model: str, attention: str = "sdpa", **settings: Any) -> Any:
    """A tower of ``transformers.models.<family>`` with random weights, two narrow layers."""
    folder = f"transformers.models.{family}"
    made = getattr(importlib.import_module(f"{folder}.configuration_{family}"), config)(**settings)
    made._attn_implementation = attention
    torch.manual_seed(0)
    return getattr(importlib.import_module(f"{folder}.modeling_{family}"), model)(made).train()


@case("transformers")
def qwen2_vl_tower() -> Program:
    settings = dict(depth=2, embed_dim=64, hidden_size=48, num_heads=4, patch_size=4, mlp_ratio=2)
    model = tower("qwen2_vl", "Qwen2VLVisionConfig", "Qwen2VisionTransformerPretrainedModel", **settings)
    return Program(model, patches(3 * 2 * 4 * 4))
