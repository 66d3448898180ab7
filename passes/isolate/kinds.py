"""What a value of a graph is to the row; see `passes.isolate.reading`."""

from __future__ import annotations

import dataclasses
import enum

from torch import fx


class Kind(enum.Enum):
    PLAIN = "plain"
    SIZED = "sized"
    BOUNDED = "bounded"
    MIXED = "mixed"


PLAIN, SIZED, BOUNDED, MIXED = Kind.PLAIN, Kind.SIZED, Kind.BOUNDED, Kind.MIXED


@dataclasses.dataclass(frozen=True)
class Row:
    """Slot i along ``dim`` is token i's."""

    dim: int


@dataclasses.dataclass(frozen=True)
class Merged:
    """Every token has ``inner`` slots beside each other along ``dim``, as of heads in ``x.reshape(-1, head_dim)``.

    ``by``: the call that has merged them. Such a value only goes from one token-wise call to the next: where it meets
    anything else, that call counts as one that mixes (`Reading.apart`)."""

    dim: int
    inner: int
    by: fx.Node = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Aligned:
    """A value of the row's length only that meets tokens slot by slot: along ``dim`` of ``table``, at ``user``."""

    user: fx.Node
    table: fx.Node
    dim: int


class Restart(Exception):
    """Memory turned out to be written with tokens, or boundaries, or merged dimensions to be no tokens: read the graph
    again with that known."""
