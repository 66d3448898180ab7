"""Sizes that only the data says, under the names which they were given when the graph was traced first.

Torch traces a graph again in front of Inductor, and gives every such size its first name (``unbacked_bindings`` of a
node). Between the two traces a size may have become known: a row in the place of parts is as long as another row, and a
slice whose bounds have been checked is as long as they say. What the second trace finds there is no new size, and torch
fails with an assertion before anything is compiled. The name is of no use then: the node loses it, and torch is given
the graph once more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

from torch import fx

T = TypeVar("T")


def traced_again(graph: fx.Graph, compile_it: Callable[[], T]) -> T:
    """What ``compile_it`` makes of the graph, without the names of which it says that they do not hold."""
    while True:
        try:
            return compile_it()
        except AssertionError as error:
            node = _where(error, graph)
            if node is None or not node.meta.pop("unbacked_bindings", None):
                raise


def _where(error: AssertionError, graph: fx.Graph) -> fx.Node | None:
    """The node of the graph that was being traced."""
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    nodes = [held for frame in frames for held in frame.values() if isinstance(held, fx.Node) and held.graph is graph]
    return nodes[-1] if nodes else None
