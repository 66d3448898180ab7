"""Adding nodes to a Dynamo graph; what cannot be built is refused."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.semantics import build
from packpass.semantics.build import NotBuilt
from passes.refused import Refused


class Builder(build.Builder):
    """Adds nodes before one node. ``like``: a tensor node, for its fake mode."""

    before: fx.Node

    def __init__(self, graph: fx.Graph, before: fx.Node, like: fx.Node) -> None:
        super().__init__(graph, before, like)

    def call(self, target: Any, *args: Any, method: bool = False, fake: Any = None, **kwargs: Any) -> fx.Node:
        """One node; its fake value is computed unless ``fake`` gives it. A failing fake run refuses the rewrite."""
        try:
            return super().call(target, *args, method=method, fake=fake, **kwargs)
        except NotBuilt as error:
            raise Refused("emit", str(error), error.node) from error
