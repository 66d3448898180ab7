"""Which dimension of which value is packed by which boundaries: the one analysis that passes consult.

`analyze` links the axes of a graph that hold the same tokens (`rules`), then asks every source of boundaries
(`sources`) which axes it packs. Nothing is guessed: an op without a rule ends a layout, contradictions void it.

    layouts = analyze(gm)
    layouts.packing(node, dim)      # Packing or None
    layouts.packed_dim(node)        # (dim, Packing) or None
    str(layouts)                    # a table, for people
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass.layout import rules
from packpass.layout.axes import Axes, Axis, value_of
from packpass.layout.blank import blank_nodes
from packpass.layout.losses import shifted_targets
from packpass.layout.sources import KINDS, Doubt, LayoutError, Packing, WellKnown, in_graph, root_of, well_known
from packpass.semantics import example, op_name
from packpass.semantics.inner_graphs import subgraphs

__all__ = ["Axis", "Doubt", "LayoutError", "Layouts", "Packing", "analyze"]


@dataclasses.dataclass(frozen=True)
class Layouts:
    """The layout of every value of a graph and its subgraphs."""

    graphs: tuple[fx.Graph, ...]
    axes: Axes
    packings: dict[Axis, Packing]
    """Representative of a class of axes -> what packs it."""
    contradictory: dict[Axis, tuple[Packing, Packing]]
    doubts: tuple[Doubt, ...]
    """Possible sources that were not used."""
    suspects: tuple[tuple[Axis, Packing], ...] = ()
    """What those sources would have packed."""

    def if_doubts_were_wrong(self) -> Layouts:
        """The layout that the sources in doubt would give: is there anything that it matters for?"""
        packings = {self.axes.find(axis): packing for axis, packing in self.suspects}
        return dataclasses.replace(self, packings=packings)

    def packing(self, node: fx.Node, dim: int) -> Packing | None:
        """What packs dimension ``dim`` (may be negative) of ``node``, or None."""
        value = value_of(node)
        if not isinstance(value, torch.Tensor) or not -value.dim() <= dim < value.dim():
            return None
        return self.packings.get(self.axes.find(Axis(node, dim % value.dim())))

    def packed_dim(self, node: fx.Node) -> tuple[int, Packing] | None:
        """The one packed dimension (>= 0) of ``node``; None if there is none, or more than one."""
        found = [(axis.dim, p) for axis in self.axes.of(node) if (p := self.packing(node, axis.dim)) is not None]
        return found[0] if len(found) == 1 else None

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = []
        for graph in self.graphs:
            for node in graph.nodes:
                for axis in self.axes.of(node):
                    packing = self.packing(node, axis.dim)
                    if packing is not None:
                        shape = tuple(example(node).shape)
                        rows.append(
                            (
                                node.name,
                                op_name(node) or node.op,
                                shape,
                                axis.dim,
                                packing.boundaries.name,
                                packing.text,
                            )
                        )
        return tabulate(rows, headers=("value", "op", "shape", "packed dim", "boundaries", "source"))


def analyze(gm: Any, *, declared_only: bool = False, boundaries: fx.Node | None = None) -> Layouts:
    """The layout of every value of ``gm`` and the subgraphs that its higher-order operators call.

    Args:
        gm: a Dynamo graph module (anything with a ``graph``), with ``meta["example_value"]``.
        declared_only: use `packpass.packed` alone.
        boundaries: stands in for boundaries that are an argument of the call but no input of the graph.

    Raises:
        LayoutError: two `packpass.packed` contradict each other; names both places.
    """
    axes = Axes(blank_nodes(gm))
    graphs: list[fx.Graph] = []
    operands: dict[fx.Node, fx.Node | None] = {}
    _walk(gm, axes, graphs, operands)
    axes.settle()
    marks = [
        (axis, _from_outside(packing, operands))
        for graph in graphs
        for node in graph.nodes
        for axis, packing in in_graph(node)
    ]
    inputs = WellKnown()
    if declared_only:
        marks = [(axis, p) for axis, p in marks if p.kind == "declared"]
    else:
        inputs = well_known(gm.graph, boundaries)
        marks += inputs.marks
    packings, contradictory = _resolve(axes, marks)
    for axis, rows in axes.rows_met().items():
        found = {packings.get(row) for row in rows}
        if len({(p.boundaries, p.padded) if p is not None else None for p in found}) == 1 and (alike := found.pop()):
            packings.setdefault(axis, alike)
    for graph in graphs:
        for scores, targets in shifted_targets(axes, graph):
            packing, root = packings.get(axes.find(scores)), axes.find(targets)
            if packing is not None and root not in contradictory:
                packings.setdefault(root, packing)
    return Layouts(tuple(graphs), axes, packings, contradictory, inputs.doubts, inputs.suspects)


def _from_outside(packing: Packing, operands: dict[fx.Node, fx.Node | None]) -> Packing:
    """The same with boundaries of the outermost graph that hands them in: two checkpointed blocks that loop over the
    documents of one ``cu_seqlens`` mean the same boundaries."""

    def outermost(cu: fx.Node) -> fx.Node:
        while (outer := operands.get(cu)) is not None:
            cu = root_of(outer)
        return cu

    boundaries = outermost(packing.boundaries)
    padded = None if packing.padded is None else outermost(packing.padded)
    if boundaries is packing.boundaries and padded is packing.padded:
        return packing
    return dataclasses.replace(packing, boundaries=boundaries, padded=padded)


def _walk(gm: Any, axes: Axes, graphs: list[fx.Graph], operands: dict[fx.Node, fx.Node | None]) -> None:
    """Link the axes of a graph and its subgraphs; ``operands``: inputs of subgraphs -> what they are called with, None
    where two calls of one subgraph differ."""
    graphs.append(gm.graph)
    for node in gm.graph.nodes:
        rules.apply(axes, node)
        if op_name(node).startswith("higher_order::"):
            for sub, inputs, outputs in subgraphs(gm, node):
                _walk(sub, axes, graphs, operands)
                for outer, inner in inputs:
                    operands[inner] = outer if operands.setdefault(inner, outer) is outer else None
                    if isinstance(example(outer), torch.Tensor):
                        for axis in axes.of(outer):
                            axes.link(axis, Axis(inner, axis.dim))
                for item, inner in outputs:
                    for axis in axes.of(inner):
                        axes.link(Axis(node, axis.dim, item), axis)


def _resolve(
    axes: Axes, marks: list[tuple[Axis, Packing]]
) -> tuple[dict[Axis, Packing], dict[Axis, tuple[Packing, Packing]]]:
    """One packing per class: declared before found, and nothing where two of equal rank disagree."""
    packings: dict[Axis, Packing] = {}
    contradictory: dict[Axis, tuple[Packing, Packing]] = {}
    for kind in KINDS:
        new: dict[Axis, Packing] = {}
        for axis, packing in marks:
            if packing.kind != kind:
                continue
            root = axes.find(axis)
            other = new.setdefault(root, packing)
            if other.boundaries is not packing.boundaries or other.padded is not packing.padded:
                if kind == "declared":
                    raise LayoutError(
                        f"packpass.packed at {packing.location} ({packing.boundaries.name}) contradicts "
                        f"packpass.packed at {other.location} ({other.boundaries.name}): the same tokens cannot be cut "
                        "by two sets of boundaries. Remove one of the two, or declare the other tensor"
                    )
                contradictory[root] = (other, packing)
        for root, packing in new.items():
            packings.setdefault(root, packing)
    for root in contradictory:
        if packings[root].kind != "declared":
            del packings[root]
    return packings, contradictory
