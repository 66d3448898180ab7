"""Models of transformers, as small as they can be, and how each treats a packed row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

T, CU = 24, (0, 7, 15, 24)
SMALL = dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
LLAMA = dict(**SMALL, intermediate_size=64, num_key_value_heads=2)


def ids() -> torch.Tensor:
    return torch.randint(5, 90, (1, T), generator=torch.Generator().manual_seed(3))


def positions() -> torch.Tensor:
    return torch.cat([torch.arange(b - a) for a, b in zip(CU[:-1], CU[1:], strict=True)])[None]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, whether it is called with positions that restart, and the files (of transformers) whose lines leak, each
    with the kinds of operations that may be named there; none for a clean model."""

    name: str
    config: str
    model: str
    settings: dict[str, Any]
    positions: bool = False
    leaks: dict[str, set[str]] = dataclasses.field(default_factory=dict)
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


Make = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
ATT = {"attention", "product"}

CASES = [
    Case("llama with positions", "LlamaConfig", "LlamaForCausalLM", LLAMA, True),
    Case("llama without positions", "LlamaConfig", "LlamaForCausalLM", LLAMA, False, {"modeling_llama.py": ATT}),
    Case("llama sdpa with positions", "LlamaConfig", "LlamaForCausalLM", LLAMA, True, {}, "sdpa"),
    Case("llama sdpa", "LlamaConfig", "LlamaForCausalLM", LLAMA, False, {"sdpa_attention.py": ATT}, "sdpa"),
    Case("qwen3 with positions", "Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}, True),
    Case("qwen3", "Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}, False, {"modeling_qwen3.py": ATT}),
    Case("qwen2 with positions", "Qwen2Config", "Qwen2ForCausalLM", LLAMA, True),
    Case("mistral with positions", "MistralConfig", "MistralForCausalLM", LLAMA, True),
    Case("gemma2 with positions", "Gemma2Config", "Gemma2ForCausalLM", {**LLAMA, "head_dim": 8}, True),
    Case("phi3", "Phi3Config", "Phi3ForCausalLM", {**LLAMA, "pad_token_id": 0}, False, {"modeling_phi3.py": ATT}),
    Case(
        "mixtral with positions", "MixtralConfig", "MixtralForCausalLM", {**LLAMA, "num_local_experts": 4}, True,
    ),
    Case("mixtral", "MixtralConfig", "MixtralForCausalLM", {**LLAMA, "num_local_experts": 4}, False,
         {"modeling_mixtral.py": ATT}),
    Case("gpt-neox with positions", "GPTNeoXConfig", "GPTNeoXForCausalLM", {**SMALL, "intermediate_size": 64}, True),
    Case("gpt-neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", {**SMALL, "intermediate_size": 64}, False,
         {"modeling_gpt_neox.py": ATT}),
    Case("gpt2", "GPT2Config", "GPT2LMHeadModel", dict(vocab_size=100, n_embd=32, n_layer=2, n_head=4), False,
         {"modeling_gpt2.py": ATT}),
    Case("bert", "BertConfig", "BertModel", {**SMALL, "intermediate_size": 64}, False, {"modeling_bert.py": ATT}),
    Case("lfm2", "Lfm2Config", "Lfm2ForCausalLM", {**LLAMA, "layer_types": ["conv", "full_attention"]}, True,
         {"modeling_lfm2.py": {"convolution"}}),
    Case("mamba", "MambaConfig", "MambaForCausalLM",
         dict(vocab_size=100, hidden_size=16, num_hidden_layers=1, state_size=4), False,
         {"modeling_mamba.py": {"convolution", "pointwise", "recurrence", "unknown", "shift"}}),
    Case("mamba2", "Mamba2Config", "Mamba2ForCausalLM",
         dict(vocab_size=100, hidden_size=16, num_hidden_layers=1, state_size=4, num_heads=4, head_dim=8, n_groups=1,
              chunk_size=8), False, {"modeling_mamba2.py": {"convolution", "product", "pooling", "cumulative"}}),
    Case("qwen3-next", "Qwen3NextConfig", "Qwen3NextForCausalLM",
         dict(vocab_size=100, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
              num_key_value_heads=1, head_dim=16, linear_num_value_heads=2, linear_num_key_heads=2,
              linear_key_head_dim=8, linear_value_head_dim=8, num_experts=2, num_experts_per_tok=1,
              moe_intermediate_size=16, shared_expert_intermediate_size=16,
              layer_types=["linear_attention", "full_attention"]), True,
         {"modeling_qwen3_next.py": {"convolution", "product", "pointwise", "unknown", "pooling", "cumulative"}}),
    Case("falcon-h1", "FalconH1Config", "FalconH1ForCausalLM",
         {**LLAMA, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8},
         True, {"modeling_falcon_h1.py": {"convolution", "product"}}),
    Case("rwkv", "RwkvConfig", "RwkvForCausalLM",
         dict(vocab_size=100, context_length=32, hidden_size=32, num_hidden_layers=2), False,
         {"modeling_rwkv.py": {"shift", "pointwise"}}),
    Case("recurrent-gemma", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM",
         {**LLAMA, "lru_width": 32, "attention_window_size": 64, "block_types": ["recurrent", "attention"]}, True,
         {"modeling_recurrent_gemma.py": {"convolution", "pointwise"}}),
    Case("olmoe with positions", "OlmoeConfig", "OlmoeForCausalLM",
         {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}, True),
    Case("bamba", "BambaConfig", "BambaForCausalLM",
         {**LLAMA, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8,
          "attn_layer_indices": [1]}, True, {"modeling_bamba.py": {"convolution", "product"}}),
]  # fmt: skip
