"""What tensors of a loop body are besides blocks: documents cut out of outer tensors, and buffers to be filled."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import fx

from packpass.semantics import example
from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all.blocks import Blocks, NotMovement
from passes.fuse_all_to_all.scalars import Lin


@dataclasses.dataclass(frozen=True)
class Source:
    """The documents' parts of an outer tensor: ``[.., documents, ..]`` cut along ``dim``."""

    node: fx.Node
    dim: int
    sharded: bool
    """Shards of the tokens (2 chunks per document and rank of a zigzag, else 1), or whole documents."""
    detached: bool = False
    """Does nothing go back to it?"""

    @property
    def others(self) -> list[Any]:
        """The sizes of its dimensions but that of the tokens."""
        return [size for d, size in enumerate(example(self.node).shape) if d != self.dim]

    @property
    def unknown(self) -> tuple[str, ...]:
        """Those of them that are not known, in their order."""
        return tuple(str(size) for size in self.others if not isinstance(size, int))

    @property
    def columns(self) -> int:
        """How many columns the known ones make."""
        return math.prod(size for size in self.others if isinstance(size, int))


@dataclasses.dataclass(frozen=True)
class Cut:
    """``source[.., document, ..]``, read or written; ``rest``: the whole index, if there is more than the document."""

    source: Source
    rest: tuple[Any, ...]
    written: bool = False


@dataclasses.dataclass(frozen=True)
class Window:
    """``base[.., start:stop, ..]`` of an outer tensor along ``dim``; ``rest``: the whole index, with new dimensions
    (None), and with all of ``dim`` where the slice is, at position ``at``."""

    base: fx.Node
    dim: int
    start: Lin
    stop: Lin
    rest: tuple[Any, ...]
    at: int


@dataclasses.dataclass(eq=False)
class Buffer:
    """A tensor that the body makes and fills: by one whole copy, or part by part."""

    places: Blocks | None = None
    """Its blocks by number; None if its sizes are not understood."""
    content: Blocks | None = None
    """Once it is full."""
    read_before: bool = False
    """Did something read it before it was filled?"""
    parts: Any = None
    """What the blocks are that were filled; -1 for the others."""

    def put(self, where: Blocks, what: Blocks) -> None:
        """Fill the blocks of these numbers.

        Raises:
            NotMovement: what is put there does not have the part's dimensions.
        """
        if self.places is None or where.dims != what.dims:
            raise NotMovement("a part of other sizes")
        if np.unique(where.data).size != where.data.size:
            raise NotMovement("a place that is filled twice at once")
        if self.parts is None:
            self.parts = np.full(self.places.data.size, -1)
        self.parts[where.data.reshape(-1)] = what.data.reshape(-1)
        if (self.parts >= 0).all():
            self.content = Blocks(self.places.dims, self.parts.reshape(self.places.data.shape))


def spreads(size: Any, wanted: Any) -> bool:
    """Would a copy repeat the one entry of a dimension?"""
    return isinstance(size, int) and size == 1 and not (isinstance(wanted, int) and wanted == 1)


def fills(node: fx.Node, buffer: fx.Node) -> bool:
    """Does a call put something into a buffer, or into a part of it?"""
    return name_of(node) in FILLING and node.args[0] is buffer and buffer not in node.args[1:]


def reads(node: fx.Node, buffer: fx.Node) -> bool:
    """Does a user of a buffer look at what it holds, not at its sizes alone?"""
    return not fills(node, buffer) and not isinstance(example(node), (int, torch.SymInt, torch.Size))


FILLING = ("copy_", "setitem")
