"""Autocast in a loop's body, as the casts that it makes.

Before::

    for s, e in documents:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h = x[s:e] @ w

After::

    for s, e in documents:
        h = x[s:e].to(torch.bfloat16) @ w.to(torch.bfloat16)

Also ``with torch.autocast("cuda", enabled=False)`` where autocast is off anyway, and regions for another device than
that of the tensors. Not a rewrite of its own: runs before the passes that look at loops, changes no value, and leaves
what it does not recognise: regions in one another, regions within a region or a caller's, and calls of which torch
does not say that autocast only casts their operands (`packpass.semantics.autocast`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, op_name
from packpass.semantics.autocast import casts
from packpass.semantics.effects import ENTER_AUTOCAST, EXIT_AUTOCAST, open_autocasts
from passes.building import Builder
from passes.loops import find
from passes.refused import Refused

_Casts = dict[fx.Node, dict[fx.Node, torch.dtype]]


def with_explicit_casts(graph: fx.Graph) -> None:
    """Write what autocast does in the bodies of loops into these."""
    for loop in find(graph):
        for _, body, _ in loop.iterations:
            for node in [node for node in body if op_name(node) == ENTER_AUTOCAST]:
                _written_out(graph, node)


def _written_out(graph: fx.Graph, enter: fx.Node) -> None:
    inside: list[fx.Node] = []
    leave = enter.next
    while op_name(leave) != EXIT_AUTOCAST:
        if leave.op in ("root", "output") or op_name(leave) == ENTER_AUTOCAST or leave.target is markers.LOOP_END:
            return
        inside.append(leave)
        leave = leave.next
    found = _casts(graph, enter, inside) if leave.args[:1] == (enter,) else None
    if found is None:
        return
    builds = []
    try:
        for node, wanted in found.items():
            builds.append(Builder(graph, node, next(iter(wanted))))
            made = {arg: builds[-1].call("to", arg, dtype, method=True) for arg, dtype in wanted.items()}
            node.args = fx.map_arg(node.args, lambda n: made.get(n, n))  # noqa: B023
            node.kwargs = fx.map_arg(dict(node.kwargs), lambda n: made.get(n, n))  # noqa: B023
    except Refused:
        return  # a cast more is none: it is what autocast does
    graph.erase_node(leave)
    graph.erase_node(enter)


def _casts(graph: fx.Graph, enter: fx.Node, inside: list[fx.Node]) -> _Casts | None:
    """The casts of every call of a region; None if it does something else."""
    region: Any = enter.args
    device, _, enabled, _ = region
    around = open_autocasts(graph, enter)
    if any(other[0] == device for other in around) or torch.is_autocast_enabled(device):
        return None  # what is off, or of another dtype, inside of what is on
    found: _Casts = {}
    for node in inside if enabled else ():
        if markers.is_of_capture(node):
            if node.target is markers.LOGSUMEXP and example(node.args[0]).dtype is not torch.float32:
                return None
            continue
        if node.op not in ("call_function", "call_method"):
            continue
        wanted = casts(node, region)
        if wanted is None:
            return None
        if wanted:
            found[node] = wanted
    return found
