"""Language models of transformers on the rows of its flattening collator: positions tell documents apart."""

from __future__ import annotations

from typing import Any

import torch

from tests.wild.batches import ids, over
from tests.wild.case import Program, case

SIZES: dict[str, Any] = dict(
    vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, use_cache=False, pad_token_id=0,
)  # fmt: skip
LENGTHS = ((5, 9), (3, 7, 2, 11), (32,) * 5, (50, 3, 30, 12, 9))


def model(name: str, attention: str = "sdpa", **settings: Any) -> Program:
    """``<name>ForCausalLM`` with its own attention and loss, on what the collator makes of documents."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    config._attn_implementation = attention
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}ForCausalLM")(config).train()
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)

    def batch(lengths: Any) -> Any:
        documents = [{"input_ids": ids(n, seed=i).tolist()} for i, n in enumerate(lengths)]
        return (), {k: v for k, v in collator(documents).items() if v is not None}

    return Program(made, over(batch, LENGTHS))


@case("transformers", loops=False)
def llama() -> Program:
    return model("Llama")


@case("transformers", loops=False)
def qwen3() -> Program:
    return model("Qwen3", head_dim=8)


@case("transformers", loops=False)
def mistral() -> Program:
    return model("Mistral", sliding_window=8)


@case("transformers", loops=False)
def olmo2() -> Program:
    return model("Olmo2")


@case("transformers", loops=False)
def gemma2() -> Program:
    return model("Gemma2", "eager", head_dim=8, sliding_window=8)


@case("transformers", graphs=3, loops=False)
def mamba2() -> Program:
    """A recurrent model without boundaries: nothing in its code knows of documents."""
    return model(
        "Mamba2", "eager", num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=16, conv_kernel=4, expand=2
    )


@case("transformers", loops=False)
def lfm2() -> Program:
    """Short convolutions between layers of attention."""
    return model("Lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3, block_auto_adjust_ff_dim=False)
