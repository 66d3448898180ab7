"""Entries of a list that are as long as their rows: ``torch.cat([rotated, x[i, n:]])``, what is behind included.

The first ``n`` slots of a row and those behind them are the row, whatever ``n`` is: Dynamo has two numbers for them and
does not see that. A list of such entries can be stacked.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.capture.dynamo import emit
from packpass.capture.lists import CollectedItems
from packpass.capture.origins import needed_for
from packpass.capture.tallies import collect, end_of
from packpass.capture.watch import is_unknown
from packpass.semantics.binding import example, is_tensor
from packpass.semantics.indexing import entries_of

Extent = tuple[fx.Node, int]
"""A tensor and a dimension: its size."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """``row[start:stop]`` along a dimension, and how many slots that has."""

    row: Extent
    start: Any
    stop: Any
    size: Any

    @property
    def from_the_first(self) -> bool:
        return self.start is None or (isinstance(self.start, int) and self.start == 0)


def of_rows(items: CollectedItems) -> Any:
    """The entries of a list as a value of the graph: in the sizes of their rows, where they have these."""
    collected = items.whole()
    node = collected.as_proxy().node
    entries = [entry for entry in node.args if isinstance(entry, fx.Node) and is_tensor(entry)]
    if any(example(entry).dim() != example(node).dim() for entry in entries):
        return collected
    found: dict[int, list[Extent]] = {}
    for dim in [d for d, size in enumerate(example(node).shape) if is_unknown(size)]:
        rows = [_row(entry, example(entry).shape[dim]) for entry in entries]
        known = [row for row in rows if row is not None]
        if known and len(known) == len(rows) and all(same_size(_size(row), _size(known[0])) for row in known):
            found[dim] = known
    if not found:
        return collected
    resized = []
    for which, values in enumerate(items.values):
        end = end_of(items.region, which)
        with end.graph.inserting_before(end):
            resized.append(_resized(items.region.tx, values[0], found, which).as_proxy())
    return collect(items.region, resized)


def _resized(tx: Any, value: Any, found: dict[int, list[Extent]], which: int) -> Any:
    """The entry of a traced iteration in the sizes of its row."""
    proxy, sizes = value.as_proxy(), []
    for dim in range(example(proxy.node).dim()):
        row, at = found[dim][which] if dim in found else (proxy.node, dim)
        size = _size((row, at))
        if not isinstance(size, int):
            size = emit(tx, torch.ops.aten.sym_size.int, fx.Proxy(row, proxy.tracer), at).as_proxy()
        sizes.append(size)
    return emit(tx, markers.RESHAPE, proxy, sizes)


def _size(row: Extent) -> Any:
    return example(row[0]).shape[row[1]]


def _row(node: fx.Node, size: Any) -> Extent | None:
    """The row that an entry is as long as: it is checked to be, or it has the first slots of that row and as many as
    there are behind these, or what is behind the document and as many as there are in front of that."""
    sources = sorted(needed_for([node], is_tensor), reverse=True)
    for source in sources:
        for dim, extent in enumerate(example(source).shape):
            if not is_unknown(extent) and same_size(size, extent):
                return source, dim
    cuts = [cut for source in sources for cut in cuts_of(source)] if is_unknown(size) else []
    for cut in [cut for cut in cuts if not is_unknown(_size(cut.row))]:
        if cut.from_the_first and cut.stop is not None and same_size(size - cut.size + cut.stop, _size(cut.row)):
            return cut.row  # what is beside it has as many slots as the row has more than it: none fewer than none
        if cut.stop is not None or cut.start is None:
            continue
        before = size - cut.size
        heads = [other.size for other in cuts if other.from_the_first and same_size(other.stop, cut.start)]
        if any(same_size(before, number) for number in (cut.start, *heads)):
            return cut.row
    return None


def cuts_of(node: fx.Node) -> Iterator[Cut]:
    """The slices of an index, of each dimension that it keeps."""
    if node.target is not operator.getitem or not is_tensor(node.args[0]):
        return
    row: Any = node.args[0]
    kept, entries = iter(example(node).shape), entries_of(node.args[1], example(row).dim())
    if entries is None or any(is_tensor(entry.item) for entry in entries):
        return
    for entry in entries:
        size = next(kept) if entry.item is None or isinstance(entry.item, slice) else None
        if isinstance(entry.item, slice) and entry.item.step in (None, 1) and entry.axis is not None:
            yield Cut((row, entry.axis), example(entry.item.start), example(entry.item.stop), size)


def same_size(one: Any, other: Any) -> bool:
    return one is not None and other is not None and bool(statically_known_true(one == other))
