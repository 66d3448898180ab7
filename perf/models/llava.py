"""A small LLaVA: a vision encoder, a projector and a decoder over packed rows, with several tiles per image.

The code is what is written for this: the data loader packs documents in which one placeholder stands for an image and
gives ``cu_seqlens`` of that row; the model expands every placeholder into the features of the image's tiles and goes on
with the boundaries it was given. They are stale from there on: attention, positions and the shift of the labels see
other documents than there are. ``token_mult_prob_error`` measures what that does to the probabilities of tokens.

Shapes: T tokens before expansion, E slots after it, I images, M tiles of P x P pixels, each L tokens, hidden size H.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packpass import ops
from perf.models import gpt

IGNORE = -100
IMAGE = 0
"""The placeholder's token id; text starts at 1."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes. A tile becomes ``(pixels / patch) ** 2`` tokens."""

    vocabulary: int = 64
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    vision_hidden: int = 32
    vision_layers: int = 2
    pixels: int = 12
    patch: int = 4

    @property
    def tile_tokens(self) -> int:
        return (self.pixels // self.patch) ** 2


class VisionBlock(nn.Module):
    """Attention among the patches of one tile, and an MLP."""

    def __init__(self, hidden: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class VisionEncoder(nn.Module):
    """Pixels ``[M, 3, P, P]`` -> features ``[M, L, hidden]``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, config.vision_hidden, config.patch, config.patch)
        self.positions = nn.Parameter(0.02 * torch.randn(config.tile_tokens, config.vision_hidden))
        self.blocks = nn.Sequential(*(VisionBlock(config.vision_hidden) for _ in range(config.vision_layers)))
        self.norm = nn.LayerNorm(config.vision_hidden)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.norm(self.blocks(self.patches(pixels).flatten(2).transpose(1, 2) + self.positions))


def causal(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    return ops.varlen_attention(q, k, v, cu_seqlens, is_causal=True)


class Output(NamedTuple):
    """``logprobs``: of the next token, float ``[E]``; ``counts``: which of them count, bool ``[E]``; ``loss``: their
    sum, negated; ``tokens``: their number."""

    loss: Tensor
    tokens: Tensor
    logprobs: Tensor
    counts: Tensor


class Llava(nn.Module):
    """Next-token prediction on text with images."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionEncoder(config)
        self.projector = nn.Sequential(
            nn.Linear(config.vision_hidden, config.hidden), nn.GELU(), nn.Linear(config.hidden, config.hidden)
        )
        sizes = gpt.Config(vocabulary=config.vocabulary, hidden=config.hidden, layers=config.layers, heads=config.heads)
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(gpt.Block(sizes, causal) for _ in range(config.layers))
        self.norm = gpt.RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def merge(self, input_ids: Tensor, pixels: Tensor, tiles_per_image: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings ``[1, E, H]`` with an image's features in the place of its placeholder, and the tokens' ids
        ``[1, E]``, `IGNORE` at images. Every tile has a fixed number of tokens, so E is known without looking."""
        features = self.projector(self.vision(pixels)).flatten(0, 1)
        total = input_ids.shape[1] - tiles_per_image.shape[0] + features.shape[0]
        is_image = input_ids == IMAGE
        widths = torch.ones_like(input_ids).masked_scatter(is_image, tiles_per_image * self.config.tile_tokens)
        torch._assert_async(widths.sum() == total, "the placeholders do not match the images")
        positions = (widths.cumsum(-1) - 1)[0]  # an image's placeholder lands on its last slot
        embeddings = features.new_zeros(1, total, features.shape[-1])
        embeddings[:, positions] = self.embedding(input_ids)
        tokens = input_ids.new_full((1, total), IGNORE)
        tokens[:, positions] = torch.where(is_image, IGNORE, input_ids)
        return embeddings.masked_scatter((tokens == IGNORE)[..., None], features), tokens

    def forward(self, input_ids: Tensor, pixels: Tensor, tiles_per_image: Tensor, cu_seqlens: Tensor) -> Output:
        """``input_ids`` int64 ``[1, T]``, ``pixels`` ``[M, 3, P, P]``, ``tiles_per_image`` int64 ``[I]``, and
        ``cu_seqlens`` int32 ``[N+1]``."""
        x, tokens = self.merge(input_ids, pixels, tiles_per_image)
        position_ids = ops.position_ids(cu_seqlens, x.shape[1])[None]
        cos, sin = gpt.rotary(position_ids, self.config.hidden // self.config.heads)
        for block in self.blocks:
            x = block(x, cos, sin, cu_seqlens)
        logits = self.head(self.norm(x))
        labels = torch.roll(tokens, -1, dims=-1)
        labels[..., -1] = IGNORE
        counts = labels != IGNORE
        logprobs = -F.cross_entropy(logits[0].float(), labels[0], ignore_index=IGNORE, reduction="none")
        return Output(-logprobs.sum(), counts.sum(), logprobs, counts[0])


Model = Callable[[Tensor, Tensor, Tensor, Tensor], Output]


# === Data ====================================================================================================


@dataclasses.dataclass(frozen=True)
class Sample:
    """One document: int64 ``ids`` ``[t]`` with `IMAGE` for every image, its tiles ``[m, 3, P, P]`` and how many of them
    each image has, int64 ``[i]``."""

    ids: Tensor
    pixels: Tensor
    tiles_per_image: Tensor


def samples(count: int, config: Config, seed: int = 0) -> list[Sample]:
    """Documents of 12 to 40 tokens with two or three images of one to three tiles."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        length, images = rng.randint(12, 40), rng.randint(2, 3)
        ids = torch.randint(1, config.vocabulary, (length,), generator=generator)
        ids[rng.sample(range(length), images)] = IMAGE
        tiles = torch.tensor([rng.randint(1, 3) for _ in range(images)])
        pixels = torch.randn(int(tiles.sum()), 3, config.pixels, config.pixels, generator=generator)
        out.append(Sample(ids, pixels, tiles))
    return out


def batch(documents: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The arguments of a model's call. The boundaries count placeholders, not what they stand for."""
    lengths = torch.tensor([0, *(document.ids.numel() for document in documents)])
    return (
        torch.cat([document.ids for document in documents])[None],
        torch.cat([document.pixels for document in documents]),
        torch.cat([document.tiles_per_image for document in documents]),
        lengths.cumsum(0).int(),
    )


def expanded_boundaries(documents: Sequence[Sample], config: Config) -> Tensor:
    """The right boundaries of the expanded row, int32 ``[N+1]``, computed document by document."""
    lengths = [0]
    for document in documents:
        images = document.tiles_per_image.numel()
        lengths.append(document.ids.numel() - images + document.pixels.shape[0] * config.tile_tokens)
    return torch.tensor(lengths).cumsum(0).int()


# === Figures =================================================================================================


def reference(model: Llava, documents: Sequence[Sample], config: Config) -> list[Output]:
    """Every document alone, eager, with boundaries that count what is there."""
    return [model(*batch([document])[:3], expanded_boundaries([document], config)) for document in documents]


def token_mult_prob_error(packed: Output, alone: Sequence[Output]) -> float:
    """Mean of ``exp(|logprob - reference|)`` over the tokens that count in the reference; 1 is perfect. A token that
    the packed row does not predict counts with logprob 0."""
    expected, counts = (torch.cat([getattr(o, field) for o in alone]) for field in ("logprobs", "counts"))
    error = (packed.logprobs.detach()[: expected.numel()] - expected.detach()).abs().exp()
    return float(error[counts].double().mean())
