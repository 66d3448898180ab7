"""A quick look at a graph: most have no boundaries, and are left at once."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from packpass.layout.sources import BOUNDARY_NAMES, last_name, source_name
from packpass.semantics.names import targets_of


def mentions_boundaries(gm: fx.GraphModule) -> bool:
    """Does any input or call look as if it knew where documents end?"""
    modules = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
    if any(map(_takes_boundaries, targets_of(gm))):
        return True
    return any(_names_boundaries(node) for m in modules for node in m.graph.nodes)


_CU = re.compile("cum?_seq")


def _takes_boundaries(target: Any) -> bool:
    """Is a function one of those that are told where documents end?"""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace in ("aten", "prims"):
            return False
        return target.namespace == "packpass" or any(_CU.match(a.name) for a in target._schema.arguments)
    return "varlen" in getattr(target, "__name__", "")


def _names_boundaries(node: fx.Node) -> bool:
    """Could this node say where documents end, whatever it calls?"""
    if node.op == "placeholder":
        # Dynamo makes the name of an input from its source: the source itself is only asked where that fits.
        return "cu_" in node.name and last_name(source_name(node) or "") in BOUNDARY_NAMES
    return node.op == "call_function" and any(map(_CU.match, node.kwargs))
