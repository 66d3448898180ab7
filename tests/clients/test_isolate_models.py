"""Language models of transformers, written for one document per row, on packed rows with ``isolate``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
MIXED_LAYERS = {"head_dim": 8, **HEADS}
MODELS: dict[str, dict[str, Any]] = {
    "lfm2": {**HEADS, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    "llama": HEADS,
    "qwen3": MIXED_LAYERS,
    "mamba2": {
        "num_hidden_layers": 1,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
        "expand": 2,
        "chunk_size": 16,
    },
    "qwen3_next": {
        **MIXED_LAYERS,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_only_layers": [0, 1],
        "num_experts": 0,
    },
}
OF_ONE_LENGTH: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4, "use_associative_scan": False, "num_hidden_layers": 1},
    "rwkv": {"attention_hidden_size": 32, "context_length": 256},
    "recurrent_gemma": {**HEADS, "num_key_value_heads": 1, "head_dim": 8, "lru_width": 32, "num_hidden_layers": 1},
}
"""Python loops over tokens: torch compiles them for one length of the row."""
ON: dict[str, Any] = {"packpass.isolate": True, "packpass.inner_backend": "eager"}
BATCHES = ((0, 7, 20), (0, 3, 3, 9, 31), (0, 1, 25))


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Step(nn.Module):
    """The model as a user calls it; nothing is said about positions or masks."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        if cu_seqlens is not None:
            ids = packpass.packed(ids, cu_seqlens, dim=1)
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits


def model_of(name: str, **settings: Any) -> Step:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **{**SIZES, **settings})
    return Step(transformers.AutoModelForCausalLM.from_config(config)).train()


def gradients(model: Step, out: Tensor) -> list[Tensor]:
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad((out * seed).sum(), list(model.parameters()), allow_unused=True)
    return [g for g in found if g is not None]


def check(model: Step, compiled: Any, bounds: tuple[int, ...]) -> None:
    """Outputs and gradients are those of document by document."""
    ids = torch.randint(3, 60, (1, bounds[-1]), generator=torch.Generator().manual_seed(bounds[-1]))
    out = compiled(ids, torch.tensor(bounds, dtype=torch.int32))
    want = torch.cat([model(ids[:, a:b]) for a, b in pairwise(bounds) if b > a], 1)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-4)
    for got, expected in zip(gradients(model, out), gradients(model, want), strict=True):
        assert (got - expected).abs().max() <= 1e-5 * (1 + expected.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_every_document_is_as_if_alone(name: str) -> None:
    model = model_of(name, **MODELS[name])
    compiled = torch.compile(model, backend=packpass.backend, options=ON)
    for bounds in BATCHES:
        check(model, compiled, bounds)
    assert counters["packpass"]["rewrite:isolate"]
    assert counters["stats"]["unique_graphs"] <= 2


EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **MODELS["qwen3_next"],
        "mlp_only_layers": [],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "mixtral": {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
}
"""Tokens go to experts one by one: nothing there is of other tokens."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERTS)
def test_models_with_experts(name: str) -> None:
    model = model_of(name, **EXPERTS[name])
    compiled = torch.compile(model, backend=packpass.backend, options=ON)
    for bounds in BATCHES:
        check(model, compiled, bounds)
    assert counters["packpass"]["rewrite:isolate"]
    assert not [key for key in counters["packpass"] if key.startswith("refusal")]


@pytest.mark.parametrize("name", [*OF_ONE_LENGTH, "mamba with its associative scan"])
def test_loops_over_tokens(name: str) -> None:
    kind, _, scanned = name.partition(" ")
    model = model_of(kind, **{**OF_ONE_LENGTH[kind], **({"use_associative_scan": True} if scanned else {})})
    compiled = torch.compile(model, backend=packpass.backend, options=ON)
    check(model, compiled, BATCHES[0])
    assert counters["packpass"]["rewrite:isolate"]


@pytest.mark.slow
def test_a_row_that_is_a_multiple_of_the_chunk_pads_documents_to_multiples() -> None:
    """Code that was traced for such a row has no padding of its own."""
    model = model_of("mamba2", **MODELS["mamba2"])
    compiled = torch.compile(model, backend=packpass.backend, options=ON)
    for bounds in ((0, 7, 64), (0, 30, 31, 96)):
        check(model, compiled, bounds)
    assert counters["packpass"]["rewrite:isolate"]
    assert not [key for key in counters["packpass"] if key.startswith("refusal")]
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_nothing_happens_without_the_option(name: str) -> None:
    model = model_of(name, **MODELS[name])
    ids, cu_seqlens = torch.randint(3, 60, (1, 20)), torch.tensor([0, 7, 20])
    compiled = torch.compile(model, backend=packpass.backend, options={"packpass.inner_backend": "eager"})
    torch.testing.assert_close(compiled(ids, cu_seqlens), model(ids))
    assert not counters["packpass"]["rewrite:isolate"]


def test_a_row_of_one_document_is_the_model_itself() -> None:
    model = model_of("llama", **MODELS["llama"])
    compiled = torch.compile(model, backend=packpass.backend, options=ON)
    ids = torch.randint(3, 60, (1, 20))
    torch.testing.assert_close(compiled(ids, torch.tensor([0, 20])), model(ids), atol=1e-5, rtol=1e-4)


def test_without_boundaries_the_model_is_as_it_was_and_the_report_says_what_to_give() -> None:
    model = model_of("lfm2", **MODELS["lfm2"])
    ids = torch.randint(3, 60, (1, 20))
    report = packpass.explain(model, options=ON)(ids)
    torch.testing.assert_close(report.result, model(ids))
    assert [r.code for r in report.refusals] == ["no-boundaries"]
    assert "packpass.packed" in report.refusals[0].reason
