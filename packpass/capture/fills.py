"""What lists hold that no traced iteration has put there: entries of other loops that fill them, and of documents that
they lack. Lists that several loops over documents fill:

::

    parts = []
    for row, boundaries in zip(rows, all_boundaries):
        for start, stop in itertools.pairwise(boundaries.tolist()):
            parts.append(f(row[start:stop]))

What an earlier loop has put into the list stands among what is in front of the later loop's entries, as one thing; it
is joined with them where the list is joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packpass.capture.dynamo import ListVariable, TensorVariable, ValueMutationNew, VariableTracker, example
from packpass.capture.lifted import same_for_all
from packpass.capture.tallies import filled

if TYPE_CHECKING:
    from packpass.capture.lists import CollectedItems
    from packpass.capture.region import Region


class Filled(VariableTracker):
    """In place of all entries of a list that a loop has filled, among others. It is no value of the program."""

    def __init__(self, items: CollectedItems, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.list = ListVariable([], mutation_type=ValueMutationNew())
        self.list.items = items
        self.items = items


def entries_of(values: list[Any]) -> list[Filled]:
    """Those of the entries that loops have filled in."""
    return [value for value in values if isinstance(value, Filled)]


def fill_in(region: Region, values: list[list[Any]], lacking: set[int]) -> bool:
    """Documents that a list lacks have an entry nevertheless, which is taken out again: zeros, or, where entries are as
    long as their documents, none at all (the entry of another traced iteration says so). False if entries are no
    tensors."""
    present = next(entries[0] for entries in values if entries)
    if not isinstance(present, TensorVariable):
        return False
    fake = example(present)
    begin = region.indices[0]
    sizes = [size if isinstance(size, int) else same_for_all(region.tx, size, begin) for size in fake.shape]
    for iteration in lacking:
        if any(size is None for size in sizes):
            values[iteration] = [present]
            continue
        known = {"dtype": fake.dtype, "device": fake.device}
        values[iteration] = [filled(region, iteration, tuple(sizes), 0, **known)]
    return True
