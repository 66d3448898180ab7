"""What is known about one trace of a frame."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packpass.capture.region import Region


@dataclasses.dataclass
class Trace:
    """What is known about values of the traced program, from the start of one trace of a frame to its end."""

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments of the frame, before the code assigns to their names."""
    callers: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """A sequence that is a list of the caller's -> where that comes from."""
    lengths: list[tuple[Any, Any, Any]] = dataclasses.field(default_factory=list)
    """Source of such a list, what it is now, and the list of its lengths."""
    regions: dict[Any, Region] = dataclasses.field(default_factory=dict)
    """Iterator over documents -> the loop that it drives."""
    lent: set[Any] = dataclasses.field(default_factory=set)
    """Lists of numbers that something was made of, which must not grow any more."""
    spent: set[Any] = dataclasses.field(default_factory=set)
    """Iterators over documents that somebody has gone through."""
    requests: dict[Any, tuple[Region, int, int]] = dataclasses.field(default_factory=dict)
    """Point-to-point request -> the loop and its iteration that made it, and its number in the graph."""
    born: dict[Any, Region | None] = dataclasses.field(default_factory=dict)
    """Iterator or generator -> the loop in which it was made."""
    consumers: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Frame of a generator -> the frame with the loop that runs it."""
    alive: set[str] = dataclasses.field(default_factory=set)
    """Hooks that torch has called."""
    messages: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """``P2POp`` -> its arguments."""
    taken: dict[Any, None] = dataclasses.field(default_factory=dict)
    """Tensors of one number in whose place the number stands (`packpass.capture.sized`)."""
    whiles: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Frame, and where the body of a ``while`` in it begins -> the loop over documents that it is, or None."""
    iterators: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """``zip`` and the like over documents -> the iterator by which ``next`` goes over it."""
    exits: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Iterator over documents that ``next`` advances -> the frame, and where None leads in it."""
    chunks: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """The parts that ``chunk`` makes of a document -> the arguments of their marker; None for those of ``split``."""
    pieces: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """The same -> those that are taken by their numbers."""
    slices: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """What is cut, and how -> the size and the offset that were made up for it."""
    rows: list[Any] = dataclasses.field(default_factory=list)
    """The lengths of the rows that are cut into documents, each once."""
    picked: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Node of a matrix, and the number of a row -> the row (`packpass.capture.layers`)."""
    summed: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """The graph that is traced, a function, and the tensor that a list of numbers is read from -> the number made."""
    counted: dict[Any, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    """Node of the numbers of all rows (`packpass.capture.row_numbers`) -> their name, and the vector."""
    listed: set[Any] = dataclasses.field(default_factory=set)
    """Sequences of which ``list`` was made, which are taken for it."""
    hands_on: bool = False
    """See `hands_on`."""
    edge: Any = None
    """The branch on a document's number whose way for most documents is traced (`packpass.capture.edges`)."""
