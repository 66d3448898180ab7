"""A document's length, read from a list of lengths, is the difference of two boundaries that were summed up from it.

Before (`packpass.capture.offsets`)::

    cu = pad(cumsum(lengths // 2, 0), (1, 0))          # made before the loop
    s, e = cu[i].item(), cu[i + 1].item()
    n = lengths[i].item() // 2
    x[s : s + n]

After: ``x[s : s + (e - s)]``, which the passes know as a document of ``cu``. Not a rewrite of its own: runs before the
passes that look at loops, changes no value, and leaves what it does not recognise.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.markers.lengths import Steps, length_of, unstepped
from packpass.semantics import example
from packpass.semantics.effects import mutated_after
from passes.building import Builder
from passes.constant_places import with_places_in_front
from passes.document_loops.boundaries import summed
from passes.entry_totals import with_entry_totals
from passes.explicit_casts import with_explicit_casts
from passes.grad_modes import without_grad_modes
from passes.kept import with_kept_rows
from passes.masked_rows import with_whole_masks
from passes.numbered import with_sorted_rows
from passes.picked import with_picked_in_order
from passes.place_counts import with_place_counts
from passes.prune import prune
from passes.repeated import with_repeated_rows
from passes.single_parts import without_single_parts
from passes.sums_in_front import with_running_sums
from passes.turned_in_place import with_turned_views
from passes.views_in_front import with_views_in_front

_Made = tuple[str, Steps]


def prepare_lengths(graph: fx.Graph) -> None:
    """What a graph with captured loops goes through before the passes look at it."""
    with_explicit_casts(graph)
    with_turned_views(graph)
    without_grad_modes(graph)
    with_views_in_front(graph)
    with_repeated_rows(graph)
    with_place_counts(graph)
    with_entry_totals(graph)
    with_places_in_front(graph)
    with_sorted_rows(graph)
    with_picked_in_order(graph)
    with_kept_rows(graph)
    with_whole_masks(graph)
    with_running_sums(graph)
    unify_lengths(graph)
    without_entries(graph)
    without_single_parts(graph)


def unify_lengths(graph: fx.Graph) -> None:
    """Put the difference of the boundaries in the place of every such length."""
    begins = [node for node in graph.nodes if node.target is markers.LOOP_BEGIN]
    for begin in begins:
        known = _differences(begin)
        if not known:
            continue
        node = begin.next
        while node.target is not markers.LOOP_END and node.op != "root":
            made = length_of(node, begin)
            for what, difference in known:
                if made == what and difference < node:
                    node.replace_all_uses_with(difference)
            node = node.next


def without_entries(graph: fx.Graph) -> None:
    """Sums of lengths that were made from boundaries are made from these (`summed`)."""
    for cu in [node for node in graph.nodes if node.target is torch.nn.functional.pad]:
        if _summed(cu) is not None:
            lengths = cu.args[0].args[0]
            build = Builder(graph, cu, lengths)
            made = summed(build.call, lengths)
            cu.replace_all_uses_with(made)
            prune(graph, [cu])


def _differences(index: fx.Node) -> list[tuple[_Made, fx.Node]]:
    """``cu[i + 1] - cu[i]`` for all ``cu`` that are sums of lengths: what lengths, and the node."""
    found = []
    for select in index.users:
        if select.target is not torch.select or select.args[1:] != (0, index):
            continue
        cu: Any = select.args[0]
        lengths = _summed(cu)
        starts = [user for user in select.users if user.target == "item"]
        for difference in (user for start in starts for user in start.users):
            if lengths is not None and _is_difference(difference, cu, index, starts):
                found.append((lengths, difference))
    return found


def _is_difference(node: fx.Node, cu: fx.Node, index: fx.Node, starts: list[fx.Node]) -> bool:
    if node.target is not operator.sub or node.args[1] not in starts:
        return False
    stop: Any = node.args[0]
    entry = stop.args[0] if isinstance(stop, fx.Node) and stop.target == "item" else None
    if not isinstance(entry, fx.Node) or entry.target is not torch.select or entry.args[:2] != (cu, 0):
        return False
    at: Any = entry.args[2]
    return isinstance(at, fx.Node) and (at.target, at.args) in (
        (torch.sym_sum, ([1, index],)),
        (torch.sym_sum, ([index, 1],)),
        (operator.add, (index, 1)),
        (operator.add, (1, index)),
    )


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, fx.Node) and isinstance(example(value), torch.SymInt))


def _summed(cu: fx.Node) -> _Made | None:
    """``pad(cumsum(steps(lengths)), (1, 0)) + first``: name of the lengths, which nobody changes, and the steps."""
    last = cu
    if cu.target is operator.add and isinstance(cu.args[0], fx.Node) and _is_number(cu.args[1]):
        cu = cu.args[0]
    if cu.target is not torch.nn.functional.pad or cu.args[1:] != ((1, 0),) or cu.kwargs:
        return None
    sums: Any = cu.args[0]
    if not isinstance(sums, fx.Node) or sums.target is not torch.cumsum or sums.args[1:] != (0,):
        return None
    vector: Any = sums.args[0]
    node, steps = unstepped(vector)
    if node.target != "clone":
        return None
    end = next(iter(reversed(cu.graph.nodes)))
    if any(mutated_after(cu.graph, n, n.next, end) for n in (node, last)):
        return None
    return node.name, steps
