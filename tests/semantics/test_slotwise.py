"""Fake values worked out for one slot are those that torch works out, and nothing else is worked out so."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from packpass._compat import python_dispatcher
from packpass.semantics.slotwise import of_one_slot

OPERATORS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.eq, operator.lt]
BINARY = [*OPERATORS, torch.minimum, torch.maximum, torch.logical_and, torch.floor_divide, torch.remainder]


class Rows:
    """Nodes with fake values of a symbolic length ``n``, of another one ``m``, and of one that only data knows."""

    def __init__(self) -> None:
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.n, self.m = (self._size(value, name) for value, name in ((7, "n"), (5, "m")))
        self.u = self.env.create_unbacked_symint()
        torch._check(self.u >= 0)
        self.graph = fx.Graph()

    def _size(self, value: int, name: str) -> Any:
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(name)
        symbol = self.env.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
        return self.env.create_symintnode(symbol, hint=value, source=source)

    def row(self, *shape: Any, dtype: torch.dtype = torch.int64) -> fx.Node:
        with self.mode:
            return self.node(torch.empty(shape, dtype=dtype))

    def node(self, value: Any) -> fx.Node:
        node = self.graph.placeholder("x")
        node.meta["example_value"] = value
        return node

    def both(self, target: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """What is worked out for one slot, and what torch works out."""
        node = self.graph.call_function(target, args, kwargs)
        given = fx.map_arg((args, kwargs), lambda n: n.meta["example_value"])
        with self.mode, python_dispatcher():
            return of_one_slot(node, *given), target(*given[0], **given[1])


def assert_alike(got: Any, want: Any) -> None:
    assert got is not None
    assert type(got) is type(want)
    assert (got.dtype, got.device, got.requires_grad) == (want.dtype, want.device, want.requires_grad)
    texts = [[str(size) for size in (*value.shape, *value.stride(), value.storage_offset())] for value in (got, want)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("target", BINARY)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_two_rows(target: Any, dtype: torch.dtype) -> None:
    rows = Rows()
    for size in (rows.n, rows.u):
        assert_alike(*rows.both(target, rows.row(size), rows.row(size, dtype=dtype)))
        assert_alike(*rows.both(target, rows.row(size, 4), rows.row(1, 4, dtype=dtype)))
        assert_alike(*rows.both(target, rows.row(size, 1, 1, dtype=dtype), rows.row(6, 1)))
        assert_alike(*rows.both(target, rows.row(size), rows.row(dtype=dtype)))


@pytest.mark.parametrize("target", BINARY)
def test_columns(target: Any) -> None:
    rows = Rows()
    table = rows.row(rows.n, 3).meta["example_value"]
    with rows.mode:
        left, right = (rows.node(table.select(1, column)) for column in (0, 2))
        one = rows.node(torch.empty((), dtype=torch.int64).expand(rows.n))
    assert_alike(*rows.both(target, left, right))
    assert_alike(*rows.both(target, left, one))
    assert_alike(*rows.both(target, one, rows.row(rows.n)))


def test_methods() -> None:
    rows = Rows()
    row = rows.row(rows.n, dtype=torch.int32)
    for name, arguments in (("add", (2,)), ("clamp", (0, 3)), ("cumsum", (0,)), ("eq", (row,))):
        node = rows.graph.call_method(name, (row, *arguments))
        given = fx.map_arg(node.args, lambda n: n.meta["example_value"])
        with rows.mode, python_dispatcher():
            assert_alike(of_one_slot(node, given, {}), getattr(given[0], name)(*given[1:]))


@pytest.mark.parametrize("target", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_rows_and_numbers(target: Any, dtype: torch.dtype) -> None:
    rows = Rows()
    if dtype is torch.bool and target in (operator.sub, operator.floordiv, operator.mod):
        return
    assert_alike(*rows.both(target, rows.row(rows.n, dtype=dtype), 3))
    assert_alike(*rows.both(target, rows.row(rows.u, 2, dtype=dtype), rows.node(rows.m)))


def test_choices_limits_and_sums() -> None:
    rows = Rows()
    condition, row = rows.row(rows.n, dtype=torch.bool), rows.row(rows.n, dtype=torch.int32)
    assert_alike(*rows.both(torch.where, condition, row, 0))
    assert_alike(*rows.both(torch.where, condition, 1, rows.row(rows.n)))
    assert_alike(*rows.both(torch.clamp, row, min=0))
    assert_alike(*rows.both(torch.clamp, row, 0, 4))
    assert_alike(*rows.both(torch.cumsum, row, 0))
    assert_alike(*rows.both(torch.cumsum, row, dim=-1))
    assert_alike(*rows.both(torch.logical_not, condition))


def test_everything_else_is_run() -> None:
    rows = Rows()
    n, row = rows.n, rows.row(rows.n)
    floats = rows.row(n, dtype=torch.float32)
    turned = rows.node(rows.row(n, 4).meta["example_value"].t())
    assert rows.both(operator.add, floats, 1)[0] is None  # it may have a gradient
    assert rows.both(operator.truediv, row, 2)[0] is None
    assert rows.both(operator.add, turned, 1)[0] is None  # torch keeps its order in memory
    assert rows.both(operator.add, rows.row(4), 1)[0] is None  # quick as it is
    assert rows.both(torch.cumsum, rows.row(n, 4), 0)[0] is None
    assert rows.both(torch.sum, row)[0] is None
    assert rows.both(torch.clone, row)[0] is None
    assert rows.both(operator.iadd, row, 1)[0] is None
    assert rows.both(torch.add, row, row, alpha=2)[0] is None
    other = rows.row(rows.m)
    node = rows.graph.call_function(operator.add, (row, other))
    with rows.mode:  # whether they are as long is a question
        assert of_one_slot(node, (row.meta["example_value"], other.meta["example_value"]), {}) is None


def test_other_kinds_of_tensors_are_run() -> None:
    rows = Rows()
    ragged = torch.nested.nested_tensor([torch.arange(3), torch.arange(2)], layout=torch.jagged)
    assert isinstance(ragged.shape[1], torch.SymInt)
    node = rows.graph.call_function(operator.add, (rows.node(ragged), 1))
    assert of_one_slot(node, (ragged, 1), {}) is None
