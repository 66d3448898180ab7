"""``torch.autocast`` regions inside a graph: what a pass adds there gets other dtypes than outside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass.layout.names import call_name


def open_autocasts(graph: fx.Graph, before: fx.Node) -> list[tuple[Any, ...]]:
    """Arguments of the autocast regions open at a node, outermost first: device type, dtype, enabled, cache."""
    opened: dict[fx.Node, tuple[Any, ...]] = {}
    for node in graph.nodes:
        if node is before:
            break
        name = call_name(node)
        if name == "_enter_autocast":
            opened[node] = node.args
        elif name == "_exit_autocast":
            opened.pop(node.args[0], None)
    return list(opened.values())


@contextlib.contextmanager
def autocasts(regions: list[tuple[Any, ...]]) -> Iterator[None]:
    """The same regions around Python code that runs now."""
    with contextlib.ExitStack() as stack:
        for device, dtype, enabled, cache in regions:
            stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache))
        yield
