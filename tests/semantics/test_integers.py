"""What calls make of whole numbers: the same for every domain of sums."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.integers import Comparison, Counts, computed
from tests.semantics.graphs import method_node, node_of


@dataclasses.dataclass(frozen=True)
class Tokens(Counts):
    """``length * n + const`` for a document of n = 7 tokens."""

    length: int = 0
    const: int = 0

    @property
    def number(self) -> int | None:
        return None if self.length else self.const

    @property
    def value(self) -> int:
        return 7 * self.length + self.const


N = torch.tensor(7)


def known(arg: Any) -> Tokens | None:
    value = example(arg)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in (torch.int64, torch.int32):
        return Tokens(length=1)
    return Tokens(const=value) if type(value) is int else None


def divided(name: str, value: Tokens, by: int) -> Tokens:
    """Only of the one length that there is here."""
    return Tokens(const={"floor_divide": operator.floordiv, "remainder": operator.mod}[name](value.value, by))


def made(node: fx.Node) -> Any:
    return computed(node, known, divided)


@pytest.mark.parametrize(
    "node",
    [
        node_of(operator.add, N, 3),
        node_of(operator.add, 3, N),
        node_of(torch.add, N, N),
        node_of(operator.sub, 3, N),
        node_of(torch.sub, N, N),
        node_of(operator.mul, N, -2),
        node_of(torch.mul, N, 2),
        node_of(operator.neg, N),
        node_of(torch.neg, N),
        node_of(operator.floordiv, N, 2),
        node_of(torch.floor_divide, N, 2),
        node_of(torch.div, N, 2, rounding_mode="floor"),
        node_of(operator.rshift, N, 1),
        node_of(operator.mod, N, 4),
        node_of(torch.remainder, N, 4),
        node_of(torch.sym_sum, [1, 2, 3]),
        node_of(operator.iadd, 4, 3),
        method_node("item", N),
        method_node("clone", N),
        method_node("to", N, torch.int64),
        method_node("__index__", N),
    ],
    ids=str,
)
def test_is_what_python_computes(node: fx.Node) -> None:
    assert made(node).value == int(node.meta["example_value"])


@pytest.mark.parametrize(
    ("call", "op"),
    [(operator.lt, "lt"), (operator.ge, "ge"), (operator.eq, "eq"), (torch.ne, "ne")],
)
def test_comparisons(call: Callable[..., Any], op: str) -> None:
    assert made(node_of(call, N, 3)) == Comparison(op, Tokens(1, -3))


@pytest.mark.parametrize(
    "node",
    [
        node_of(torch.add, N, N, alpha=2),
        node_of(torch.sub, N, N, alpha=3),
        node_of(torch.div, N, 2),
        node_of(torch.div, N, 2, rounding_mode="trunc"),
        node_of(torch.div, N, -2, rounding_mode="floor"),
        node_of(operator.floordiv, N, -2),
        node_of(operator.mod, N, -4),
        node_of(operator.mul, N, N),
        node_of(torch.add, N, torch.rand(3)),
        node_of(operator.truediv, N, 2),
        node_of(operator.pow, N, 2),
        method_node("to", N, torch.bool),
        method_node("to", N, torch.int8),
        method_node("float", N),
        method_node("add_", N.clone(), 1),
    ],
    ids=str,
)
def test_is_no_such_number(node: fx.Node) -> None:
    assert made(node) is None
