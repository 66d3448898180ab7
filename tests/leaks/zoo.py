"""Models of transformers, as small as they can be, and how each treats a packed row."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

T, CU = 24, (0, 7, 15, 24)
SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2}


def ids() -> torch.Tensor:
    return torch.randint(5, 90, (1, T), generator=torch.Generator().manual_seed(3))


def positions() -> torch.Tensor:
    return torch.cat([torch.arange(b - a) for a, b in itertools.pairwise(CU)])[None]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, whether it is called with positions that restart, and what leaks: file of transformers and operation."""

    name: str
    config: str
    model: str
    settings: dict[str, Any]
    positions: bool = False
    leaks: frozenset[tuple[str, str]] = frozenset()
    attention: str = "eager"

    def make(self) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        config._attn_implementation = self.attention
        model = getattr(transformers, self.model)(config).eval()
        kwargs: dict[str, Any] = {"use_cache": False}
        if self.positions:
            kwargs["position_ids"] = positions()
        return model, (ids(),), kwargs


def leaks(file: str, *operations: str) -> frozenset[tuple[str, str]]:
    return frozenset((file, operation) for operation in operations)


def eager(name: str) -> frozenset[tuple[str, str]]:
    """Causal attention without boundaries, written out."""
    return leaks(f"modeling_{name}.py", "softmax", "matmul")


MAMBA = {"vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
HYBRID = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8}
DELTA = {
    **{"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    **{"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16},
    **{"num_key_value_heads": 1, "layer_types": ["linear_attention", "full_attention"], "intermediate_size": 32},
}
NEOX = {**SMALL, "intermediate_size": 64}
HEADS = {**LLAMA, "head_dim": 8}
EXPERTS = {**LLAMA, "num_local_experts": 4}

CASES = [
    # With positions that restart, attention derives its mask from them.
    Case("llama with positions", "LlamaConfig", "LlamaForCausalLM", LLAMA, True),
    Case("llama sdpa with positions", "LlamaConfig", "LlamaForCausalLM", LLAMA, True, attention="sdpa"),
    Case("qwen2 with positions", "Qwen2Config", "Qwen2ForCausalLM", LLAMA, True),
    Case("qwen3 with positions", "Qwen3Config", "Qwen3ForCausalLM", HEADS, True),
    Case("mistral with positions", "MistralConfig", "MistralForCausalLM", LLAMA, True),
    Case("gemma2 with positions", "Gemma2Config", "Gemma2ForCausalLM", HEADS, True),
    Case("mixtral with positions", "MixtralConfig", "MixtralForCausalLM", EXPERTS, True),
    Case("gpt-neox with positions", "GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX, True),
    Case(
        "olmoe with positions", "OlmoeConfig", "OlmoeForCausalLM",
        {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}, True,
    ),
    # Without, it sees the whole row.
    Case("llama", "LlamaConfig", "LlamaForCausalLM", LLAMA, leaks=eager("llama")),
    Case(
        "llama sdpa", "LlamaConfig", "LlamaForCausalLM", LLAMA, attention="sdpa",
        leaks=leaks("sdpa_attention.py", "scaled_dot_product_attention"),
    ),
    Case("qwen3", "Qwen3Config", "Qwen3ForCausalLM", HEADS, leaks=eager("qwen3")),
    Case("phi3", "Phi3Config", "Phi3ForCausalLM", {**LLAMA, "pad_token_id": 0}, leaks=eager("phi3")),
    Case("mixtral", "MixtralConfig", "MixtralForCausalLM", EXPERTS, leaks=eager("mixtral")),
    Case("gpt-neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", NEOX, leaks=eager("gpt_neox")),
    Case(
        "gpt2", "GPT2Config", "GPT2LMHeadModel", {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4},
        leaks=eager("gpt2"),
    ),
    Case("bert", "BertConfig", "BertModel", NEOX, leaks=eager("bert")),
    # Convolutions and scans know no boundaries, positions or not.
    Case(
        "lfm2", "Lfm2Config", "Lfm2ForCausalLM", {**LLAMA, "layer_types": ["conv", "full_attention"]}, True,
        leaks("modeling_lfm2.py", "conv1d"),
    ),
    Case("mamba", "MambaConfig", "MambaForCausalLM", MAMBA, leaks=leaks("modeling_mamba.py", "conv1d", "mul")),
    Case(
        "mamba2", "Mamba2Config", "Mamba2ForCausalLM",
        {**MAMBA, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
        leaks=leaks("modeling_mamba2.py", "conv1d", "cumsum"),
    ),
    Case(
        "qwen3-next", "Qwen3NextConfig", "Qwen3NextForCausalLM", DELTA, True,
        leaks("modeling_qwen3_next.py", "conv1d", "cumsum"),
    ),
    Case(
        "falcon-h1", "FalconH1Config", "FalconH1ForCausalLM", {**LLAMA, **HYBRID, "mamba_d_ssm": 32}, True,
        leaks("modeling_falcon_h1.py", "conv1d", "cumsum"),
    ),
    Case(
        "bamba", "BambaConfig", "BambaForCausalLM",
        {**LLAMA, **HYBRID, "mamba_n_heads": 8, "attn_layer_indices": [1]}, True,
        leaks("modeling_bamba.py", "conv1d", "cumsum"),
    ),
    Case(
        "rwkv", "RwkvConfig", "RwkvForCausalLM",
        {"vocab_size": 100, "context_length": 32, "hidden_size": 32, "num_hidden_layers": 2},
        leaks=leaks("modeling_rwkv.py", "pad", "maximum"),
    ),
    # Its recurrence starts again where positions do.
    Case(
        "recurrent-gemma", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM",
        {**LLAMA, "lru_width": 32, "attention_window_size": 64, "block_types": ["recurrent", "attention"]}, True,
        leaks("modeling_recurrent_gemma.py", "conv1d"),
    ),
]  # fmt: skip
