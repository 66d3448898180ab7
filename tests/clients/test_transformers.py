"""Causal language models of transformers on the rows of its flattening collator, through packpass.

The collator gives ``input_ids``, ``labels``, ``position_ids`` ``[1, T]`` and, as keywords of the call, the boundaries
``cu_seq_lens_q``; the loss shifts the labels inside (a pad by -100 and a slice), with no regard to documents. The
collator guards itself by -100 as the first label of every document; labels that are simply the ids leak.

Attention is a function registered under a name, as transformers lets users do. Its own flash attention needs a GPU, and
its other functions attend over the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import packpass
from packpass.ops import varlen_attention
from perf.models.batches import largest_gradient_error

transformers = pytest.importorskip("transformers")

NAME = "packpass_varlen"
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"head_dim": 8}),
}


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """``[1, heads, T, size]`` to ``[1, T, heads, size]``; without boundaries the row is one document."""
    if cu_seq_lens_q is None:
        cu_seq_lens_q = cu_seq_lens_k = torch.tensor([0, query.shape[2]], dtype=torch.int32)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return varlen_attention(q, k, v, cu_seq_lens_q, cu_seq_lens_k, is_causal=True, scale=scaling)[None], None


def no_mask(*_: Any, **__: Any) -> None:
    return None


transformers.AttentionInterface.register(NAME, packed_attention)
transformers.AttentionMaskInterface.register(NAME, no_mask)


def model_of(name: str) -> nn.Module:
    config_class, model_class, changes = MODELS[name]
    config = config_class(**SIZES, **changes)
    config._attn_implementation = NAME
    torch.manual_seed(0)
    model: nn.Module = model_class(config)
    return model


def batch(lengths: list[int], plain_labels: bool) -> dict[str, Any]:
    """What the collator makes of documents of these lengths; ``plain_labels``: the labels are the ids."""
    numbers = torch.Generator().manual_seed(len(lengths))
    documents = [{"input_ids": torch.randint(1, 97, (length,), generator=numbers).tolist()} for length in lengths]
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    found = dict(collator(documents))
    if plain_labels:
        found["labels"] = found["input_ids"].clone()
    return found


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return found


def one_by_one(model: nn.Module, data: dict[str, Any]) -> tuple[float, list[Tensor | None]]:
    """Mean loss over all labels, every document in a call of its own."""
    lengths = data["cu_seq_lens_q"].diff().tolist()
    count, total = sum(max(0, length - 1) for length in lengths), 0.0
    for ids in data["input_ids"][0].split(lengths):
        if len(ids) > 1:
            loss = model(input_ids=ids[None], labels=ids[None], num_items_in_batch=count).loss
            loss.backward()
            total += float(loss)
    return total, gradients(model)


def compiled(model: nn.Module, inner: str = "aot_eager", **options: Any) -> Any:
    counters.clear()
    settings = {"packpass.inner_backend": inner, **{f"packpass.{k}": v for k, v in options.items()}}
    return torch.compile(model, backend=packpass.backend, fullgraph=True, options=settings)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


LENGTHS = [[5, 1, 9, 17], [30], [2, 2, 3, 1, 1, 20, 4], [12, 11]]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plain_labels", [False, True], ids=["collator's labels", "ids as labels"])
def test_packed_equals_one_by_one(name: str, plain_labels: bool) -> None:
    """Compiled once for four batches, with other numbers of documents and of slots."""
    model = model_of(name)
    call = compiled(model)
    for lengths in LENGTHS:
        data = batch(lengths, plain_labels)
        expected, wanted = one_by_one(model, data)
        loss = call(**data).loss
        assert float(loss) == pytest.approx(expected, abs=1e-5)
        loss.backward()
        assert largest_gradient_error(gradients(model), wanted) <= 1e-5
    assert counters["stats"]["unique_graphs"] <= 2


def test_without_packpass_plain_labels_leak() -> None:
    model, data = model_of("llama"), batch(LENGTHS[0], plain_labels=True)
    expected, wanted = one_by_one(model, data)
    loss = model(**data).loss
    assert abs(float(loss) - expected) > 1e-3
    loss.backward()
    assert largest_gradient_error(gradients(model), wanted) > 1e-2
    off = compiled(model, fix_shifts="off")(**data).loss
    assert float(off) == pytest.approx(float(loss), abs=1e-6)


def test_the_report_names_the_shift_of_the_loss() -> None:
    model, data = model_of("llama"), batch(LENGTHS[0], plain_labels=True)
    report = packpass.explain(model, options={"packpass.inner_backend": "eager"})(**data)
    assert [item.rule for item in report.rewrites] == ["pack_shifts"]
    assert "loss_utils.py" in report.rewrites[0].location
    assert report.boundary_sources == ["input cu_seq_lens_q"]
    assert (report.graphs, report.graph_breaks) == (1, 0)


def test_a_padded_batch_is_left_alone() -> None:
    """No boundaries, no packed rows: two rows of one document each."""
    model = model_of("llama")
    config = model.config
    config._attn_implementation = "eager"
    ids = torch.randint(1, 97, (2, 12), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=ids, labels=ids).loss
    report = packpass.explain(model, options={"packpass.inner_backend": "eager"})(input_ids=ids, labels=ids)
    assert report.rewrites == []
    assert torch.equal(report.result.loss, expected)


@pytest.mark.slow
def test_through_inductor() -> None:
    model = model_of("llama")
    call = compiled(model, "inductor")
    for lengths in LENGTHS:
        data = batch(lengths, plain_labels=True)
        expected, wanted = one_by_one(model, data)
        loss = call(**data).loss
        assert float(loss) == pytest.approx(expected, abs=1e-5)
        loss.backward()
        assert largest_gradient_error(gradients(model), wanted) <= 1e-5
    assert counters["stats"]["unique_graphs"] <= 2
