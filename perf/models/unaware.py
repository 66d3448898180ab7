"""Models that know no boundaries: a causal convolution, and language models for one document per row."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import packpass

WORDS = 512
_SIZES: dict[str, Any] = {"vocab_size": WORDS, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1}
_HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}


class Convolution(nn.Module):
    """A depthwise causal convolution of four taps, ``[1, C, T]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, 4, groups=width, padding=3)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        out: Tensor = self.convolution(packpass.packed(x, cu_seqlens, dim=2))[..., : x.shape[2]]
        return out


class Language(nn.Module):
    """A model of transformers as a user calls it: nothing is said about positions or masks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=packpass.packed(ids, cu_seqlens, dim=1), use_cache=False).logits
        return logits


@dataclasses.dataclass(frozen=True)
class Kind:
    """``total``: slots of the row that it is timed on. ``one_length``: torch compiles it for one length of the row."""

    total: int
    settings: dict[str, Any]
    one_length: bool = False


KINDS = {
    "llama": Kind(1024, _HEADS),
    "lfm2": Kind(1024, {**_HEADS, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
    "mamba2": Kind(
        512,
        {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 1, "expand": 2, "chunk_size": 64}
        | {"num_hidden_layers": 1},
    ),
    "mamba": Kind(48, {"state_size": 8, "use_associative_scan": False, "num_hidden_layers": 1}, one_length=True),
    "qwen3": Kind(1024, {**_HEADS, "head_dim": 16}),
    "qwen3_next": Kind(
        512,
        {**_HEADS, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "mlp_only_layers": [0, 1]}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    ),
    "falcon_h1": Kind(
        512,
        {**_HEADS, "head_dim": 16, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16}
        | {"mamba_chunk_size": 64, "num_hidden_layers": 1},
    ),
    "rwkv": Kind(48, {"attention_hidden_size": 64, "context_length": 256}, one_length=True),
    "recurrent_gemma": Kind(
        48, {**_HEADS, "num_key_value_heads": 1, "head_dim": 16, "lru_width": 64, "num_hidden_layers": 1}, True
    ),
}
"""Mamba, RWKV and RecurrentGemma go over tokens in Python, which torch compiles for one length of the row."""


def language(name: str, width: int = 64) -> Language:
    """A small model with two layers (or one); ImportError where transformers is missing."""
    sizes = {**_SIZES, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "eos_token_id": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers: Any = importlib.import_module("transformers")
        config = transformers.AutoConfig.for_model(name, **{**sizes, **KINDS[name].settings})
        torch.manual_seed(0)
        return Language(transformers.AutoModelForCausalLM.from_config(config)).train()


class Conformer(nn.Module):
    """A block for speech: half a feed-forward, attention to all frames, a gated convolution both ways, half a
    feed-forward; ``[1, T, C]``."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.first, self.second = (
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)) for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.after = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.convolution = nn.Conv1d(width, width, 15, padding=7, groups=width)

    def forward(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        x = packpass.packed(x, cu_seqlens, dim=1)
        x = x + 0.5 * self.first(self.norms[0](x))
        q, k, v = self.qkv(self.norms[1](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = nn.functional.glu(self.gate(self.norms[2](x)), -1)
        y = nn.functional.silu(self.norms[3](self.convolution(y.mT).mT))
        x = x + self.after(y)
        out: Tensor = self.norms[4](x + 0.5 * self.second(x))
        return out
