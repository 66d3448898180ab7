"""A graph that runs parts of itself per document: what `isolate` hands to the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx


@dataclasses.dataclass(frozen=True)
class DocumentForm:
    """``graph`` stands beside the graph that Dynamo knows, and takes a plan of `packpass.ops._document_plans` after
    its other inputs.

    ``boundaries``: a graph of the same inputs (without the plan) that gives the boundaries and the number of slots of
    the row. ``declared``: boundaries that do not fit the row are an error; else the row counts as one document.
    ``padded_to(longest, total)``: the length of padded documents, of which the longest has so many slots in a row of
    ``total``: the graph's code is not good for every length. Wherever possible it is a multiple of ``multiple``.
    ``chunks``: ``(count, slots)`` of code for rows of so many chunks, in which documents lie behind each other.
    """

    graph: fx.GraphModule
    boundaries: fx.GraphModule
    declared: bool
    padded_to: Callable[[int, int], int]
    multiple: int
    chunks: tuple[int, int] | None = None
