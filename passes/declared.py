"""Declarations of the layout in a graph: every pass may read them, the last one that does removes them."""

from __future__ import annotations

import torch
from torch import fx

from packpass.semantics.names import targets_of
from passes.prune import prune

_DECLARED = torch.ops.packpass.packed.default
_REMAPPED = torch.ops.packpass.remap_cu_seqlens.default
"""Boundaries that a pass has made for a declaration of its own: nothing else may use them."""


def remove_declarations(gm: fx.GraphModule) -> bool:
    """`packpass.packed` has said what it had to say. Returns whether there were any."""
    changed = False
    if _DECLARED not in targets_of(gm):
        return changed
    for m in [m for m in gm.modules() if isinstance(m, fx.GraphModule)]:
        for node in list(m.graph.nodes):
            if node.target is _DECLARED:
                boundaries = [n for n in node.all_input_nodes if n.target is _REMAPPED]
                node.replace_all_uses_with(node.args[0])
                m.graph.erase_node(node)
                prune(m.graph, boundaries)
                changed = True
    return changed
