"""``with torch.no_grad():`` in the body of a loop: what is computed there is detached where others look at it.

Before::

    _set_grad_enabled(False)
    mean = part.mean()
    _set_grad_enabled(True)
    part - mean

After::

    part - part.mean().detach()

Nothing is recorded either way, and no rule has to know of modes. Not a rewrite of its own: runs before the passes that
look at loops, changes no value and no gradient, and leaves what it does not recognise: regions that write, or that
record gradients where none are recorded around them.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import fx

from packpass.semantics import example
from packpass.semantics.effects import changes_grad_mode, changes_mode, effects_of
from passes.building import Builder
from passes.loops import find


@dataclasses.dataclass(frozen=True)
class _Region:
    """The calls between two switches; ``outside``: are gradients recorded around them?"""

    first: fx.Node
    nodes: tuple[fx.Node, ...]
    last: fx.Node
    outside: bool


def without_grad_modes(graph: fx.Graph) -> None:
    """Take regions without gradients out of the bodies of loops: all of a loop, or none of it."""
    for loop in find(graph):
        regions: list[_Region] = []
        for _, body, _ in loop.iterations:
            found = _regions(body)
            if found is None:
                break
            regions += found
        else:
            _remove(graph, regions)


def _regions(body: tuple[fx.Node, ...]) -> list[_Region] | None:
    """Those of one body; None if not all of its modes are understood."""
    out, first = [], None
    inside: list[fx.Node] = []
    for node in body:
        if changes_grad_mode(node):
            (enabled,) = node.args
            if not isinstance(enabled, bool) or (first is None and enabled):
                return None
            if first is not None and not all(_stays(n, inside) for n in inside):
                return None
            if first is not None:
                out.append(_Region(first, tuple(inside), node, enabled))
            first, inside = (node if first is None else None), []
        elif first is not None:
            if changes_mode(node) or not _plain(node):
                return None
            inside.append(node)
    # Regions in regions, if torch has not joined them, close in both ways.
    return out if first is None and len({region.outside for region in out}) < 2 else None


def _plain(node: fx.Node) -> bool:
    """Is a call the same whether gradients are recorded or not, but for these?"""
    effects = effects_of(node)
    return (effects.known or node.op == "get_attr") and not effects.writes and not effects.collective


def _stays(node: fx.Node, inside: list[fx.Node]) -> bool:
    """Is a tuple of tensors taken apart in its region? Nothing detaches one."""
    return not isinstance(example(node), (tuple, list)) or all(user in inside for user in node.users)


def _carries(node: fx.Node) -> bool:
    """May a value carry a gradient?"""
    value = example(node)
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _remove(graph: fx.Graph, regions: list[_Region]) -> None:
    for region in regions:
        seen = [node for node in region.nodes if region.outside and _carries(node)]
        own = {region.first, *region.nodes, region.last}
        for node in seen:
            users = [user for user in node.users if user not in own]
            if users:
                made = Builder(graph, region.last, node).call("detach", node, method=True)
                for user in users:
                    user.replace_input_with(node, made)
        graph.erase_node(region.first)
        graph.erase_node(region.last)
