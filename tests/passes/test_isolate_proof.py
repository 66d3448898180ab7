"""The proof of ``isolate``: a graph in which one document sees another is found out, and no other is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from passes.isolate.proof import leak_of

BOUNDS = (0, 7, 12, 20)


def leak(function: Callable[[Tensor], Tensor], x: Tensor, dim: int = 0) -> str:
    """What the proof says of a graph whose every value is packed along ``dim``."""
    gm = fx.symbolic_trace(function)
    rows = {node: dim for node in gm.graph.nodes if node.op != "output"}
    (results,) = next(node for node in gm.graph.nodes if node.op == "output").args
    return leak_of(gm, [x], rows, {results: dim}, torch.tensor(BOUNDS))


def per_document(x: Tensor) -> Tensor:
    parts = [x[a:b].cumsum(0) for a, b in zip(BOUNDS, BOUNDS[1:], strict=False)]
    return torch.cat(parts)


def test_a_clean_graph() -> None:
    assert leak(per_document, torch.randn(20, 4)) == ""


@pytest.mark.parametrize("shape", [(20, 4), (20, 20), (20, 3)])
def test_a_leak(shape: tuple[int, ...]) -> None:
    """Also where another dimension is as long as the row."""
    assert "document 1 still changes with document 0" in leak(lambda x: x.cumsum(0), torch.randn(shape))


def test_a_leak_of_tokens() -> None:
    table = torch.randn(50, 4)
    tokens = torch.randint(0, 50, (20,))
    assert leak(lambda ids: table[ids].roll(1, 0), tokens)
    assert leak(lambda ids: per_document(table[ids]), tokens) == ""


def test_a_leak_of_gradients_alone() -> None:
    def hidden(x: Tensor) -> Tensor:
        before = x.roll(1, 0)
        return x + (before - before.detach())

    x = torch.randn(20, 4)
    assert "gradient" in leak(hidden, x)
    with torch.no_grad():
        assert leak(hidden, x) == ""


def test_one_document_has_nobody_to_see() -> None:
    gm = fx.symbolic_trace(lambda x: x.cumsum(0))
    x, out = (node for node in gm.graph.nodes if node.op != "output")
    assert leak_of(gm, [torch.randn(20, 4)], {x: 0, out: 0}, {out: 0}, torch.tensor([0, 0, 20])) == ""


def test_rounding_is_no_leak() -> None:
    """All documents in one product: its last bits may depend on what lies beside."""
    weight = torch.randn(64, 64)
    assert leak(lambda x: x @ weight, torch.randn(20, 64)) == ""


def test_nan_is_never_clean() -> None:
    assert "no numbers" in leak(lambda x: per_document(x - x) / (x - x), torch.randn(20, 4))
