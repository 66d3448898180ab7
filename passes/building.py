"""Adding nodes to a Dynamo graph, each with the fake value it will have."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass._compat import fake_mode_of, ignore_fresh_symbols, python_dispatcher
from packpass.layout.names import example
from passes.nodes import fake_result
from passes.refused import Refused


class Builder:
    """Adds nodes before one node. ``like``: a tensor node, for its fake mode."""

    def __init__(self, graph: fx.Graph, before: fx.Node, like: fx.Node) -> None:
        self.graph, self.before = graph, before
        self.mode = fake_mode_of(example(like))
        self.made: list[fx.Node] = []

    def call(self, target: Any, *args: Any, method: bool = False, fake: Any = None, **kwargs: Any) -> fx.Node:
        """One node; its fake value is computed unless ``fake`` gives it. A failing fake run refuses the rewrite."""
        with self.graph.inserting_before(self.before):
            node = (
                self.graph.call_method(target, args, kwargs)
                if method
                else self.graph.call_function(target, args, kwargs)
            )
        node.meta["stack_trace"] = self.before.meta.get("stack_trace", "")
        self.made.append(node)
        if fake is None:
            # AOTAutograd traces the graph again; sizes made up here belong to nobody.
            contexts = (python_dispatcher(), self.mode, ignore_fresh_symbols(self.mode))
            try:
                fake = fake_result(target, args, kwargs, method, *contexts)
            except Exception as error:
                raise Refused("emit", f"{getattr(target, '__name__', target)} fails: {error}", node) from error
        node.meta["example_value"] = fake
        return node

    def undo(self) -> None:
        """Remove what was added."""
        for node in reversed(self.made):
            self.graph.erase_node(node)
        self.made = []
