"""Places of a mask in the row of a document, of which no more is asked than how many there are: a number of the row.

Before, for row ``i`` of a batch (`packpass.capture.place_ends`)::

    places = (ids[i] == pad).nonzero()         # masked
    end = first[i].item() if places.shape[0] > 0 else width

After::

    counts = (ids == pad).sum(1)               # in front of the loop
    end = first[i].item() if counts[i].item() > 0 else width

Lists of places are documents of their own, of which a loop has one kind; numbers it may have as many as it likes. Not a
rewrite of its own: runs before the passes that look at loops, changes no value, and leaves what it does not recognise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, family_of, op_name
from packpass.semantics.effects import mutated_after
from packpass.semantics.meaning import same_size
from passes.building import Builder
from passes.loops import LoopFound, find
from passes.masked_rows import Whole
from passes.prune import prune
from passes.refused import Refused

_SIZE = torch.ops.aten.sym_size.int


def with_place_counts(graph: fx.Graph) -> None:
    """Count places in front of loops that only want to know how many there are."""
    for loop in find(graph):
        whole = Whole(graph, loop)
        made: dict[fx.Node, fx.Node] = {}
        for begin, body, _ in loop.iterations:
            prune(graph, [n for n in body if op_name(n) == "unsqueeze"])  # columns of which only numbers were read
            for node in [n for n in body if n.target is markers.MASKED and n.args[2] is None]:
                sizes = _sizes(node) if _holds_places(node, loop) else None
                if sizes:
                    _put(whole, made, node, sizes, begin)


def _holds_places(node: fx.Node, loop: LoopFound) -> bool:
    """Are the numbers of a row's slots what a mask picks from?"""
    row: Any = node.args[0]
    rows: Any = row.args[0] if op_name(row) in ("select", "getitem") else None
    if not isinstance(rows, fx.Node) or rows in loop.nodes or op_name(rows) != "expand":
        return False
    numbers: Any = rows.args[0]
    return op_name(numbers) == "arange" and len(numbers.args) == 1 and example(rows).dim() == 2


def _sizes(places: fx.Node) -> list[fx.Node] | None:
    """Where the program asks how many places there are; None if it does something else with them."""
    found = []
    for user in places.users:
        if user.target is _SIZE and user.args[1] == 0 and same_size(example(user), example(places).shape[0]):
            found.append(user)
            continue
        fake, same = example(user), family_of(user) == "views" and len(user.all_input_nodes) == 1
        same = same and isinstance(fake, torch.Tensor) and same_size(fake.shape[0], example(places).shape[0])
        more = _sizes(user) if same and not mutated_after(user.graph, user, user) else None
        if more is None:
            return None
        found += more
    return found


def _put(whole: Whole, made: dict[fx.Node, fx.Node], places: fx.Node, sizes: list[fx.Node], begin: fx.Node) -> None:
    builds: list[Builder] = []
    try:
        mask = whole.of(places.args[1])  # type: ignore[arg-type]
        if mask is None or example(mask).dtype is not torch.bool:
            return
        if mask not in made:
            made[mask] = whole.lengths(mask)
        counts = {}
        for size in sizes:
            builds.append(build := Builder(whole.graph, size, mask))
            entry = build.call("clone", build.call(torch.select, made[mask], 0, begin), method=True)
            counts[size] = build.call("item", entry, method=True, fake=example(size))
    except Refused:
        for build in reversed(builds):
            build.undo()
        return
    for size, count in counts.items():
        size.replace_all_uses_with(count)
    prune(whole.graph, [*sizes, places])
