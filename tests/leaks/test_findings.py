"""``explain`` names what mixes documents, from the graph alone, and only where the layout proves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import packpass
from packpass.ops import varlen_attention
from tests.leaks.planted import CONV, CU, LINEAR, T, planted_lines, row, same_document

EAGER = {"options": {"packpass.inner_backend": "eager"}}


def convolution(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = LINEAR(hidden_states).transpose(1, 2)
    return CONV(y)[..., :T].transpose(1, 2)  # leak


def declared_sum(x: Tensor, ends: Tensor) -> Tensor:
    x = packpass.packed(x, ends, 1)
    return LINEAR(x).cumsum(1)  # leak


def causal(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = LINEAR(hidden_states)[:, None]
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]  # leak


def turned(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(hidden_states.flip(1))  # leak


def beside_attention(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = LINEAR(x)[0].unflatten(-1, (2, 6))
    y = varlen_attention(q, q, q, cu_seqlens).flatten(1)
    return F.max_pool1d(y.T, 3, 1, 1).T  # leak


# === Nothing to find ========================================================================================


def token_wise(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    return F.layer_norm(LINEAR(hidden_states), (12,)).softmax(-1)


def given_boundaries(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = LINEAR(x)[0].unflatten(-1, (2, 6))
    return varlen_attention(q, q, q, cu_seqlens)


def given_a_mask(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    q = LINEAR(hidden_states)[:, None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=same_document(cu_seqlens))


def masked_scores(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    scores = LINEAR(hidden_states) @ hidden_states.transpose(1, 2)
    return scores.masked_fill(~same_document(cu_seqlens), float("-inf")).softmax(-1) @ hidden_states


def nothing_packed(x: Tensor, y: Tensor) -> Tensor:
    return CONV(x.transpose(1, 2)).cumsum(-1)


def counted(hidden_states: Tensor, loss_mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(hidden_states) * loss_mask.long().cumsum(1)[..., None]


def summed(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(hidden_states).square().mean()


def along_features(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(hidden_states).cumsum(-1).flip(-1).roll(1, -1)


def fixed_shift(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    return LINEAR(torch.cat([hidden_states[:, 1:], torch.zeros_like(hidden_states[:, :1])], 1))


def fixed_roll(hidden_states: Tensor, cu_seqlens: Tensor) -> Tensor:
    y = torch.roll(hidden_states, -1, 1)
    y[:, -1] = 0
    return LINEAR(y)


@pytest.mark.parametrize("model", [convolution, declared_sum, causal, turned, beside_attention])
def test_what_mixes_is_named(model: Callable[..., Any]) -> None:
    report = packpass.explain(model, **EAGER)(row(), CU.int())
    (finding,) = report.findings
    assert finding.code == "mixes-documents"
    assert {int(finding.location.rpartition(":")[2])} == planted_lines(model)
    assert finding.operation in finding.reason
    assert "mixes-documents" in str(report)
    assert json.loads(report.to_json())["findings"][0]["location"] == finding.location


@pytest.mark.parametrize(
    "model",
    [
        *(token_wise, given_boundaries, given_a_mask, masked_scores, nothing_packed, summed, along_features),
        *(fixed_shift, fixed_roll),
    ],
)
def test_no_finding(model: Callable[..., Any]) -> None:
    report = packpass.explain(model, **EAGER)(row(), CU.int())
    assert report.findings == []
    assert "mixes-documents" not in str(report)


def test_counting_tokens_is_no_finding() -> None:
    assert packpass.explain(counted, **EAGER)(row(), torch.ones(1, T), CU).findings == []
