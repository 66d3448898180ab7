"""More vision towers of transformers, and what merges their patches: whole modules, tiny, with random weights."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from tests.wild.batches import floats
from tests.wild.case import Program, case
from tests.wild.cases_transformers_vision import GRIDS, NARROW, STILL, patches, tower

LAYERS = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, patch_size=4)
WIDE = dict(LAYERS, intermediate_size=96)
DEPTH = dict(NARROW, intermediate_size=96)
FRAME, PAIR = 3 * 4 * 4, 3 * 2 * 4 * 4
"""Numbers of a patch of one frame, and of two."""


@case("transformers")
def hunyuan_vl_tower() -> Program:
    """Learned positions interpolated for every image; convolutions, a new line behind every row, begin and end."""
    settings = dict(out_hidden_size=48, max_image_size=64, text_hidden_size=32)
    model = tower("hunyuan_vl", "HunYuanVLVisionConfig", "HunYuanVLVisionTransformer", **WIDE, **settings)
    for parameter in (model.patch_merger.image_newline, model.patch_merger.image_begin, model.patch_merger.image_end):
        torch.nn.init.normal_(parameter)
    return Program(model, patches(FRAME, STILL))


@case("transformers")
def lfm3_vl_tower() -> Program:
    """A convolution of every image, attention without weights."""
    settings = dict(num_key_value_heads=2, layer_types=["conv", "full_attention"])
    return Program(tower("lfm3_vl", "Lfm3VlVisionConfig", "Lfm3VlVisionModel", **WIDE, **settings), patches(PAIR))


@case("transformers")
def minimax_m3_vl_tower() -> Program:
    """Positions in three dimensions."""
    return Program(tower("minimax_m3_vl", "MiniMaxM3VLVisionConfig", "MiniMaxM3VLVisionModel", **WIDE), patches(PAIR))


@case("transformers")
def muse_spark_tower() -> Program:
    """A branch on whether there are several frames."""
    settings = dict(pos_emb_height=8, pos_emb_width=8)
    model = tower("muse_spark", "MuseSparkVisionConfig", "MuseSparkVisionModel", **WIDE, **settings)
    return Program(model, patches(PAIR, STILL))


@case("transformers")
def muse_glimmer_tower() -> Program:
    settings = dict(pos_emb_height=8, pos_emb_width=8)
    model = tower("muse_glimmer", "MuseGlimmerVisionConfig", "MuseGlimmerVisionModel", **WIDE, **settings)
    return Program(model, patches(PAIR, STILL))


@case("transformers")
def glm_image_tower() -> Program:
    model = tower("glm_image", "GlmImageVisionConfig", "GlmImageVisionModel", **DEPTH, image_size=32)
    return Program(model, patches(FRAME, STILL))


@case("transformers")
def glm5_next_tower() -> Program:
    settings = dict(image_size=32, out_hidden_size=48, projection_intermediate_size=32)
    model = tower("glm5_next", "Glm5NextVisionConfig", "Glm5NextVisionModel", **DEPTH, **settings)
    return Program(model, patches(PAIR, STILL))


@case("transformers")
def video_llama_3_tower() -> Program:
    """Images made smaller, each by a number of its own."""
    model = tower("video_llama_3", "VideoLlama3VisionConfig", "VideoLlama3VisionModel", **WIDE)

    def one(grids: Sequence[tuple[int, int, int]]) -> Any:
        total = sum(t * h * w for t, h, w in grids)
        return lambda: ((floats(total, FRAME), torch.tensor(grids), torch.tensor([2] * len(grids))), {})

    return Program(model, [one(grids) for grids in GRIDS])


@case("transformers")
def dots3_note_tower() -> Program:
    settings = dict(moe_intermediate_size=32, num_local_experts=2, mlp_layer_types=["dense", "dense"])
    settings |= dict(adapter_in_dim=64, adapter_out_dim=32)
    model = tower("dots3_note", "Dots3NoteVisionConfig", "Dots3NoteVisionModel", **WIDE, **settings)
    return Program(model, patches(FRAME, STILL))


@case("transformers")
def cosmos3_edge_tower() -> Program:
    """Positions interpolated with smoothing."""
    model = tower("cosmos3_edge", "Cosmos3EdgeVisionConfig", "Cosmos3EdgeVisionModel", **WIDE, num_patches=16)
    return Program(model, patches(FRAME, STILL))


@case("transformers")
def cohere_compass_tower() -> Program:
    settings = dict(out_hidden_size=48, num_position_embeddings=64, deepstack_visual_indexes=(0,))
    model = tower("cohere_compass", "CohereCompassVisionConfig", "CohereCompassVisionModel", **DEPTH, **settings)
    return Program(model, patches(PAIR))


@case("transformers")
def qwen3_omni_tower() -> Program:
    settings = dict(out_hidden_size=48, num_position_embeddings=64, deepstack_visual_indexes=(0,))
    family, config = "qwen3_omni_moe", "Qwen3OmniMoeVisionEncoderConfig"
    return Program(tower(family, config, "Qwen3OmniMoeVisionEncoder", **DEPTH, **settings), patches(PAIR))


def merger(family: str, config: str, module: str) -> Program:
    """What makes one patch of several: features [T, width] and sizes in pixels."""
    from transformers import PixtralVisionConfig

    folder = f"transformers.models.{family}"
    vision = PixtralVisionConfig(hidden_size=64, patch_size=4, num_attention_heads=4)
    made = getattr(importlib.import_module(f"{folder}.configuration_{family}"), config)(vision_config=vision)
    torch.manual_seed(0)
    model = getattr(importlib.import_module(f"{folder}.modeling_{family}"), module)(made)

    def one(grids: Sequence[tuple[int, int, int]]) -> Any:
        sizes = torch.tensor([(4 * h, 4 * w) for _, h, w in grids])
        return lambda: ((floats(sum(h * w for _, h, w in grids), 64, grad=True), sizes), {})

    return Program(model, [one(grids) for grids in STILL])


@case("transformers")
def mistral3_merger() -> Program:
    """Sizes in a list of tuples of tensors; windows by unfold."""
    return merger("mistral3", "Mistral3Config", "Mistral3PatchMerger")


@case("transformers")
def lighton_ocr_merger() -> Program:
    return merger("lighton_ocr", "LightOnOcrConfig", "LightOnOcrPatchMerger")
