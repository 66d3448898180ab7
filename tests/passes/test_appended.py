"""What all documents share, collected once per document: rewritten and equal to eager, or left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import packpass

from .collected import Body, compiled, equal_to_eager, refusal_of

CU = torch.tensor([0, 3, 3, 8])


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


BODIES: dict[str, tuple[Body, str]] = {
    "zeros": (lambda x: x.new_zeros(2, 3), "stack"),
    "zeros_joined": (lambda x: x.new_zeros(2, 3), "cat"),
    "nothing": (lambda x: x.new_ones((2, 0)), "stack"),
    "filled": (lambda x: x.new_full((2,), 1.5, dtype=torch.float64), "stack"),
    "a_number": (lambda x: x.new_full((), 3, dtype=torch.int64), "stack"),
    "computed": (lambda x: (torch.arange(4) * 2).float().softmax(0), "cat"),
}


@pytest.mark.parametrize("name", BODIES)
def test_rewritten_and_equal(name: str) -> None:
    equal_to_eager(*BODIES[name])


def test_a_weight_gets_its_gradient_from_every_document() -> None:
    def collected(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out.append(w.exp())
            _ = x[s:e] * 2
        return torch.stack(out)

    fast = compiled(collected)
    grads = []
    for fn in (collected, fast):
        w = torch.tensor([0.5, -1.0], requires_grad=True)
        out = fn(torch.randn(8, 2), w, CU)
        (out * torch.arange(6.0).view(3, 2)).sum().backward()
        grads.append(w.grad)
    torch.testing.assert_close(*grads)


def test_the_result_may_be_written() -> None:
    def collected(x: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out.append(x[s:e].new_zeros(2))
        made = torch.stack(out)
        made[1] = 5
        return made

    assert torch.equal(compiled(collected)(torch.randn(8, 2), CU), collected(torch.randn(8, 2), CU))


LEFT_ALONE: dict[str, tuple[Callable[..., Any], str]] = {
    "drawn": (lambda x: torch.rand(3) * 0, "stack"),
    "drawn_in_place": (lambda x: x.new_zeros(2).uniform_(1, 1), "stack"),
    "as_long_as_drawn": (lambda x: x.new_zeros(int(torch.randint(1, 2, ()))), "cat"),
    "a_dropped_weight": (lambda x: torch.nn.functional.dropout(torch.zeros(3), 0.5), "stack"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name: str) -> None:
    assert refusal_of(*LEFT_ALONE[name])


@pytest.mark.parametrize("view", [False, True])
def test_left_alone_if_it_is_changed_before_it_is_stacked(view: bool) -> None:
    def collected(x: Tensor, w: Tensor, cu: Tensor) -> Tensor:
        out = []
        for s, e in zip(cu[:-1].tolist(), cu[1:].tolist()):
            out.append(w[0] if view else w)
            _ = x[s:e] * 2
        w.add_(1)
        return torch.stack(out)

    want = collected(torch.zeros(8, 2), torch.ones(2, 2), CU)
    report = packpass.explain(collected, options={"packpass.inner_backend": "eager"})(
        torch.zeros(8, 2), torch.ones(2, 2), CU
    )
    assert not report.rewrites
    assert torch.equal(report.result, want)
