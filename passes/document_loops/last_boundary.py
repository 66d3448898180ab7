"""Branches on the last boundary that were taken for branches on the length of a row (`markers.LAST_BOUNDARY`).

A loop over the parts of ``torch.split(row, lengths)`` proves it: split raises where the lengths do not add up to the
row. What is left to check on the device is that boundaries which begin elsewhere than with 0 end there all the same.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import hint_of
from packpass.semantics import example
from packpass.semantics.build import Builder
from packpass.semantics.effects import mutated_after
from passes.document_loops.boundaries import boundary_vector, lengths_of
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.find import Decided


def unproven(graph: fx.Graph, decided: Decided) -> list[fx.Node]:
    """The branches that this loop proves to be what they were taken for; refuses a loop behind another one."""
    found = [node for node in graph.nodes if node.target is markers.LAST_BOUNDARY]
    for node in found:
        boundaries, size, outcome = node.args
        number = example(size) if isinstance(size, fx.Node) else size
        if not _fills(decided, boundaries) or not _same_outcome(number, _row(decided), outcome):
            reason = "a branch on the last boundary: nothing in this loop says that the documents fill the row"
            raise Refused("length-branch", reason, node)
        if mutated_after(graph, boundaries, node):
            raise Refused("boundaries-written", "boundaries are changed after a branch on the last of them", node)
    return found


def _row(decided: Decided) -> Any:
    return example(decided.row_node).shape[decided.row_dim] if decided.row_node is not None else None


def _fills(decided: Decided, boundaries: Any) -> bool:
    """Does the loop split a row by the lengths of these boundaries?"""
    if not decided.covers_row or decided.row_node is None or not isinstance(boundaries, fx.Node):
        return False
    own = decided.boundaries.node
    root = boundary_vector(own)[0] if decided.boundaries.lengths else own
    return boundary_vector(boundaries)[0] in (root, lengths_of(root) if decided.boundaries.lengths else root)


def _same_outcome(number: Any, row: Any, outcome: Any) -> bool:
    """Settled by a guard on sizes, as the branch itself is."""
    if None in (hint_of(number), hint_of(row)):
        return False
    return bool(number == row) == outcome


def check(graph: fx.Graph, branches: list[fx.Node], rule: str) -> None:
    """Put the check in place of each branch."""
    for node in branches:
        boundaries, size, outcome = node.args
        build = Builder(graph, node, boundaries, rule)
        same = build.call(operator.eq, build.call(operator.getitem, boundaries, -1), size)
        holds = same if outcome else build.call(torch.logical_not, same)
        message = "packpass: the last of cu_seqlens is not the length of the row that its documents fill"
        build.call(torch._assert_async, holds, message)
        graph.erase_node(node)
