"""Loops over ``range()`` in steps that are none over documents: chunks of tokens, recurrences. They cost what they cost
in stock torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import packpass


def chunks_of_tokens(hidden: Tensor, labels: Tensor) -> Tensor:
    total = hidden.new_zeros(())
    for i in range(0, labels.shape[0], 4):
        scores = hidden[i : i + 4].log_softmax(-1)
        total = total + torch.nn.functional.nll_loss(scores, labels[i : i + 4], reduction="sum")
    return total


def a_recurrence(hidden: Tensor, labels: Tensor) -> Tensor:
    before, out = hidden.new_zeros(hidden.shape[1]), []
    for t in reversed(range(labels.shape[0])):
        before = hidden[t] + 0.5 * before
        out.append(before)
    return torch.stack(out[::-1])


def counted_down(hidden: Tensor, labels: Tensor) -> Tensor:
    out = [hidden[t] * labels[t] for t in range(len(labels) - 1, -1, -1)]
    return torch.stack(out)


@pytest.mark.parametrize("fn", [chunks_of_tokens, a_recurrence, counted_down], ids=lambda fn: fn.__name__)
def test_no_more_graphs_than_stock_torch(fn: Callable[..., Any]) -> None:
    graphs = []
    for backend, options in (("eager", None), (packpass.backend, {"packpass.inner_backend": "eager"})):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(fn, backend=backend, options=options)
        for tokens in (12, 20, 7):
            hidden, labels = torch.randn(tokens, 5), torch.arange(tokens) % 5
            torch.testing.assert_close(compiled(hidden, labels), fn(hidden, labels))
        assert not counters["graph_break"]
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] <= graphs[0]
