"""Unmodified models of transformers with random weights on padded batches of real text, on their real tokens only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import packpass
from packpass.engine import unpadded

transformers = pytest.importorskip("transformers")

VOCABULARY = 97
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 64}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 64}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", BERT),
    "bert, masked": ("BertConfig", "BertForMaskedLM", BERT),
    "roberta, per token": ("RobertaConfig", "RobertaForTokenClassification", {**BERT, "num_labels": VOCABULARY}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**LLAMA, "head_dim": 8}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}),
}
WITH_LABELS = ("bert, masked", "roberta, per token", "llama", "qwen3")
RULE = "eliminate_padding"
OPTIONS: dict[str, Any] = {"packpass.eliminate_padding": True, "packpass.inner_backend": "eager"}


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(name: str, attention: str) -> nn.Module:
    config_class, model_class, sizes = MODELS[name]
    extra = {"bos_token_id": 1, "eos_token_id": 2} if name == "gpt2" else {}
    config = getattr(transformers, config_class)(**sizes, **extra, attn_implementation=attention)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, model_class)(config)
    return model.eval()


def sentences() -> list[list[int]]:
    """The lines of torch's own documentation of attention, one id per word."""
    lines = (nn.functional.scaled_dot_product_attention.__doc__ or "").splitlines()
    words = [line.split() for line in lines if len(line.split()) > 2]
    return [[3 + zlib.crc32(word.encode()) % (VOCABULARY - 3) for word in line] for line in words]


def padded(start: int, labels: bool, side: str = "right") -> dict[str, Tensor]:
    rows = sentences()[start : start + 4]
    longest = max(map(len, rows))
    ids, mask = torch.ones(4, longest, dtype=torch.long), torch.zeros(4, longest, dtype=torch.long)
    for b, row in enumerate(rows):
        place = slice(len(row)) if side == "right" else slice(longest - len(row), None)
        ids[b, place], mask[b, place] = torch.tensor(row), 1
    fields = {"input_ids": ids, "attention_mask": mask}
    return {**fields, "labels": ids.masked_fill(mask == 0, -100)} if labels else fields


def compare(model: nn.Module, compiled: Any, fields: dict[str, Tensor], **kwargs: Any) -> None:
    real = fields["attention_mask"].bool()
    want, got = model(**fields, **kwargs), compiled(**fields, **kwargs)
    losses = []
    for key, expected in want.items():
        found = got[key]
        if expected.shape[:2] == real.shape:
            torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)
            assert not found[~real].any()
            expected, found = expected[real], found[real]
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        losses.append((found.square().mean(), expected.square().mean()))
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(sum(side), parameters, allow_unused=True) for side in zip(*losses, strict=True)]
    for a, b in zip(*gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def count_compiles(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    real = unpadded.compile_for

    def counting(inner: Any, gm: Any, inputs: Any, sizes: Any) -> Any:
        seen.append(gm)
        return real(inner, gm, inputs, sizes)

    monkeypatch.setattr(unpadded, "compile_for", counting)
    return seen


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_packs(name: str, attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three batches of other lengths; two graphs at most, as dynamic shapes need."""
    model, seen = model_of(name, attention), count_compiles(monkeypatch)
    compiled = torch.compile(model, backend=packpass.backend, options=OPTIONS)
    more = {"use_cache": False} if name in ("llama", "qwen3", "gpt2") else {}
    for start in (0, 4, 8):
        compare(model, compiled, padded(start, name in WITH_LABELS), **more)
    assert 1 <= len(seen) <= 2
    assert all(any(node.name == "packed_source" for node in gm.graph.nodes) for gm in seen)


def test_left_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = model_of("llama", "sdpa"), count_compiles(monkeypatch)
    compiled = torch.compile(model, backend=packpass.backend, options=OPTIONS)
    compare(model, compiled, padded(0, False, "left"), use_cache=False)
    assert len(seen) == 1


def test_pooled_first_tokens_of_left_padded_rows_stay_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = model_of("bert", "sdpa"), count_compiles(monkeypatch)
    fields = padded(0, False, "left")
    got = torch.compile(model, backend=packpass.backend, options=OPTIONS)(**fields)
    torch.testing.assert_close(got.pooler_output, model(**fields).pooler_output)
    torch.testing.assert_close(got.last_hidden_state, model(**fields).last_hidden_state)
    assert [any(node.name == "packed_source" for node in gm.graph.nodes) for gm in seen] == [False]


@pytest.mark.parametrize("name", ["t5", "modernbert"])
def test_relative_positions_and_windows_are_refused(name: str) -> None:
    if name == "t5":
        config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=VOCABULARY)
        model = transformers.T5EncoderModel(config).eval()
    else:
        config = transformers.ModernBertConfig(**BERT, pad_token_id=0, attn_implementation="sdpa")
        model = transformers.ModernBertModel(config).eval()
    fields = padded(0, False)
    report = packpass.explain(model, options=OPTIONS)(**fields)
    assert RULE not in {r.rule for r in report.rewrites}
    assert {r.code for r in report.refusals if r.rule == RULE} == {"mask-not-padding"}
    torch._dynamo.reset()
    got = torch.compile(model, backend=packpass.backend, options=OPTIONS)(**fields)
    torch.testing.assert_close(got.last_hidden_state, model(**fields).last_hidden_state)
