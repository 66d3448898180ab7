"""Axes of a graph and which of them hold the same tokens: a union-find over ``(value, dimension)``.

Two axes are *linked* when slot ``p`` of one belongs to the same token as slot ``p`` of the other, as for the rows of a
tensor before and after a linear layer. Links work in both directions, so boundaries that are known anywhere (at an
attention call, say) are known for every tensor that is linked with it. What is not linked shares nothing.

Values without tokens of their own (`packpass.layout.blank`: positions, weights, zeros) are no bridge: two rows that are
both added to ``arange(T)`` are two rows. Such a value belongs to the one row that it meets, or to none.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example


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

    def __init__(self, blank: Collection[fx.Node] = ()) -> None:
        self._parent: dict[Axis, Axis] = {}
        self.blank = blank
        self._met: list[tuple[Axis, Axis]] = []
        """An axis without tokens, and one with: `settle` decides about them."""

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
        if (a.node in self.blank) != (b.node in self.blank):
            self._met.append((a, b) if a.node in self.blank else (b, a))
            return
        self._join(a, b)

    def link_all(self, group: Sequence[Axis]) -> None:
        """`link` any two of them. All that are of one size need not be asked pair by pair: a row put together from the
        chunks of all ranks has hundreds of parts."""
        alike: dict[Any, list[Axis]] = defaultdict(list)
        for axis in group:
            alike[axis.node in self.blank, self._size(axis)].append(axis)
        for axes in alike.values():
            for a, b in itertools.pairwise(axes):
                self.link(a, b)
        for a, b in itertools.combinations([axes[0] for axes in alike.values()], 2):
            self.link(a, b)

    def _size(self, axis: Axis) -> Any:
        """Equal for two axes that are of one size for certain."""
        value = value_of(axis.node, axis.item)
        if not isinstance(value, torch.Tensor) or not 0 <= axis.dim < value.dim():
            return None
        size = value.shape[axis.dim]
        return size if isinstance(size, int) else (getattr(size.node, "expr", None) or id(size))

    def settle(self) -> None:
        """Give every class of axes without tokens to the one class of tokens that it meets, if it is one."""
        for axis, rows in self._meetings().items():
            if len(rows) == 1:
                self._join(rows[0], axis)

    def rows_met(self) -> dict[Axis, list[Axis]]:
        """Classes without tokens that are given to no row -> the rows that they meet."""
        return {axis: rows for axis, rows in self._meetings().items() if axis not in rows}

    def _meetings(self) -> dict[Axis, list[Axis]]:
        met: dict[Axis, dict[Axis, None]] = defaultdict(dict)
        for axis, tokens in self._met:
            met[self.find(axis)][self.find(tokens)] = None
        return {axis: list(rows) for axis, rows in met.items()}

    def _join(self, a: Axis, b: Axis) -> None:
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
