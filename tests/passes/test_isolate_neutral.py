"""What would be counted or summed behind a document's end, and is not: means, full attention that is written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters

import packpass
from packpass.ops._each_document import hidden, neutral

from .test_isolate import BATCHES, ON, _reset, alone, check, compiled_with, gradients  # noqa: F401  (a fixture)

Program = Callable[[Tensor, Tensor], Tensor]


# === Programs ================================================================================================


def mean_of_the_row(x: Tensor, weight: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def mean_of_everything(x: Tensor, weight: Tensor) -> Tensor:
    return x * x.mean((1, 2), keepdim=True)


def largest_of_the_row(x: Tensor, weight: Tensor) -> Tensor:
    return x * x.amax(1, keepdim=True).sigmoid()


def squeezed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.mean(1) @ weight[..., 0]).sigmoid()[:, None]


def attention_written_out(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ (x + 1)


def attention_in_letters(x: Tensor, weight: Tensor) -> Tensor:
    q, k = (torch.einsum("btc,cd->btd", x, weight[..., i]).unflatten(-1, (2, 4)) for i in (0, 1))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    return torch.einsum("bhqk,bkc->bqhc", scores.softmax(-1), x).flatten(2)


def neighbours_both_ways(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    near = (places[:, None] - places).abs() <= 2
    return F.scaled_dot_product_attention(x, x @ weight[..., 0], x, attn_mask=near)


def biased_by_distance(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    bias = -(places[:, None] - places).abs() * 0.5
    return F.scaled_dot_product_attention(x, x @ weight[..., 0], x, attn_mask=bias)


def learned_distances(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    bias = weight.flatten()[(places[:, None] - places).clamp(-8, 8) + 8]
    return (x @ x.mT + bias).softmax(-1) @ x


def linear_attention(x: Tensor, weight: Tensor) -> Tensor:
    q, k = F.elu(x @ weight[..., 0]) + 1, F.elu(x @ weight[..., 1]) + 1
    return (q @ (k.mT @ x)) / (q @ k.sum(1).unsqueeze(-1))


def up_to_the_largest(x: Tensor, weight: Tensor) -> Tensor:
    """Where a value behind the end is neither largest nor smallest in the example by chance."""
    return x * (torch.arange(x.shape[1])[:, None] <= x.argmax(1, keepdim=True))


def how_many_and_whether(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x > 0).sum(1, keepdim=True) + (x > 1.5).any(1, keepdim=True) + (x < 2).all(1, keepdim=True)


def keys_hidden_by_tokens(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ x.mT).masked_fill((x[..., 0] < 0)[:, None], -1e9).softmax(-1) @ x


def pooled_to_three(x: Tensor, weight: Tensor) -> Tensor:
    pooled = F.scaled_dot_product_attention(weight[:1, :3].mT @ weight[:1, :3], x[..., :4], x)
    return x @ pooled.mT @ pooled


HEADS = torch.nn.MultiheadAttention(8, 2, batch_first=True)
LAYER = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def several_heads(x: Tensor, weight: Tensor) -> Tensor:
    return HEADS(x, x @ weight[..., 0], x)[0]


def layer_of_a_transformer(x: Tensor, weight: Tensor) -> Tensor:
    return LAYER(x)


def positions_by_counting(x: Tensor, weight: Tensor) -> Tensor:
    places = torch.ones_like(x[..., 0], dtype=torch.long).cumsum(1) - 1
    return x + F.embedding(places, weight.reshape(-1, 8).repeat(2, 1))


@pytest.mark.parametrize(
    "program",
    [
        mean_of_the_row, mean_of_everything, largest_of_the_row, squeezed, attention_written_out, attention_in_letters,
        neighbours_both_ways, biased_by_distance, learned_distances, linear_attention, positions_by_counting,
        up_to_the_largest, how_many_and_whether, keys_hidden_by_tokens, pooled_to_three,
        several_heads, layer_of_a_transformer,
    ],
    ids=lambda p: p.__name__,
)  # fmt: skip
def test_every_document_is_as_if_alone(program: Program) -> None:
    compiled = compiled_with(program)
    for bounds in (*BATCHES, (0, 2, 5, 6, 6, 40)):
        check(compiled, program, bounds)
    assert counters["packpass"]["rewrite:isolate"], counters["packpass"]
    assert not [key for key in counters["packpass"] if key.startswith("refusal")]
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize("program", [mean_of_the_row, attention_written_out, biased_by_distance])
def test_with_inductor(program: Program) -> None:
    compiled = compiled_with(program, {"packpass.isolate": True})
    for bounds in BATCHES[:2]:
        check(compiled, program, bounds)


def test_documents_of_very_different_lengths() -> None:
    compiled = compiled_with(attention_written_out)
    check(compiled, attention_written_out, (0, 90, 91, 93, 94, 97, 98, 101, 103, 104, 106, 108))
    assert counters["packpass"]["rewrite:isolate"]


def test_half_precision() -> None:
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return mean_of_the_row(x.bfloat16(), weight)

    x, weight = torch.randn(1, 20, 8), torch.randn(8, 8, 4)
    out = compiled_with(forward)(x, weight, torch.tensor([0, 7, 20]))
    torch.testing.assert_close(out, alone(forward, x, weight, (0, 7, 20)), atol=0.02, rtol=0.02)


# === With other passes =======================================================================================


def test_beside_a_shift_that_is_fixed() -> None:
    """Boundaries that another pass has checked are the same ones, and may be needed before it made them."""

    def forward(input_ids: Tensor, table: Tensor, weight: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        x = F.embedding(input_ids, table)
        y = F.scaled_dot_product_attention(x, x @ weight[..., 0], x, is_causal=True)
        logits = y + y.cumsum(1)
        losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten(), reduction="sum")
        return logits, losses

    compiled = torch.compile(forward, backend=packpass.backend, options=ON)
    for bounds in BATCHES:
        rng = torch.Generator().manual_seed(bounds[-1])
        ids = torch.randint(0, 8, (1, bounds[-1]), generator=rng)
        table = torch.randn(8, 8, generator=rng, requires_grad=True)
        weight = torch.randn(8, 8, 4, generator=rng, requires_grad=True)
        logits, loss = compiled(ids, table, weight, torch.tensor(bounds))
        parts = [
            forward(ids[:, s:e], table, weight, torch.tensor([0, e - s]))
            for s, e in zip(bounds, bounds[1:], strict=False)
            if e > s
        ]
        torch.testing.assert_close(logits, torch.cat([part for part, _ in parts], 1), atol=1e-5, rtol=1e-4)
        want = torch.stack([part for _, part in parts]).sum()
        torch.testing.assert_close(loss, want, atol=1e-4, rtol=1e-5)
        for got, expected in zip(gradients(loss, table, weight), gradients(want, table, weight), strict=True):
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert counters["packpass"]["rewrite:isolate"] >= 2
    assert counters["packpass"]["rewrite:pack_shifts"]


def test_boundaries_that_another_pass_made_late() -> None:
    def forward(input_ids: Tensor, table: Tensor, weight: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.conv1d(F.pad(F.embedding(input_ids, table).mT, (3, 0)), weight[:, :1], groups=8).mT
        targets = F.pad(input_ids[:, 1:], (0, 1), value=-100)
        return logits, F.cross_entropy(logits[0], targets[0], reduction="none")

    compiled = torch.compile(forward, backend=packpass.backend, options=ON)
    ids, table, weight = torch.arange(20)[None] * 3 % 8, torch.randn(8, 8), torch.randn(8, 8, 4)
    found = compiled(ids, table, weight, torch.tensor([0, 7, 20]))
    parts = [forward(part, table, weight, torch.tensor([0])) for part in (ids[:, :7], ids[:, 7:])]
    torch.testing.assert_close(found[0], torch.cat([part[0] for part in parts], 1))
    torch.testing.assert_close(found[1], torch.cat([part[1] for part in parts]))
    assert counters["packpass"]["rewrite:isolate"] == counters["packpass"]["rewrite:pack_shifts"] == 1


# === The parts ===============================================================================================


def test_neutral_slots_of_every_type() -> None:
    count = torch.tensor(2)
    assert neutral(torch.arange(4), 0, count, -math.inf)[2:].tolist() == [torch.iinfo(torch.int64).min] * 2
    assert neutral(torch.ones(4, dtype=torch.bool), 0, count, 0.0).tolist() == [True, True, False, False]
    assert neutral(torch.zeros(2, 3), 1, count, math.inf)[:, 2].tolist() == [math.inf] * 2


@pytest.mark.parametrize("mask", [None, torch.ones(4, 4, dtype=torch.bool).tril(), torch.zeros(4, 4)])
def test_hidden_keys(mask: Tensor | None) -> None:
    x = torch.randn(4, 8)
    found = hidden(mask, x, x, torch.tensor(2))
    shown = found if found.dtype is torch.bool else found == 0
    assert not shown[:2, 2:].any()
    assert shown[2:].any(1).all()
    assert not torch.broadcast_to(hidden(None, None, x, torch.tensor(2)), (3, 4))[:, 2:].any()
