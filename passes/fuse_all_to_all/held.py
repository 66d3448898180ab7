"""What tensors of a loop body are besides blocks: documents cut out of outer tensors, and buffers to be filled."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

from passes.document_loops.op_names import name_of
from passes.fuse_all_to_all.blocks import Blocks


@dataclasses.dataclass(frozen=True)
class Source:
    """The documents' parts of an outer tensor: ``[.., documents, ..]`` cut along ``dim``."""

    node: fx.Node
    dim: int
    sharded: bool
    """Zigzag shards of the tokens (2 chunks per document and rank), or whole documents (2 * cp chunks)."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """``source[.., document, ..]``, read or written; ``rest``: the index along all dimensions, if there is more."""

    source: Source
    rest: tuple[Any, ...]
    written: bool = False


@dataclasses.dataclass(eq=False)
class Buffer:
    """A tensor that the body makes and fills by one whole copy."""

    content: Blocks | None = None
    read_before: bool = False
    """Did something read it before it was filled?"""


def spreads(size: Any, wanted: Any) -> bool:
    """Would a copy repeat the one entry of a dimension?"""
    return isinstance(size, int) and size == 1 and not (isinstance(wanted, int) and wanted == 1)


def fills(node: fx.Node, buffer: fx.Node) -> bool:
    return name_of(node) == "copy_" and node.args[0] is buffer and buffer not in node.args[1:]
