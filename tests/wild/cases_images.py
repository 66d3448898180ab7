"""vit-pytorch and diffusers: images and captions of several lengths."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.wild import sources
from tests.wild.batches import floats, mask, over
from tests.wild.case import Program, Verdict, case


def _diffusers(name: str) -> Any:
    from transformers import AutoTokenizer, CLIPImageProcessor  # noqa: F401 (before what is not there is stood in for)

    sources.use("requests")  # its version is asked for, it is not used
    sources.stand_in("requests")
    sources.use("diffusers")
    return sources.lenient(name)


CAPTIONS = ((5, 9), (3, 7, 2, 11), (8,) * 6, (10, 3, 12, 7, 12, 9, 5, 20))


@case(
    "vit-pytorch",
    Verdict.REFUSED,
    graphs=24,
    codes=["lengths-unknown"],
    loops=False,
    why="images are a Python list, and heads of lists are picked by masks",
)
def navit() -> Program:
    """Images of several sizes in rows of patches: a Python list of tensors, no boundaries that a tensor holds."""
    sources.bare(sources.use("vit-pytorch"), "vit_pytorch")
    from vit_pytorch.na_vit import NaViT

    torch.manual_seed(0)
    model = NaViT(
        image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=2, mlp_dim=48, dim_head=16,
        token_dropout_prob=None,
    )  # fmt: skip

    def batch(sizes: Any) -> Any:
        return [[floats(3, 8 * h, 8 * w) for h, w in row] for row in sizes]

    images = [
        [[(1, 2), (2, 2)], [(3, 1)]],
        [[(1, 1), (2, 3), (1, 2)]],
        [[(2, 2)] * 3] * 2,
        [[(4, 1), (1, 4)], [(2, 2)]],
    ]
    return Program(model, over(lambda rows: (batch(rows),), images))


@case("diffusers")
def lumina2_positions() -> Program:
    """Positions of captions of several lengths in front of an image, per row."""
    rope = _diffusers("diffusers.models.transformers.transformer_lumina2").Lumina2RotaryPosEmbed(
        10000, [8, 4, 4], [64, 16, 16], 2
    )

    def batch(lengths: Sequence[int]) -> Any:
        return floats(len(lengths), 4, 8, 8), mask(lengths).long()

    return Program(rope, over(batch, CAPTIONS))


@case(
    "diffusers",
    Verdict.PART,
    graphs=5,
    codes=["body-not-traceable", "frame-not-compiled", "graph-break", "sequence-use"],
    why="whether all numbers of a list are equal decides what follows, and its attention asks Dynamo to end the graph",
)
def lumina2_transformer() -> Program:
    """A whole diffusion transformer: captions refined, joined with the image, attended under a mask."""
    torch.manual_seed(0)
    model = _diffusers("diffusers.models.transformers.transformer_lumina2").Lumina2Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, hidden_size=32, num_layers=1, num_refiner_layers=1,
        num_attention_heads=2, num_kv_heads=1, multiple_of=8, axes_dim_rope=(8, 4, 4), axes_lens=(64, 16, 16),
        cap_feat_dim=16,
    )  # fmt: skip

    def batch(lengths: Sequence[int]) -> Any:
        rows = len(lengths)
        return floats(rows, 4, 8, 8), torch.full((rows,), 0.5), floats(rows, max(lengths), 16), mask(lengths)

    def call(*args: Tensor) -> Any:
        return model(*args, return_dict=False)[0]

    return Program(call, over(batch, CAPTIONS), tolerance=1e-3)


@case(
    "diffusers",
    Verdict.REFUSED,
    graphs=4,
    breaks=4,
    codes=["list-append", "python-lengths", "unequal-lengths"],
    why="images are a Python list, and captions are padded by lists of lengths",
)
def z_image_captions() -> Program:
    """Captions of several lengths, made one row, split again and padded."""
    torch.manual_seed(0)
    model = _diffusers("diffusers.models.transformers.transformer_z_image").ZImageTransformer2DModel(
        all_patch_size=(2,), all_f_patch_size=(1,), in_channels=4, dim=32, n_layers=1, n_refiner_layers=1, n_heads=2,
        n_kv_heads=2, cap_feat_dim=16, axes_dims=[8, 4, 4], axes_lens=[128, 16, 16],
    )  # fmt: skip

    def call(row: Tensor, lengths: Tensor, images: list[Tensor], t: Tensor) -> Any:
        return model(images, t, list(row.split(lengths.tolist())), return_dict=False)[0]

    def batch(lengths: Sequence[int]) -> Any:
        images = [floats(4, 1, 8, 8, seed=i) for i in range(len(lengths))]
        return floats(sum(lengths), 16), torch.tensor(lengths), images, torch.full((len(lengths),), 0.5)

    return Program(call, over(batch, CAPTIONS), tolerance=1e-3)


@case(
    "diffusers",
    Verdict.PART,
    graphs=14,
    breaks=24,
    why="both loops are rewritten; the graph breaks where prompts are made tokens",
)
def wan_prompts() -> Program:
    """Padded prompts cut to their lengths and padded with zeros."""
    encoders = _diffusers("diffusers.modular_pipelines.wan.encoders")
    encoders.ftfy = types.SimpleNamespace(fix_text=str)  # not installed
    embed = encoders.get_t5_prompt_embeds

    class Encoder(torch.nn.Module):
        dtype = torch.float32

        def forward(self, ids: Tensor, mask: Tensor) -> Any:
            return type("Out", (), dict(last_hidden_state=torch.nn.functional.one_hot(ids, 97).float()))

    class Tokenizer:
        def __init__(self, lengths: Sequence[int], longest: int) -> None:
            self.lengths, self.longest = lengths, longest

        def __call__(self, prompt: Any, **_: Any) -> Any:
            tokens = torch.zeros(len(self.lengths), self.longest, dtype=torch.int64)
            keep = torch.arange(self.longest)[None] < torch.tensor(self.lengths)[:, None]
            return type("In", (), dict(input_ids=tokens, attention_mask=keep.long()))

    def batch(lengths: Sequence[int]) -> Any:
        return Encoder(), Tokenizer(lengths, 24), ["x"] * len(lengths), 24, "cpu"

    return Program(embed, over(batch, CAPTIONS))
