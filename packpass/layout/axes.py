"""Axes of a graph and which of them hold the same tokens: a union-find over ``(value, dimension)``.

Two axes are *linked* when slot ``p`` of one belongs to the same token as slot ``p`` of the other, as for the rows of a
tensor before and after a linear layer. Links work in both directions, so boundaries that are known anywhere (at an
attention call, say) are known for every tensor that is linked with it. What is not linked shares nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.layout.names import example


@dataclasses.dataclass(frozen=True)
class Axis:
    """Dimension ``dim`` (>= 0) of a node's value, or of item ``item`` of its value if that is a tuple."""

    node: fx.Node
    dim: int
    item: int | None = None


def value_of(node: fx.Node, item: int | None = None) -> Any:
    """The fake value of a node, or of one item of it; None where there is none."""
    value = example(node)
    if item is not None:
        return value[item] if isinstance(value, (tuple, list)) and item < len(value) else None
    return value


class Axes:
    """Classes of linked axes."""

    def __init__(self) -> None:
        self._parent: dict[Axis, Axis] = {}

    def find(self, axis: Axis) -> Axis:
        """The representative of an axis' class."""
        root = axis
        while (up := self._parent.get(root, root)) != root:
            root = up
        while axis != root:
            up = self._parent.get(axis, axis)
            self._parent[axis] = root
            axis = up
        return root

    def fit(self, a: Axis, b: Axis) -> bool:
        """Are two axes provably of one size? Axes of one slot fit nothing, because they would fit everything."""
        sizes = []
        for axis in (a, b):
            value = value_of(axis.node, axis.item)
            if not isinstance(value, torch.Tensor) or not 0 <= axis.dim < value.dim():
                return False
            sizes.append(value.shape[axis.dim])
        if isinstance(sizes[0], int) and sizes[0] == 1:
            return False
        return sizes[0] is sizes[1] or statically_known_true(sizes[0] == sizes[1])

    def link(self, a: Axis, b: Axis) -> None:
        """The two axes hold the same tokens. Sizes that are not provably equal (a broadcast) link nothing."""
        if not self.fit(a, b):
            return
        first, second = self.find(a), self.find(b)
        if first != second:
            self._parent[second] = first

    def same(self, a: fx.Node, dim_a: int, b: fx.Node, dim_b: int) -> None:
        """`link` for plain tensors; dimensions may be negative."""
        for node in (a, b):
            if not isinstance(value_of(node), torch.Tensor):
                return
        self.link(Axis(a, dim_a % value_of(a).dim()), Axis(b, dim_b % value_of(b).dim()))

    def of(self, node: fx.Node) -> Iterator[Axis]:
        """The axes of a tensor node."""
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            for dim in range(value.dim()):
                yield Axis(node, dim)
