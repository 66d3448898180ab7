"""``parts[0]`` and ``parts[-1]`` of ``x.split(lengths)`` outside of the loop over the parts.

Capture writes a part down as a marker, which is one of a document where a loop goes over them. Outside it is a slice of
what was split, by numbers that eager reads on the host as well; of a part that is asked for its dtype alone, nothing is
left.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example
from passes.building import Builder
from passes.loops import find, only_asserted


def without_single_parts(graph: fx.Graph) -> None:
    """Put slices in the place of parts that are looked at outside of loops."""
    nodes = [node for node in graph.nodes if node.target is markers.SPLIT_GET]
    if not nodes:
        return
    inside = {node for loop in find(graph) for node in loop.nodes}
    for node in [node for node in nodes if node not in inside]:
        for unused in only_asserted(node):
            graph.erase_node(unused)
        if not node.users:
            graph.erase_node(node)
        else:
            _cut(graph, node)


def _cut(graph: fx.Graph, part: fx.Node) -> None:
    x, lengths, index, dim = part.args
    assert isinstance(x, fx.Node) and isinstance(lengths, fx.Node) and isinstance(dim, int)
    build, at = Builder(graph, part, lengths), dim % example(x).dim()
    own: Any = build.call(torch.select, lengths, 0, 0 if index == 0 else -1)
    size = build.call("item", own, method=True, fake=example(part).shape[at])
    build.call(torch._check, build.call(operator.ge, size, 0))
    start: Any = 0
    if index != 0:
        start = build.call("item", build.call(torch.sub, build.call(torch.sum, lengths), own), method=True)
        build.call(torch._check, build.call(operator.ge, start, 0))
    made = build.call(torch.narrow, x, at, start, size, fake=example(part))
    made.meta.update({key: value for key, value in part.meta.items() if key not in made.meta})
    part.replace_all_uses_with(made)
    graph.erase_node(part)
