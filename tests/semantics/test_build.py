"""The builder: fake values as where the graph was traced, nothing left of what fails."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from packpass.semantics.build import Builder, NotBuilt


def graph_of(*shape: int) -> tuple[fx.Graph, fx.Node, fx.Node]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    with FakeTensorMode():
        x.meta["example_value"] = torch.empty(*shape)
    return graph, x, graph.output(x)


def test_calls_have_fake_values_and_a_stamp() -> None:
    graph, x, output = graph_of(4, 6)
    node = Builder(graph, output, rule="a_rule").call(torch.sum, x, 1)
    assert isinstance(node.meta["example_value"], FakeTensor)
    assert node.meta["example_value"].shape == (4,)
    assert node.meta["packpass"] == "a_rule"
    assert node.next is output


def test_methods() -> None:
    graph, x, output = graph_of(4, 6)
    assert Builder(graph, output, x).call("view", x, 24, method=True).meta["example_value"].shape == (24,)


def test_fake_values_are_those_under_autocast() -> None:
    graph, x, output = graph_of(4, 4)
    with graph.inserting_before(output):
        args = ("cpu", torch.bfloat16, True, True)
        enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, args)
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    inside = Builder(graph, enter.next).call(torch.matmul, x, x)
    outside = Builder(graph, output).call(torch.matmul, x, x)
    assert inside.meta["example_value"].dtype == torch.bfloat16
    assert outside.meta["example_value"].dtype == torch.float32


def test_what_fails_is_undone_with_the_rest() -> None:
    graph, x, output = graph_of(4, 6)
    before = [node.name for node in graph.nodes]
    builder = Builder(graph, output)
    builder.call(torch.abs, x)
    with pytest.raises(NotBuilt, match="matmul fails"):
        builder.call(torch.matmul, x, x)
    builder.undo()
    assert [node.name for node in graph.nodes] == before
