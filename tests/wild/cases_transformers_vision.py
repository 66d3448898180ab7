"""Vision and audio towers of transformers: attention document by document, once per layer; positions per image."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.wild.batches import boundaries, floats, over
from tests.wild.case import Arguments, Program, Verdict, case

GRIDS = (
    ((1, 4, 6), (1, 8, 4)),
    ((1, 4, 4), (1, 6, 6), (2, 4, 6)),
    ((1, 8, 8),) * 5,
    ((1, 16, 16), (1, 4, 8), (3, 8, 8), (1, 12, 6), (1, 4, 4), (1, 6, 10), (2, 6, 4)),
)
"""Frames, rows and columns of patches of each image."""


def patches(width: int, batches: Sequence[Any] = GRIDS) -> list[Callable[[], Arguments]]:
    """Patches [total, width] of all images, and their grids."""

    def one(grids: Sequence[tuple[int, int, int]]) -> Callable[[], Arguments]:
        return lambda: ((floats(sum(t * h * w for t, h, w in grids), width), torch.tensor(grids)), {})

    return [one(grids) for grids in batches]


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


@case("transformers")
def qwen2_vl_tower_with_given_positions() -> Program:
    """Positions made beforehand, as the tower lets its caller do: what is left are the loops of its layers."""
    settings = dict(depth=2, embed_dim=64, hidden_size=48, num_heads=4, patch_size=4, mlp_ratio=2)
    model = tower("qwen2_vl", "Qwen2VLVisionConfig", "Qwen2VisionTransformerPretrainedModel", **settings)
    return Program(model, with_positions(patches(3 * 2 * 4 * 4)))


def with_positions(batches: Sequence[Callable[[], Arguments]]) -> list[Callable[[], Arguments]]:
    """The same batches with the positions of every patch."""

    def one(make: Callable[[], Arguments]) -> Callable[[], Arguments]:
        from transformers.vision_utils import get_vision_position_ids

        def batch() -> Arguments:
            (pixels, grids), _ = make()
            return (pixels, grids), dict(position_ids=get_vision_position_ids(grids, 2))

        return batch

    return [one(make) for make in batches]


@case("transformers")
def qwen2_5_vl_tower() -> Program:
    settings = dict(
        depth=2, hidden_size=64, intermediate_size=96, num_heads=4, patch_size=4, out_hidden_size=48, window_size=32,
        fullatt_block_indexes=[1],
    )  # fmt: skip
    model = tower("qwen2_5_vl", "Qwen2_5_VLVisionConfig", "Qwen2_5_VisionTransformerPretrainedModel", **settings)
    return Program(model, patches(3 * 2 * 4 * 4))


@case("transformers")
def qwen3_vl_tower() -> Program:
    settings = dict(
        depth=2, hidden_size=64, intermediate_size=96, num_heads=4, patch_size=4, out_hidden_size=48,
        num_position_embeddings=64, deepstack_visual_indexes=[0],
    )  # fmt: skip
    model = tower("qwen3_vl", "Qwen3VLVisionConfig", "Qwen3VLVisionModel", **settings)
    return Program(model, patches(3 * 2 * 4 * 4))


@case("transformers")
def glm4v_tower() -> Program:
    settings = dict(
        depth=2, hidden_size=64, intermediate_size=96, num_heads=4, patch_size=4, out_hidden_size=48, image_size=32
    )
    model = tower("glm4v", "Glm4vVisionConfig", "Glm4vVisionModel", **settings)
    return Program(model, patches(3 * 2 * 4 * 4, [[(1, h, w) for _, h, w in images] for images in GRIDS]))


NARROW = dict(depth=2, hidden_size=64, num_heads=4, patch_size=4)
STILL = [[(1, h, w) for _, h, w in images] for images in GRIDS]
"""Images, no videos."""


@case("transformers")
def exaone4_5_tower() -> Program:
    """Windows, with fewer heads of keys than of queries."""
    settings = dict(
        intermediate_size=96, out_hidden_size=48, window_size=32, fullatt_block_indexes=[1], num_key_value_heads=2
    )
    model = tower("exaone4_5", "Exaone4_5_VisionConfig", "Exaone4_5_VisionModel", **NARROW, **settings)
    return Program(model, patches(3 * 2 * 4 * 4))


@case("transformers")
def ernie4_5_vl_tower() -> Program:
    family, config = "ernie4_5_vl_moe", "Ernie4_5_VLMoeVisionConfig"
    model = tower(family, config, "Ernie4_5_VLMoeVisionTransformerPretrainedModel", **NARROW, intermediate_size=96)
    return Program(model, patches(3 * 4 * 4))


@case("transformers")
def qwen3_5_tower() -> Program:
    settings = dict(intermediate_size=96, out_hidden_size=48, num_position_embeddings=64)
    model = tower("qwen3_5", "Qwen3_5VisionConfig", "Qwen3_5VisionModel", **NARROW, **settings)
    return Program(model, patches(3 * 2 * 4 * 4))


@case("transformers")
def glm_ocr_tower() -> Program:
    settings = dict(intermediate_size=96, out_hidden_size=48, image_size=32)
    model = tower("glm_ocr", "GlmOcrVisionConfig", "GlmOcrVisionModel", **NARROW, **settings)
    return Program(model, patches(3 * 2 * 4 * 4, STILL))


@case("transformers")
def paddleocr_vl_tower() -> Program:
    """Learned positions interpolated for every image; a list of weights that are None beside that of the outputs."""
    settings = dict(
        hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=96, patch_size=4, image_size=32
    )
    model = tower("paddleocr_vl", "PaddleOCRVisionConfig", "PaddleOCRVisionTransformer", **settings)

    def one(grids: Sequence[tuple[int, int, int]]) -> Callable[[], Arguments]:
        total = sum(t * h * w for t, h, w in grids)
        return lambda: ((floats(1, total, 3, 4, 4),), {"grid_thw": torch.tensor(grids)})

    return Program(model, [one(grids) for grids in STILL])


@case("transformers")
def pixtral_tower() -> Program:
    """Images of several sizes padded to one: cut, made a row, attended under a mask of squares."""
    settings = dict(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=64, patch_size=8
    )
    model = tower("pixtral", "PixtralVisionConfig", "PixtralVisionModel", **settings)

    def one(sizes: Sequence[tuple[int, int]]) -> Callable[[], Arguments]:
        high, wide = max(h for h, _ in sizes), max(w for _, w in sizes)
        return lambda: ((floats(len(sizes), 3, high, wide), torch.tensor(sizes)), {})

    sizes = (((16, 24), (32, 16)), ((8, 8), (24, 40), (16, 16)), ((32, 32),) * 5, ((64, 8), (8, 48), (24, 24)) * 3)
    return Program(model, [one(images) for images in sizes])


@case("transformers")
def pixtral_mask() -> Program:
    """A mask of squares, from a list of lengths."""
    from transformers.models.pixtral.modeling_pixtral import generate_block_attention_mask

    def call(row: torch.Tensor, lengths: torch.Tensor) -> Any:
        return generate_block_attention_mask(lengths.tolist(), row)

    return Program(call, over(lambda n: (floats(1, sum(n), 8), torch.tensor(n))))


def attention(family: str, config: str, module: str, **settings: Any) -> Program:
    """The attention of one layer of a tower: values [T, features] and boundaries."""
    folder = f"transformers.models.{family}"
    made = getattr(importlib.import_module(f"{folder}.configuration_{family}"), config)(**settings)
    made._attn_implementation = "sdpa"
    torch.manual_seed(0)
    layer = getattr(importlib.import_module(f"{folder}.modeling_{family}"), module)(made)
    return Program(layer, over(lambda n: (floats(sum(n), 64, grad=True), boundaries(n))))


AUDIO = dict(d_model=64, encoder_attention_heads=4, encoder_layers=2, encoder_ffn_dim=96)


@case("transformers")
def qwen2_5_omni_audio_attention() -> Program:
    return attention("qwen2_5_omni", "Qwen2_5OmniAudioEncoderConfig", "Qwen2_5OmniAudioAttention", **AUDIO)


@case("transformers")
def qwen2_5_omni_audio_layer() -> Program:
    return attention("qwen2_5_omni", "Qwen2_5OmniAudioEncoderConfig", "Qwen2_5OmniAudioEncoderLayer", **AUDIO)


@case("transformers")
def qwen2_5_omni_audio_tower() -> Program:
    """Recordings of several lengths, cut into windows, padded, convolved, packed."""
    model = tower(
        "qwen2_5_omni", "Qwen2_5OmniAudioEncoderConfig", "Qwen2_5OmniAudioEncoder",
        **AUDIO, num_mel_bins=16, n_window=8, output_dim=32, max_source_positions=64,
    )  # fmt: skip

    def batch(lengths: Sequence[int]) -> Any:
        return (floats(16, sum(lengths)),), dict(feature_lens=torch.tensor(lengths))

    return Program(model, over(batch, ((40, 24), (20, 33, 48), (32,) * 5, (100, 30, 77, 12, 50, 64))))


@case(
    "transformers",
    Verdict.PART,
    graphs=12,
    breaks=11,
    codes=["frame-not-compiled", "list-use"],
    why="windows of attention are listed as often as they fit into a recording, and what is left of it",
)
def qwen3_omni_audio_tower() -> Program:
    """The same with convolutions in two dimensions, of a few windows at a time."""
    model = tower(
        "qwen3_omni_moe", "Qwen3OmniMoeAudioEncoderConfig", "Qwen3OmniMoeAudioEncoder",
        **AUDIO, num_mel_bins=16, n_window=50, n_window_infer=200, output_dim=32, max_source_positions=64,
        downsample_hidden_size=8,
    )  # fmt: skip

    def batch(lengths: Sequence[int]) -> Any:
        return (floats(16, sum(lengths)),), dict(feature_lens=torch.tensor(lengths))

    return Program(model, over(batch, ((250, 130), (120, 330, 48), (160,) * 5, (100, 300, 77, 212, 50, 64))))
