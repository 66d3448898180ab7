"""What calls do besides computing their result."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from packpass.semantics.effects import Effects, effects_of, open_autocasts
from tests.semantics.graphs import method_node, node_of

X, IDS, TABLE = torch.rand(4, 6), torch.zeros(4, dtype=torch.long), torch.rand(5, 3)
MASK = X > 0.5

PURE = [
    node_of(torch.add, X, 1),
    node_of(operator.getitem, X, (slice(0, 2), None)),
    node_of(operator.getitem, X, IDS),
    node_of(operator.add, 1, 2),
    method_node("view", X, 24),
    method_node("float", X),
    method_node("size", X, 0),
    node_of(F.relu, X),
    node_of(F.dropout, X, 0.5, False),
    node_of(F.scaled_dot_product_attention, X, X, X),
    node_of(F.embedding, IDS, TABLE),
    node_of(F.cross_entropy, X, IDS),
    node_of(torch.zeros, 3),
    node_of(torch.stack, [X, X]),
    node_of(F.batch_norm, X, None, None, training=True),
    node_of(torch.ops.aten.add.Tensor, X, X),
]


@pytest.mark.parametrize("node", PURE, ids=str)
def test_pure(node: fx.Node) -> None:
    assert effects_of(node).pure


IMPURE: list[tuple[str, fx.Node]] = [
    ("random", node_of(torch.rand, 3)),
    ("random", node_of(torch.rand_like, X)),
    ("random", node_of(torch.bernoulli, X)),
    ("random", node_of(F.dropout, X, 0.5)),
    ("random", method_node("normal_", X.clone())),
    ("random", node_of(F.scaled_dot_product_attention, X, X, X, dropout_p=0.5)),
    ("random", node_of(F.gumbel_softmax, X)),
    ("host", method_node("item", X[0, 0])),
    ("host", method_node("tolist", X)),
    ("host", node_of(torch.nonzero, X)),
    ("host", method_node("nonzero", X)),
    ("host", node_of(operator.getitem, X, MASK)),
    ("host", node_of(torch.masked_select, X, MASK)),
    ("host", node_of(torch.equal, X, X)),
    ("writes", method_node("add_", X.clone(), 1)),
    ("writes", node_of(operator.iadd, X.clone(), 1)),
    ("writes", node_of(operator.setitem, X.clone(), 0, 1.0)),
    ("writes", node_of(F.relu, X.clone(), True)),
    ("writes", node_of(F.relu, X.clone(), inplace=True)),
    ("writes", node_of(torch.add, X, 1, out=torch.empty(4, 6))),
    ("writes", node_of(F.embedding, IDS, TABLE.clone(), max_norm=1.0)),
    ("writes", node_of(F.batch_norm, X, torch.zeros(6), torch.ones(6), training=True)),
    ("writes", method_node("__ior__", MASK.clone(), MASK)),
    ("checks", node_of(torch._assert_async, MASK.any() | True)),
    ("mode", node_of(torch._C._set_grad_enabled, torch.is_grad_enabled())),
]


@pytest.mark.parametrize(("kind", "node"), IMPURE, ids=[str(node) for _, node in IMPURE])
def test_impure(kind: str, node: fx.Node) -> None:
    assert getattr(effects_of(node), kind)
    assert not effects_of(node).pure


def test_a_read_on_the_host_may_go_and_a_random_number_may_not() -> None:
    assert effects_of(method_node("item", X[0, 0])).repeatable
    assert not effects_of(node_of(torch.rand, 3)).repeatable


def test_what_is_written() -> None:
    node = node_of(torch.Tensor.copy_, X.clone(), X)
    node = method_node("copy_", X.clone(), X)
    assert effects_of(node).writes == (node.args[0],)
    table = node_of(F.embedding, IDS, TABLE.clone(), max_norm=1.0)
    assert effects_of(table).writes == (table.args[1],)


def clone(x: torch.Tensor) -> torch.Tensor:
    return x


def test_what_nobody_knows_may_do_anything() -> None:
    node = node_of(clone, X)
    assert effects_of(node) == Effects(known=False, writes=(node.args[0],))
    assert not effects_of(node).pure


def test_attributes() -> None:
    assert effects_of(node_of(getattr, X, "T")).pure
    assert not effects_of(node_of(getattr, X, "grad")).pure


def test_an_operator_of_the_users_may_do_anything() -> None:
    @torch.library.custom_op("semantics_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    node = node_of(torch.ops.semantics_tests.twice.default, X)
    assert not effects_of(node).known


def test_regions_that_are_open() -> None:
    graph = fx.Graph()
    enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast
    outer = graph.call_function(enter, ("cpu", torch.bfloat16, True, True))
    inner = graph.call_function(enter, ("cpu", torch.float16, False, True))
    middle = graph.call_function(torch.zeros, (1,))
    graph.call_function(leave, (inner,))
    last = graph.call_function(torch.zeros, (1,))
    assert open_autocasts(graph, middle) == [outer.args, inner.args]
    assert open_autocasts(graph, last) == [outer.args]
