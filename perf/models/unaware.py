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
    """``total``: slots of the row that it is timed on."""

    total: int
    settings: dict[str, Any]


KINDS = {
    "llama": Kind(1024, _HEADS),
    "lfm2": Kind(1024, {**_HEADS, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
    "mamba2": Kind(
        512,
        {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 1, "expand": 2, "chunk_size": 64}
        | {"num_hidden_layers": 1},
    ),
    "mamba": Kind(48, {"state_size": 8, "use_associative_scan": False, "num_hidden_layers": 1}),
}
"""Mamba's scan is a Python loop over tokens, which torch compiles for one length of the row."""


def language(name: str, width: int = 64) -> Language:
    """A small model with two layers (or one); ImportError where transformers is missing."""
    sizes = {**_SIZES, "hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "eos_token_id": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers: Any = importlib.import_module("transformers")
        config = transformers.AutoConfig.for_model(name, **{**sizes, **KINDS[name].settings})
        torch.manual_seed(0)
        return Language(transformers.AutoModelForCausalLM.from_config(config)).train()
