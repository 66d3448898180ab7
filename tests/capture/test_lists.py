"""Lists with one tensor per document that are stacked, joined or padded: captured once for every N, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.utils.rnn import pad_sequence

import packpass

from .support import no_rule

OPTIONS: dict[str, Any] = {"packpass.inner_backend": "eager"}
SIZES = (torch.tensor([0, 3, 4, 12]), torch.tensor([0, 2, 3, 5, 9, 12]), torch.tensor([0, 12]))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def pieces(x: Tensor, cu: Tensor) -> list[Tensor]:
    """The loop stays a loop."""
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(no_rule(x[s:e], 0))
    return ys


def stacked(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([y.sum(0) for y in pieces(x, cu)], dim=-1)


def stacked_in_one_loop(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(no_rule(x[s:e], 0).sum(0))
    return torch.stack(ys, dim=1)


def joined(x: Tensor, cu: Tensor) -> Tensor:
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        ys.append(no_rule(x[s:e], 0).sum(0, keepdim=True))
    return torch.cat(tuple(ys)) + 1


def padded(x: Tensor, cu: Tensor) -> Tensor:
    return pad_sequence(pieces(x, cu), batch_first=True, padding_value=7)


def running_extremes(x: Tensor, cu: Tensor) -> Tensor:
    """The shadows of ``cummax`` and ``logsumexp`` must be torch's own again where the loop is replayed."""
    ys = []
    for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
        values, indices = x[s:e].cummax(0)
        ys.append(values.sum(0) + indices.sum(0) + torch.logsumexp(no_rule(x[s:e], 0), 0))
    return torch.stack(ys)


@pytest.mark.parametrize("fn", [stacked, stacked_in_one_loop, joined, padded, running_extremes])
def test_one_graph_for_every_number_of_documents(fn: Callable[..., Any]) -> None:
    compiled = torch.compile(fn, backend=packpass.backend, options=OPTIONS, fullgraph=True)
    for cu in SIZES:
        x = torch.randn(12, 4)
        want, got = (f(x.clone().requires_grad_(), cu) for f in (fn, compiled))
        assert torch.equal(want, got)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("fn", [stacked_in_one_loop, running_extremes])
def test_gradient_of_a_replayed_loop(fn: Callable[..., Any]) -> None:
    grads = []
    for f in (fn, torch.compile(fn, backend=packpass.backend, options=OPTIONS, fullgraph=True)):
        x = torch.linspace(0, 1, 48).sin().view(12, 4).requires_grad_()
        f(x, SIZES[0]).square().sum().backward()
        assert x.grad is not None
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_a_list_without_the_skipped_documents_is_not_replayed() -> None:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        ys = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            if e - s < 3:
                continue
            ys.append(no_rule(x[s:e], 0).sum(0))
        return torch.stack(ys)

    x = torch.randn(12, 4)
    report = packpass.explain(f, options=OPTIONS)(x, SIZES[1])
    assert torch.equal(report.result, f(x, SIZES[1])) and not report.rewrites


def test_the_length_of_a_list_is_the_number_of_documents() -> None:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        ys = [x[s:e].sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
        return torch.stack(ys) * len(ys)

    x = torch.randn(12, 4)
    report = packpass.explain(f, options=OPTIONS)(x, SIZES[0])
    torch.testing.assert_close(report.result, f(x, SIZES[0]))
    assert report.rewrites
    assert not report.refusals


def test_a_list_is_left_to_stock_torch_where_one_entry_is_asked_for() -> None:
    def f(x: Tensor, cu: Tensor) -> Tensor:
        ys = [x[s:e].sum(0) for s, e in zip(cu[:-1].tolist(), cu[1:].tolist())]
        return torch.stack(ys) * ys[1]

    x = torch.randn(12, 4)
    report = packpass.explain(f, options=OPTIONS)(x, SIZES[0])
    assert torch.equal(report.result, f(x, SIZES[0]))
    assert report.refusals[0].code == "list-use"
