"""Calls in all their spellings have the same arguments."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics.call import Call, call_of
from tests.semantics.graphs import method_node, node_of

X, Y = torch.ones(4, 6), torch.ones(4, 6)
IDS = torch.zeros(4, dtype=torch.long)


def called(node: fx.Node) -> Call:
    call = call_of(node)
    assert call is not None
    return call


def plain(call: Call, *names: str) -> dict[str, Any]:
    return {name: call.arguments.get(name) for name in names}


@pytest.mark.parametrize(
    "node",
    [
        node_of(torch.sum, X, 1, True),
        node_of(torch.sum, X, dim=(1,), keepdim=True),
        node_of(torch.sum, X, axis=1, keepdims=True),
        method_node("sum", X, -5 + 6, keepdim=True),
        node_of(torch.ops.aten.sum.dim_IntList, X, [1], True),
    ],
)
def test_spellings_of_a_sum(node: fx.Node) -> None:
    call = called(node)
    assert call.op == "sum" and tuple(call.get("dim")) == (1,) and call.get("keepdim") is True


@pytest.mark.parametrize(
    ("node", "overload"),
    [
        (node_of(torch.max, X), "aten.max.default"),
        (node_of(torch.max, X, 1), "aten.max.dim"),
        (node_of(torch.max, X, Y), "aten.max.other"),
        (node_of(operator.add, X, 1), "aten.add.Scalar"),
        (node_of(operator.add, 1, X), "aten.add.Tensor"),
        (node_of(torch.arange, 4), "aten.arange.default"),
        (node_of(torch.arange, 0, 4, device="cpu"), "aten.arange.start"),
    ],
)
def test_overloads(node: fx.Node, overload: str) -> None:
    assert str(called(node).overload) == overload


@pytest.mark.parametrize(("args", "wanted"), [((2, -1), (2, -1)), (((3, 8),), (3, 8)), (([24],), (24,))])
def test_sizes_one_by_one_or_as_a_list(args: Any, wanted: tuple[int, ...]) -> None:
    assert tuple(called(method_node("view", X, *args)).arguments["size"]) == wanted


@pytest.mark.parametrize(
    "node",
    [
        method_node("to", X, torch.float64),
        method_node("double", X),
        method_node("type", X, torch.float64),
        method_node("to", X, "cpu", torch.float64),
        method_node("to", X, dtype=torch.float64),
    ],
)
def test_casts_are_one_operation(node: fx.Node) -> None:
    call = called(node)
    assert call.op == "to" and call.get("dtype") is torch.float64 and not call.unread


@pytest.mark.parametrize(
    ("node", "unread"),
    [
        (method_node("to", X, Y), {"other"}),
        (method_node("type_as", X, Y), {"other"}),
        (method_node("expand_as", X, Y), {"other"}),
        (method_node("new_zeros", X, 2, 3), {"input"}),
        (node_of(torch.zeros_like, X), {"input"}),
        (method_node("add", X, Y), set()),
    ],
)
def test_arguments_that_are_not_read(node: fx.Node, unread: set[str]) -> None:
    assert called(node).unread == unread


def test_operands_inside_lists() -> None:
    call = called(node_of(torch.cat, [X, Y], dim=1))
    assert [(o.argument, o.at) for o in call.operands] == [("tensors", 0), ("tensors", 1)]


def test_einsum_and_meshgrid_take_tensors_one_by_one_or_as_a_list() -> None:
    for node in (node_of(torch.einsum, "ab,cb->ac", X, Y), node_of(torch.einsum, "ab,cb->ac", [X, Y])):
        assert [o.value is v for o, v in zip(called(node).operands, (X, Y), strict=True)] == [True, True]
    for node in (node_of(torch.meshgrid, IDS, IDS, indexing="ij"), node_of(torch.meshgrid, [IDS, IDS], indexing="ij")):
        assert len(called(node).operands) == 2


def test_functions_of_python_by_their_signature() -> None:
    call = called(node_of(F.cross_entropy, X, IDS, reduction="sum"))
    assert plain(call, "ignore_index", "reduction") == {"ignore_index": -100, "reduction": "sum"}


def test_in_place_forms() -> None:
    in_place = [method_node("add_", X.clone(), 1), node_of(operator.iadd, X.clone(), 1)]
    in_place.append(node_of(F.relu, X.clone(), inplace=True))
    assert [called(node).in_place for node in in_place] == [True, True, True]
    assert not called(node_of(F.relu, X)).in_place and called(in_place[0]).op == "add"


@pytest.mark.parametrize(
    "node",
    [
        node_of(torch.add, X, Y, out=torch.empty(4, 6)),
        node_of(torch.sum, X, no_such_argument=1, run=False),
        node_of(torch.sum, X, "text", run=False),
        node_of(lambda x: x, X),
    ],
)
def test_leaves_alone_what_it_does_not_understand(node: fx.Node) -> None:
    assert call_of(node) is None


def test_a_call_is_made_anew_when_its_node_changes() -> None:
    node = node_of(torch.sum, X, 1)
    first = call_of(node)
    assert call_of(node) is first
    node.args = (node.args[0], 0)
    assert tuple(called(node).get("dim")) == (0,)
