"""Read every depth of a chain of packed rolls from its source.

Before: ``y = packed_roll(x, cu, -1); z = packed_roll(y, cu, -1)``. After: ``z = packed_roll(x, cu, -2)``. All depths of
multi-token prediction then read the same source and end in one kernel, instead of one waiting for the other.

Why it is safe: over the same boundaries, dimension and fill, a slot that either roll fills is filled by the sum of two
shifts of one sign, all other slots read the same source, and both keep the same tail. Wrapping rolls add up always.

The same for `cp_packed_roll`, of zigzag shards: all fields and depths of a graph become one exchange (`cp_rolls`).

Does not handle: shifts of opposite sign with a fill (they lose tokens at both ends), different boundaries,
dimensions, fills or padded boundaries, a first result that is changed in place before the second reads it.
"""

from __future__ import annotations

import torch
from torch import fx

from packpass.decisions.location import location_of_node
from packpass.decisions.records import Refusal, Rewrite
from packpass.semantics.effects import mutated_after
from passes import cp_rolls
from passes.context import PassContext
from passes.cp_rolls import same_fill, same_gradient
from passes.prune import prune

NAME = "compose_rolls"

ROLL = torch.ops.packpass.packed_roll.default


def composed(outer: fx.Node) -> tuple[fx.Node, int] | None:
    """``(source, shift)`` if ``outer`` rolls the result of a roll and both add up."""
    inner = outer.args[0]
    if not isinstance(inner, fx.Node) or inner.target is not ROLL or len(inner.args) != 6 or len(outer.args) != 6:
        return None
    (source, cu, first, dim, fill, padded), (_, cu2, second, dim2, fill2, padded2) = inner.args, outer.args
    if cu is not cu2 or dim != dim2 or padded is not None or padded2 is not None:
        return None
    if not same_fill(fill, fill2) or (fill is not None and first * second < 0):  # type: ignore[operator]
        return None
    if not same_gradient(inner, source, outer):
        return None
    if not first or not second or not (first + second):  # type: ignore[operator]
        return None
    if mutated_after(outer.graph, inner, inner.next, outer):
        return None
    if any(mutated_after(outer.graph, n, inner, outer) for n in (source, cu)):  # type: ignore[arg-type]
        return None
    return source, first + second  # type: ignore[operator, return-value]


def run(gm: fx.GraphModule, context: PassContext) -> list[Rewrite | Refusal]:
    """Compose every chain of one graph, first rolls first, so that a chain of D is read D times from its source."""
    results: list[Rewrite | Refusal] = []
    for node in list(gm.graph.nodes):
        if node.target is not ROLL:
            continue
        found = composed(node)
        if found is None:
            continue
        source, shift = found
        inner, before = node.args[0], f"roll by {node.args[2]} of a roll by {node.args[0].args[2]}"
        node.args = (source, node.args[1], shift, *node.args[3:])
        prune(gm.graph, [inner])
        results.append(
            Rewrite(NAME, location_of_node(node) or "<unknown>", before, f"packed_roll by {shift}", {"shift": shift})
        )
    results += _one_exchange(gm.graph)
    if results:
        gm.recompile()
    return results


def _one_exchange(graph: fx.Graph) -> list[Rewrite | Refusal]:
    """Put the rolls of shards together that can be, each depth read from its source."""
    results: list[Rewrite | Refusal] = []
    members = cp_rolls.find(graph)
    if len(members) < 2:
        return []
    found = cp_rolls.exchanges(graph, members)
    for i, exchange in enumerate(found):
        count = len(exchange.members)
        if count > 1 or exchange.members[0].parent is not None:
            location = location_of_node(exchange.members[0].result) or "<unknown>"
            before = f"{count} context-parallel roll{'s' if count > 1 else ''}"
            details = {"shifts": [m.shift for m in exchange.members], "group_size": exchange.first.args[8]}
            cp_rolls.put_together(graph, exchange, found[i + 1 :])
            results.append(Rewrite(NAME, location, before, "one exchange, read from their sources", details))
    if results:
        graph.lint()
    return results
