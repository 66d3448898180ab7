"""Putting boundaries of the expanded row in the place of those before expansion."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import fx

from packpass.layout.attention import parameter_names
from packpass.layout.axes import Axis
from packpass.semantics import example, storage
from packpass.semantics.effects import effects_of
from passes.building import Builder
from passes.refused import Refused
from passes.remap_boundaries.evidence import Boundaries, Evidence
from passes.remap_boundaries.expansions import Expansion
from passes.remap_boundaries.memory import writes_between
from passes.remap_boundaries.uses import Side, Uses, longest

_ops = torch.ops.packpass


def needed_early(gm: Any, target: fx.Node, anchor: fx.Node, cut: Container[fx.Node]) -> list[fx.Node]:
    """The calls that have to move before ``anchor`` for ``target`` to be known there. Those of ``cut`` are about to get
    other boundaries: what they say comes too late.

    Raises:
        Refused: one of them may have an effect, or reads what is written in between.
    """
    found = set[fx.Node]()
    stack = [target]
    while stack:
        node = stack.pop()
        if node < anchor or node in found:
            continue
        if node in cut or not effects_of(node).repeatable:
            raise Refused("boundaries-late", "how wide tokens become is known only after the boundaries are used", node)
        if any(writes_between(gm, storage(n), anchor.prev, node) for n in node.all_input_nodes):
            raise Refused("boundaries-late", "what says how wide tokens become is written in place", node)
        found.add(node)
        stack += node.all_input_nodes
    return sorted(found)


def move(nodes: list[fx.Node], anchor: fx.Node) -> None:
    """In the order of the graph, before ``anchor``."""
    for node in nodes:
        anchor.prepend(node)


class Remapper:
    """The new boundaries, made before ``anchor``. Nothing else in the graph changes until `substitute`."""

    def __init__(self, graph: fx.Graph, anchor: fx.Node, expansion: Expansion, rule: str) -> None:
        self.graph, self.expansion, self.rule = graph, expansion, rule
        self.builder = Builder(graph, anchor, expansion.widths.node)

    def call(self, target: Any, *args: Any, method: bool = False) -> fx.Node:
        node = self.builder.call(target, *args, method=method)
        node.meta["packpass"] = self.rule
        return node

    def length(self, axis: Axis) -> Any:
        size = example(axis.node).shape[axis.dim]
        return size if isinstance(size, int) else self.call(torch.ops.aten.sym_size.int, axis.node, axis.dim)

    def widths(self) -> fx.Node:
        """``[T]``, integers or bools."""
        row, node = self.expansion.widths, self.expansion.widths.node
        rank = example(node).dim()
        for dim in reversed(range(rank)):
            if dim != row.axis.dim:
                node = self.call(torch.select, node, dim, 0)
        return self.call(torch.add, node, self.expansion.plus) if self.expansion.plus else node

    def remap(self, boundaries: Boundaries, evidence: Evidence, checked: bool = True) -> dict[fx.Node, fx.Node]:
        """The boundaries of a set -> those of the row after expansion. Who uses them checks them if this does not."""
        widths, after = self.widths(), self.length(self.expansion.after)
        cu, padded, keys = boundaries.cu, boundaries.padded, boundaries.keys
        sets = [(cu, padded), (keys, boundaries.keys_padded)]
        sets += [(slots, None) for slots in {padded: None, boundaries.keys_padded: None}]
        if evidence.kind == "declared":
            if checked:
                self.call(_ops.check_cu_seqlens.default, cu, self.length(self.expansion.before), padded)
            new = {n: self.call(_ops.remap_cu_seqlens.default, n, widths, slots) for n, slots in sets if n is not None}
            if checked:
                slots = new[padded] if padded is not None else None
                self.call(_ops.check_cu_seqlens.default, new[cu], after, slots)
            return new
        exact, op = evidence.kind == "input", _ops.expanded_boundaries.default
        return {n: self.call(op, n, widths, after, slots, exact) for n, slots in sets if n is not None}

    def check(self) -> None:
        """Before tokens are put at places that the row may not have: an error that names the numbers."""
        if self.expansion.after.node < self.builder.before:
            self.call(_ops.check_expansion.default, self.widths(), self.length(self.expansion.after))

    def mark(
        self, new: dict[fx.Node, fx.Node], boundaries: Boundaries, evidence: Evidence, rows: Iterable[Axis]
    ) -> None:
        """Say what cuts the expanded ``rows``, for `pack_shifts`. Attention is given boundaries by the code, and has
        to take them if nothing better is known; shifts were not."""
        total = self.length(self.expansion.after)
        cu, padded = new[boundaries.cu], new[boundaries.padded] if boundaries.padded is not None else None
        if evidence.kind != "declared":
            widths, exact, fits = self.widths(), evidence.kind == "input", _ops.boundaries_or_row.default
            sure = [
                self.call(_ops.expanded_boundaries.default, n, widths, total, slots, exact, True)
                for n, slots in ((boundaries.cu, boundaries.padded), (boundaries.padded, None))
                if n is not None
            ]
            cu, padded = sure[0], sure[1] if len(sure) > 1 else None
            row = self.call(fits, cu, total, padded, False)  # what could not be remapped need not fit this row
            cu, padded = row, self.call(fits, cu, total, padded, True) if padded is not None else None
        anchor = self.builder.before
        for row_axis in rows:
            node, dim = row_axis.node, row_axis.dim - example(row_axis.node).dim()
            late = not node < anchor
            self.builder.before = node.next if late else anchor
            self.call(_ops.packed.default, node, cu, dim, padded, "")
        self.builder.before = anchor

    def substitute(self, new: dict[fx.Node, fx.Node], uses: Uses) -> None:
        """Every use on the row after expansion gets the new boundaries, or what is made of them."""
        changed = {use.node for use in uses.on(Side.AFTER)}
        needed = set[fx.Node]()
        stack = [n for use in changed for n in use.all_input_nodes if n in uses.derived]
        while stack:
            node = stack.pop()
            if node not in needed and node not in new:
                needed.add(node)
                stack += [n for n in node.all_input_nodes if n in uses.derived]
        anchor = self.builder.before
        for node in sorted(needed):
            with self.graph.inserting_before(anchor if node < anchor else node):
                made = self.graph.node_copy(node, lambda n: new.get(n, n))
            made.meta["packpass"] = self.rule
            new[node] = made
        for use in changed:
            for node in use.all_input_nodes:
                if node in new:
                    use.replace_input_with(node, new[node])
        for node, found in uses.attentions:
            bounds = longest(node)
            if not bounds:
                continue
            # Stale like the boundaries. The row's length bounds every document, and is known on the host.
            with node.graph.inserting_before(node):
                size: Any = example(found.query).shape[found.dim]
                if not isinstance(size, int):
                    row = node.graph.call_function(torch.ops.aten.sym_size.int, (found.query, found.dim))
                    row.meta["example_value"], size = size, row
            set_arguments(node, dict.fromkeys(bounds, size))


def set_arguments(node: fx.Node, values: dict[str, Any]) -> None:
    """Change arguments of a call by the names of its parameters."""
    names = parameter_names(node)
    args = list(node.args)
    for name, value in values.items():
        if name in node.kwargs:
            node.update_kwarg(name, value)
        else:
            args[names.index(name)] = value
    node.args = tuple(args)
