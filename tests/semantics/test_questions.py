"""Questions that a pass asks of one call: what it reads, what it makes, where it takes slots from."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics import blank, contents_of, family_of, keeps_order, op_of, read_inputs, ways
from packpass.semantics.creation import uniform
from packpass.semantics.effects import effects_of
from packpass.semantics.meaning import Iota, Looked, Sent, Uniform, Uninitialised
from packpass.semantics.pointwise import broadcasts, whole_divisor
from packpass.semantics.reductions import takes_several_axes
from tests.semantics.graphs import method_node, node_of

X, IDS = torch.randn(6, 5), torch.tensor([0, 2, 2])


@pytest.mark.parametrize(
    ("node", "read"),
    [
        (node_of(torch.add, X, X), [0, 1]),
        (method_node("type_as", X, IDS), [0]),
        (method_node("to", X, IDS), [0]),
        (method_node("to", X, torch.int64), [0]),
        (node_of(torch.zeros_like, X), []),
        (method_node("new_full", X, (2, 3), 1.0), []),
        (method_node("size", X), []),
        (method_node("numel", X), []),
        (node_of(getattr, X, "shape"), []),
        (node_of(getattr, X, "T"), [0]),
        (method_node("tolist", X), [0]),
    ],
    ids=lambda value: value.name if isinstance(value, fx.Node) else "",
)
def test_what_is_read(node: fx.Node, read: list[int]) -> None:
    places = [n for n in node.graph.nodes if n.op == "placeholder"]
    assert read_inputs(node) == [places[k] for k in read]


@pytest.mark.parametrize(
    ("node", "contents"),
    [
        (node_of(torch.arange, 5), Iota(0, 1)),
        (node_of(torch.arange, 0, 5), Iota(0, 1)),
        (node_of(torch.arange, 1, 6, 2), Iota(1, 2)),
        (node_of(torch.zeros_like, X), Uniform(0)),
        (method_node("new_ones", X, (3,)), Uniform(1)),
        (node_of(torch.full, (3,), -100), Uniform(-100)),
        (node_of(torch.empty, 3), Uninitialised()),
        (node_of(torch.rand, 3), None),
        (node_of(torch.neg, X), None),
    ],
    ids=lambda value: value.name if isinstance(value, fx.Node) else "",
)
def test_what_is_made(node: fx.Node, contents: Any) -> None:
    assert contents_of(node) == contents


def test_memory_that_is_new_and_holds_one_number_or_nothing() -> None:
    assert all(map(blank, (node_of(torch.zeros_like, X), node_of(torch.empty, 3), method_node("new_full", X, (2,), 7))))
    assert not any(map(blank, (node_of(torch.clone, X), node_of(torch.rand, 3), node_of(torch.arange, 3))))


def test_what_keeps_the_order_of_elements() -> None:
    kept = [
        method_node("view", X, 30),
        method_node("t", X[:, :1]),
        method_node("contiguous", X.t()),
        node_of(torch.clone, X),
    ]
    moved = [
        method_node("t", X),
        method_node("expand", X[:, :1], 6, 5),
        node_of(torch.neg, X),
        method_node("roll", X, 1),
    ]
    assert all(map(keeps_order, kept)) and not any(map(keeps_order, moved))


def test_divisions_of_whole_numbers() -> None:
    n = torch.tensor(7)
    rounded = [
        node_of(operator.floordiv, n, 2),
        node_of(torch.div, n, 2, rounding_mode="trunc"),
        method_node("floor_divide", n, 2),
        node_of(operator.rshift, n, 1),
    ]
    assert [whole_divisor(node, node.args[1]) for node in rounded] == [2, 2, 2, 2]
    others = [node_of(torch.div, n, 2), node_of(operator.floordiv, n, -2), node_of(torch.mul, n, 2)]
    assert [whole_divisor(node, node.args[1]) for node in others] == [None, None, None]
    assert whole_divisor(rounded[0], None) is None and whole_divisor(rounded[3], 40) is None


def test_numbers_that_are_made() -> None:
    made = {"zeros": 0, "new_ones": 1, "full": 5, "new_full": 7, "full_like": 5, "ones_like": 1}
    assert {op: uniform(op, ((2,), 5, 7), {}) for op in made} == made
    assert uniform("full", ((2,),), {"fill_value": 3}) == 3
    assert [uniform(op, ((2,), 5, 7), {}) for op in ("empty", "rand_like", "add")] == [None, None, None]


def test_what_may_be_a_tensor_of_any_shape() -> None:
    asked = [("add", "other"), ("clamp", "min"), ("where", "condition"), ("lerp", "weight"), ("pow", "exponent")]
    assert all(broadcasts(op, argument) for op, argument in asked)
    asked = [("add", "alpha"), ("masked_fill", "value"), ("softplus", "beta"), ("clamp", "out_of_the_blue")]
    assert not any(broadcasts(op, argument) for op, argument in asked)


def test_what_takes_several_axes() -> None:
    assert all(map(takes_several_axes, ("sum", "var", "any", "logsumexp", "linalg_vector_norm")))
    assert not any(map(takes_several_axes, ("argmax", "median", "cumsum", "softmax", "prod", "normalize")))


def test_operations_without_their_spellings() -> None:
    spelled = {"to": "long", "add": "add_", "transpose": "swapaxes", "mul": "multiply", "clamp": "clip"}
    arguments = {"to": (), "add": (1,), "transpose": (0, 1), "mul": (2,), "clamp": (0, 1)}
    assert {op: op_of(method_node(name, X.clone(), *arguments[op])) for op, name in spelled.items()} == {
        op: op for op in spelled
    }


def test_where_slots_come_from_and_go_to() -> None:
    looked = node_of(operator.getitem, X, IDS)
    sent = method_node("index_copy", X, 0, torch.tensor([0, 3, 1]), torch.randn(3, 5))
    assert [n.name for n, how in ways(looked) if isinstance(how, Looked)] == [looked.args[0].name]  # type: ignore[union-attr]
    assert any(isinstance(how, Sent) for _, how in ways(sent)) and family_of(sent) == "writes"
    assert not list(ways(node_of(torch.unique, IDS)))
    assert all(not isinstance(how, (Looked, Sent)) for _, how in ways(node_of(F.one_hot, IDS, 4)))


def test_what_may_be_computed_again() -> None:
    assert effects_of(node_of(operator.getitem, X, X > 0)).repeatable
    assert effects_of(method_node("item", X[0, 0])).repeatable
    assert not effects_of(node_of(torch.rand_like, X)).repeatable
    assert not effects_of(method_node("add_", X.clone(), 1)).repeatable
