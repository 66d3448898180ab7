"""What torch releases write differently into graphs is one thing after `packpass.semantics.dialect.normalise`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from packpass.semantics.dialect import normalise

X, Y = torch.tensor([[1.0, -2.0], [3.0, 0.5]]), torch.tensor([[0.5, 2.0], [3.0, 1.0]])


def one_node(op: str, target: Any, *args: Any) -> fx.GraphModule:
    """A graph with one call; "x" and "y" among the arguments are its inputs."""
    graph = fx.Graph()
    inputs = {name: graph.placeholder(name) for name in ("x", "y")}
    node = graph.create_node(op, target, tuple(inputs.get(a, a) if isinstance(a, str) else a for a in args))
    graph.output(node)
    return fx.GraphModule(torch.nn.Module(), graph)


def called(gm: fx.GraphModule) -> fx.Node:
    return next(node for node in gm.graph.nodes if node.op.startswith("call"))


CASES: list[tuple[str, Any, tuple[Any, ...], Any]] = [
    ("call_method", "__eq__", ("x", 3), operator.eq),
    ("call_method", "__ge__", ("x", "y"), operator.ge),
    ("call_method", "__abs__", ("x",), operator.abs),
    ("call_method", "__neg__", ("x",), operator.neg),
    ("call_method", "__add__", ("x", 1), operator.add),
    ("call_method", "__matmul__", ("x", "y"), operator.matmul),
    ("call_function", operator.lt, (1, "x"), operator.gt),
    ("call_function", operator.ge, (1, "x"), operator.le),
    ("call_function", operator.ne, (3, "x"), operator.ne),
    ("call_function", torch.ops.aten.numpy_T, ("x",), getattr),
    ("call_function", torch.ops.aten.numpy_T.default, ("x",), getattr),
    ("call_function", torch.ops.aten.mT, ("x",), getattr),
]


@pytest.mark.parametrize(("op", "target", "args", "wanted"), CASES, ids=lambda v: str(v)[:24])
def test_one_way_of_writing(op: str, target: Any, args: tuple[Any, ...], wanted: Callable[..., Any]) -> None:
    gm = one_node(op, target, *args)
    before = gm(X, Y)
    normalise([gm.graph])
    gm.graph.lint()
    gm.recompile()
    node = called(gm)
    assert (node.op, node.target) == ("call_function", wanted)
    assert torch.equal(gm(X, Y), before)


@pytest.mark.parametrize(
    ("op", "target", "args"),
    [
        ("call_method", "add", ("x", 1)),
        ("call_method", "__getitem__", ("x", 0)),
        ("call_function", operator.lt, ("x", 1)),
        ("call_function", operator.sub, (1, "x")),
        ("call_function", torch.ops.aten.relu.default, ("x",)),
    ],
    ids=lambda v: str(v)[:24],
)
def test_what_all_write_alike_stays(op: str, target: Any, args: tuple[Any, ...]) -> None:
    gm = one_node(op, target, *args)
    before = str(gm.graph)
    normalise([gm.graph])
    assert str(gm.graph) == before


def test_what_this_torch_writes_for_a_transpose() -> None:
    seen: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    def program(x: Tensor) -> Tensor:
        return x.T + x.mT

    torch.compile(program, backend=backend)(X)
    normalise([seen[0].graph])
    names = [node.args[1] for node in seen[0].graph.nodes if node.target is getattr]
    assert names == ["T", "mT"]


def graph_of(program: Callable[..., Any], *inputs: Any) -> fx.GraphModule:
    seen: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    torch.compile(program, backend=backend)(*inputs)
    normalise([seen[0].graph])
    seen[0].graph.lint()
    seen[0].recompile()
    return seen[0]


@pytest.mark.parametrize(
    ("program", "filled"),
    [
        (lambda x: torch.empty_like(x).fill_(-100) + x, True),
        (lambda x: torch.empty(x.shape, dtype=torch.int32).fill_(7.0) + x, True),
        (lambda x: x.new_empty(2, 2).zero_() + x, True),
        (lambda x: torch.zeros_like(x).fill_(3) + x, False),
        (lambda x: torch.empty_like(x)[0].fill_(3) + x, False),
        (lambda x: torch.empty_like(x).fill_(x[0, 0]) + x, False),
        (lambda x: x.clone().fill_(3) + x, False),
    ],
)
def test_new_memory_that_is_filled_at_once(program: Callable[[Tensor], Tensor], filled: bool) -> None:
    gm = graph_of(program, X)
    assert any(node.target is torch.full_like for node in gm.graph.nodes) is filled
    assert torch.equal(gm(X)[0], program(X))


def test_memory_that_somebody_else_sees_is_not_filled_anew() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        made = torch.empty_like(x)
        view = made[0]
        made.fill_(2)
        return view, made

    gm = graph_of(program, X)
    assert not any(node.target is torch.full_like for node in gm.graph.nodes)
    assert all(torch.equal(a, b) for a, b in zip(gm(X), program(X), strict=True))
