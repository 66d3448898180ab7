"""The known operations as rows of a table, from the entries: is one understood, and what becomes of its axes?"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

from packpass.semantics import pointwise, reductions
from packpass.semantics.effects import may_draw
from packpass.semantics.names import all_names, base_name
from packpass.semantics.pointwise import is_pointwise
from packpass.semantics.registry import FAMILIES, entry_of, reorders

_COPYING = frozenset({"views", "joins", "indexing"})
"""Families whose operations only move slots."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation with an entry."""

    name: str
    family: str
    axes: str
    """What becomes of the axes of its operands, in words or as a formula."""
    traits: tuple[str, ...]


def operations() -> Iterator[Operation]:
    """Every operation with an entry, by family."""
    families = {op: family for family, entries in FAMILIES.items() for op in entries}
    families |= {op: pointwise.FAMILY for op in map(base_name, all_names()) if op.isidentifier() and is_pointwise(op)}
    order = list(FAMILIES)
    for op in sorted(families, key=lambda name: (order.index(families[name]), name)):
        yield Operation(op, families[op], _axes(op), tuple(_traits(op, families[op])))


def _axes(op: str) -> str:
    entry = entry_of(op)
    text = (inspect.getdoc(entry) or "").split("\n\n")[0].replace("\n", " ").replace("``", "")
    return text.rstrip(".")


def _traits(op: str, family: str) -> Iterator[str]:
    if may_draw(op):
        yield "random"
    if op in pointwise.LINEAR or op in reductions.LINEAR or family in _COPYING:
        yield "no gradient of its own"
    if op in pointwise.DIVIDING:
        yield "may raise on integers"
    if reorders(op):
        yield "sums in any order"
