"""How gradients of what ranks gather go back: ``cp_unpartition`` for the whole row does the same."""

from __future__ import annotations

from typing import Any

from torch import fx

from packpass.ops._cp_partition import cp_unpartition_op
from packpass.semantics import example
from passes.building import Builder
from passes.refused import Refused


def way_back_of(ways: set[Any]) -> Any:
    """The one way that gradients go back. Raises `Refused` if there are several."""
    if len(ways) != 1:
        raise Refused("not-zigzag", "gradients of what the ranks gather go back in more than one way")
    (way,) = ways
    return way


def gathered(build: Builder, x: fx.Node, cu: fx.Node, way: Any, group: str, size: int, zigzag: bool) -> fx.Node:
    """``[T, ..]`` of this rank's ``[T / cp, ..]``.

    ``way``: the gradient of a rank is that of its own rows (``own``), or summed over the ranks (``sum``).
    """
    if way == "none" and example(x).requires_grad:
        x = build.call("detach", x, method=True)
    return build.call(cp_unpartition_op, x, cu, 0, group, size, zigzag, way != "own")
