"""Linking many axes at once is linking any two of them."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import fx

from packpass.layout.axes import Axes, Axis


def axes_of(sizes: list[int]) -> list[Axis]:
    graph, found = fx.Graph(), []
    for i, size in enumerate(sizes):
        node = graph.placeholder(f"x{i}")
        node.meta["example_value"] = torch.empty(2, size)
        found.append(Axis(node, 1))
    return found


def classes(axes: Axes, group: list[Axis]) -> list[list[int]]:
    return [[i for i, other in enumerate(group) if axes.find(other) == axes.find(axis)] for axis in group]


def met(axes: Axes, group: list[Axis]) -> list[set[int]]:
    """For every axis without tokens, the rows that it meets, by the first of their axes."""
    found = axes.rows_met()
    return [{classes(axes, group)[group.index(row)][0] for row in found.get(axes.find(axis), [])} for axis in group]


@pytest.mark.parametrize("seed", range(20))
def test_all_at_once(seed: int) -> None:
    numbers = random.Random(seed)
    group = axes_of([numbers.choice((1, 3, 4)) for _ in range(7)])
    blank = [axis.node for axis in group if numbers.random() < 0.3]
    one, other = Axes(blank), Axes(blank)
    one.link_all(group)
    for a, b in itertools.combinations(group, 2):
        other.link(a, b)
    assert classes(one, group) == classes(other, group)
    assert met(one, group) == met(other, group)
    one.settle()
    other.settle()
    assert classes(one, group) == classes(other, group)


def test_the_chunks_of_many_ranks_are_not_asked_pair_by_pair() -> None:
    group, asked = axes_of([3] * 200), []
    axes = Axes()
    fit = axes.fit
    axes.fit = lambda a, b: asked.append(a) or fit(a, b)  # type: ignore[method-assign, func-returns-value]
    axes.link_all(group)
    assert len({axes.find(axis) for axis in group}) == 1
    assert len(asked) < 2 * len(group)
