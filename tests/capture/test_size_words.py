"""Sizes in words: the same for slices by the same numbers, whatever torch calls them."""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from packpass.capture.size_words import size_in_words


class Drawn:
    """A graph with rows and slices of them, each with a size of its own, as some releases of torch name them."""

    def __init__(self) -> None:
        self.graph, self.env = fx.Graph(), ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env, allow_non_fake_inputs=True)
        self.numbers = [self.graph.placeholder(name) for name in ("start", "stop", "other")]

    def row(self, name: str, size: object) -> fx.Node:
        node = self.graph.placeholder(name)
        with self.mode:
            node.meta["example_value"] = torch.empty(1, size)  # type: ignore[arg-type]
        return node

    def cut(self, row: fx.Node, start: object, stop: object) -> fx.Node:
        node = self.graph.call_function(operator.getitem, (row, (slice(None), slice(start, stop))))
        size = self.env.create_unbacked_symint()
        with self.mode:
            node.meta["example_value"] = torch.empty(1, size)
        node.meta["unbacked_bindings"] = {size.node.expr: ()}
        return node


def test_slices_by_the_same_numbers_of_rows_as_long() -> None:
    drawn = Drawn()
    start, stop, _ = drawn.numbers
    rows = [drawn.row(name, 24) for name in ("x", "y")]
    one, two = (drawn.cut(row, start, stop) for row in rows)
    assert one.meta["example_value"].shape[1].node.expr != two.meta["example_value"].shape[1].node.expr
    assert size_in_words(one, 1) == size_in_words(two, 1)
    assert size_in_words(drawn.cut(one, 1, None), 1) == size_in_words(drawn.cut(two, 1, None), 1)
    assert size_in_words(one, 0) == "1"


def test_slices_that_may_differ() -> None:
    drawn = Drawn()
    start, stop, other = drawn.numbers
    row, longer = drawn.row("x", 24), drawn.row("y", 30)
    one = drawn.cut(row, start, stop)
    for cut in (drawn.cut(longer, start, stop), drawn.cut(row, start, other), drawn.cut(row, start, None)):
        assert size_in_words(one, 1) != size_in_words(cut, 1)
    assert size_in_words(drawn.cut(one, 1, None), 1) != size_in_words(drawn.cut(one, None, -1), 1)


def test_what_no_slice_has_made() -> None:
    drawn = Drawn()
    size = drawn.env.create_unbacked_symint()
    one, two = drawn.row("x", size), drawn.row("y", drawn.env.create_unbacked_symint())
    assert size_in_words(one, 1) == str(size) != size_in_words(two, 1)
