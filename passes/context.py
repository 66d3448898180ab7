"""What the runner tells every pass about the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from packpass._options import Options
from packpass.decisions.document_form import DocumentForm
from packpass.decisions.packed_form import PackedForm
from packpass.decisions.records import Refusal


@dataclasses.dataclass
class Products:
    """What passes make beside the graph, for those who run it."""

    packed: PackedForm | None = None
    judged_loops: set[int] = dataclasses.field(default_factory=set)
    """Captured loops of which a pass has said why they stay, or that it has rewritten."""
    without_a_row: dict[int, list[Refusal]] = dataclasses.field(default_factory=dict)
    """Captured loops over documents for which there is no whole-row form, and why."""
    documents: DocumentForm | None = None


@dataclasses.dataclass(frozen=True)
class PassContext:
    """Facts from capture, and a place for what does not go into the graph.

    ``locations``: captured loop id -> the user's ``file.py:123``. ``user_checks``: the graph holds assertions that the
    user wrote outside captured loops; they look like Dynamo's own and must stay. ``options``: the user's.
    ``products``: filled by the passes. ``branches``: captured loop id -> the line of a branch on data that was followed
    both ways, as true in one of the traced iterations and as false in the other.
    """

    locations: Mapping[int, str] = dataclasses.field(default_factory=dict)
    user_checks: bool = False
    options: Options = dataclasses.field(default_factory=Options)
    products: Products = dataclasses.field(default_factory=Products)
    branches: Mapping[int, str] = dataclasses.field(default_factory=dict)
