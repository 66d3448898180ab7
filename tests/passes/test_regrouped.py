"""Rows of unknown length that are regrouped behind a loop, compiled by Inductor: values and gradients of eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import packpass
from packpass.engine.regrouped import by_way_of_one, could_matter, regroups


def flipped(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] : cu[i + 1]].flip(0) for i in range(len(cu) - 1)]).view(-1, 2) * 2


def repeated(x: Tensor, cu: Tensor) -> Tensor:
    return torch.cat([x[cu[i] : cu[i + 1]].repeat(4, 1) for i in range(len(cu) - 1)]).view(-1, 16) * 2


def selected(x: Tensor, cu: Tensor) -> Tensor:
    rows, mask = x.view(-1, 2, 4), x.detach().view(-1, 2, 4)[:, :, 0] > 0
    return torch.cat([rows[i][mask[i]].repeat(4, 1) for i in range(rows.shape[0])]).view(-1, 16) * 2


def expanded(x: Tensor, cu: Tensor) -> Tensor:
    out = [x[i : i + 1].expand(4 * k, 4) for i, k in enumerate(torch.diff(cu).tolist())]
    return torch.cat(out).view(-1, 4, 4).mean(1)


def computed(x: Tensor, cu: Tensor) -> Tensor:
    rows = torch.cat([x[cu[i] : cu[i + 1]].cumsum(0) for i in range(len(cu) - 1)])
    return (rows * 2).view(-1, 2).flip(1).reshape(-1, 8)


def batch(lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    cu = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randn(int(cu[-1]), 4, generator=torch.Generator().manual_seed(seed)), cu


@pytest.mark.parametrize("program", [flipped, repeated, selected, expanded, computed])
def test_values_and_gradients_are_those_of_eager(program: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=packpass.backend)
    for seed, lengths in enumerate([[3, 5, 2, 4], [6, 2], [2, 4, 4, 2, 2, 6]]):
        x, cu = batch(lengths, seed)
        given = [x.clone().requires_grad_() for _ in range(2)]
        made, expected = compiled(given[0], cu), program(given[1], cu)
        torch.testing.assert_close(made, expected)
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(9))
        for out in (made, expected):
            (out * weights).sum().backward()
        torch.testing.assert_close(given[0].grad, given[1].grad)


@functools.cache
def unknown() -> Any:
    size = ShapeEnv().create_unbacked_symint()
    torch._check(size >= 0)
    return size


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (lambda n: [2 * n, 2], lambda n: [n, 4], True),
        (lambda n: [n, 4], lambda n: [2 * n, 2], True),
        (lambda n: [3, n, 4], lambda n: [3, 2 * n, 2], True),
        (lambda n: [n, 6], lambda n: [2 * n, 3, 1], True),
        (lambda n: [n, 4], lambda n: [4 * n], False),
        (lambda n: [4 * n], lambda n: [n, 2, 2], False),
        (lambda n: [n, 1, 4], lambda n: [n, 2, 2], False),
        (lambda n: [n, 4, 3], lambda n: [4 * n, 3], False),
        (lambda n: [2, n, 6], lambda n: [2, n, 3, 2], False),
        (lambda n: [2 * n, 0], lambda n: [n, 0, 4], False),
    ],
)
def test_what_regroups(before: Callable[..., list[Any]], after: Callable[..., list[Any]], expected: bool) -> None:
    n = unknown()
    assert regroups(before(n), after(n)) is expected


def test_only_reshapes_that_regroup_become_two() -> None:
    def build(shape: list[int]) -> fx.Graph:
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        n = mode.shape_env.create_unbacked_symint()
        torch._check(n >= 0)
        graph = fx.Graph()
        x = graph.placeholder("x")
        with mode:
            x.meta["val"] = torch.empty(2 * n, 2)
            node = graph.call_function(torch.ops.aten.view.default, (x, shape))
            node.meta["val"] = x.meta["val"].view(shape)
        graph.output(node)
        return graph

    for shape, reshapes in (([-1, 4], 2), ([-1], 1)):
        graph = build(shape)
        by_way_of_one(graph)
        calls = [node for node in graph.nodes if node.op == "call_function"]
        assert len(calls) == reshapes
        x = torch.arange(12.0).view(6, 2)
        torch.testing.assert_close(fx.GraphModule(torch.nn.Module(), graph)(x), x.view(shape))


def test_graphs_whose_sizes_are_known_are_not_looked_at() -> None:
    seen = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(could_matter(gm))
        return gm.forward

    torch.compile(lambda x: x.view(-1, 2) * 2, backend=backend, dynamic=True)(torch.ones(4))
    assert seen == [False]
