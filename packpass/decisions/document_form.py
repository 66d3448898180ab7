"""A graph that runs parts of itself per document: what `isolate` hands to the engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx


@dataclasses.dataclass(frozen=True)
class DocumentForm:
    """``graph`` stands beside the graph that Dynamo knows, and takes the plan of `packpass.ops._each_document.plan_of`
    after its other inputs.

    ``boundaries``: a graph of the same inputs (without the plan) that gives the boundaries and the number of slots of
    the row. ``declared``: boundaries that do not fit the row are an error; else the row counts as one document.
    ``longest``: the one length of a padded document that the graph's code is good for; None for any.
    """

    graph: fx.GraphModule
    boundaries: fx.GraphModule
    declared: bool
    longest: int | None
