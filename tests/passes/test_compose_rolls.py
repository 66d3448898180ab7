"""Chains of packed rolls are read from their source; everything else stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import packpass.ops  # noqa: F401  (registers the ops)
from passes import compose_rolls as compose
from passes.context import PassContext

ROLL = torch.ops.packpass.packed_roll.default
CONTEXT = PassContext()
X = torch.randn(2, 12)
CU = torch.tensor([1, 4, 4, 9, 11])


def graph_of(*rolls: tuple[int, Any], keep_all: bool = False, between: bool = False) -> fx.GraphModule:
    graph = fx.Graph()
    x, cu = graph.placeholder("x"), graph.placeholder("cu")
    x.meta["example_value"], cu.meta["example_value"] = X, CU
    values, node = [], x
    for shift, fill in rolls:
        node = graph.call_function(ROLL, (node, cu, shift, -1, fill, None))
        node.meta["example_value"] = torch.empty(2, 12)
        values.append(node)
        if between:
            graph.call_method("add_", (node, 1)).meta["example_value"] = node.meta["example_value"]
    graph.output(tuple(values if keep_all else values[-1:]))
    return fx.GraphModule(torch.nn.Module(), graph)


def shifts(gm: fx.GraphModule) -> list[Any]:
    return [n.args[2] for n in gm.graph.nodes if n.target is ROLL]


@pytest.mark.parametrize("fill", [0, -100, None])
@pytest.mark.parametrize("steps", [(-1, -1, -1), (2, 1), (-3, -4, -5)])
def test_chain_is_read_from_the_source(fill: Any, steps: tuple[int, ...]) -> None:
    gm = graph_of(*((s, fill) for s in steps), keep_all=True)
    want = gm(X, CU)
    results = compose.run(gm, CONTEXT)
    assert len(results) == len(steps) - 1
    assert shifts(gm) == [sum(steps[: i + 1]) for i in range(len(steps))]
    assert all(torch.equal(a, b) for a, b in zip(want, gm(X, CU), strict=True))


def test_unused_depths_go() -> None:
    gm = graph_of((-1, 0), (-1, 0))
    compose.run(gm, CONTEXT)
    assert shifts(gm) == [-2]


def test_wrapping_rolls_of_opposite_sign_add_up() -> None:
    gm = graph_of((-1, None), (3, None))
    want = gm(X, CU)[0]
    assert len(compose.run(gm, CONTEXT)) == 1
    assert torch.equal(want, gm(X, CU)[0])


@pytest.mark.parametrize(
    "rolls", [((-1, 0), (1, 0)), ((-1, 0), (-1, 5)), ((-1, 0), (-1, None)), ((-1, 0), (-1, False))]
)
def test_left_alone(rolls: Any) -> None:
    gm = graph_of(*rolls)
    before = shifts(gm)
    assert compose.run(gm, CONTEXT) == [] and shifts(gm) == before


def test_left_alone_when_the_first_result_changes_in_between() -> None:
    gm = graph_of((-1, 0), (-1, 0), between=True)
    assert compose.run(gm, CONTEXT) == []
