"""Dimensions of a padded batch: which part of a value's shape counts rows, which tokens of a row, which features.

A dimension is a tuple of *parts*, outermost first: ``("B",)`` and ``("S",)`` are the batch and the tokens of a row,
``("B", 8)`` is the batch merged with 8 heads, a number is anything else, and ``()`` is a dimension of one slot. What a
call means (`packpass.semantics`) says along which loops its dimensions run; `carried` follows the parts along them, for
values with tokens and for masks alike.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from torch import fx

from packpass._compat import statically_known_true as known
from packpass.semantics import Call, Relation, call_of, meaning_of
from packpass.semantics.meaning import KEPT, UNKNOWN, How, Role

Part = Any
"""``"B"``, ``"S"``, ``"K"`` (tokens of the same row once more, as keys), or a size."""
Dims = tuple[tuple[Part, ...], ...]
MOVES = frozenset({"views", "indexing"})
"""Families of calls that give the values of one operand other places."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """The padded batch: ``batch`` rows of ``length`` slots; ints, or symbolic sizes."""

    batch: Any
    length: Any

    def size(self, part: Part) -> Any:
        return {"B": self.batch, "S": self.length, "K": self.length}.get(part, part) if isinstance(part, str) else part


def same(a: Any, b: Any) -> bool:
    return a is b or bool(known(a == b))


def parts_of(shape: Any) -> Dims:
    """The dimensions of a value without tokens."""
    return tuple(_slots(n) for n in shape)


def _slots(n: Any) -> tuple[Part, ...]:
    return () if same(n, 1) else (n,)


def at(dims: Dims, part: str) -> int:
    """The dimension that holds a part; there is one."""
    return next(d for d, parts in enumerate(dims) if holds(parts, part))


def holds(parts: tuple[Part, ...], part: str) -> bool:
    return any(isinstance(p, str) and p == part for p in parts)


def count(dims: Dims, part: str) -> int:
    return sum(holds((p,), part) for p in itertools.chain(*dims))


def named(parts: tuple[Part, ...]) -> bool:
    """Does a dimension hold more than features?"""
    return any(isinstance(p, str) for p in parts)


# === Along the loops of a call ===============================================================================


@dataclasses.dataclass(frozen=True)
class Carried:
    """The dimensions of a result, and the parts that each loop of the relation runs over."""

    dims: Dims
    labels: Mapping[int, tuple[Part, ...]]

    def along(self, loops: tuple[int, ...]) -> tuple[Part, ...]:
        return tuple(part for loop in loops for part in self.labels.get(loop, ()))


@dataclasses.dataclass(frozen=True)
class Across:
    """An axis that does not come through slot by slot; ``what`` is None where it meets another one."""

    operand: int
    axis: int
    parts: tuple[Part, ...]
    what: How | Role | None


def carried(tile: Tile, relation: Relation, given: Mapping[int, Dims]) -> Carried | Across:
    """What the dimensions of operands become if the batch and the tokens come through whole."""
    labels: dict[int, tuple[Part, ...]] = {}
    for k, dims in given.items():
        for a, (axis, parts) in enumerate(zip(relation.operands[k] or (), dims, strict=True)):
            roles = [relation.roles[loop] for loop in axis.loops if loop in relation.roles]
            split = None
            if axis.how == KEPT:
                split = regrouped(tile, (parts,), [relation.sizes[loop] for loop in axis.loops])
            if named(parts) and (axis.how != KEPT or roles or not split):
                return Across(k, a, parts, axis.how if axis.how != KEPT else roles[0] if roles else UNKNOWN)
            for loop, mine in zip(axis.loops, split or (), strict=False):
                have = labels.get(loop, ())
                if named(mine) and named(have) and mine != have:
                    return Across(k, a, parts, None)
                if named(mine) or not have:
                    labels[loop] = mine
    dims_out: Dims = tuple(
        _merged(part for loop in loops for part in labels.get(loop, _slots(relation.sizes[loop])))
        for loops in relation.result
    )
    for part in ("B", "S", "K"):
        if count(dims_out, part) > 1:
            k = next(iter(given))
            return Across(k, next((d for d, p in enumerate(given[k]) if holds(p, part)), 0), (part,), None)
    return Carried(dims_out, labels)


def _merged(parts: Any) -> tuple[Part, ...]:
    """Parts with neighbouring numbers multiplied."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, int) and found and isinstance(found[-1], int):
            found[-1] *= part
        else:
            found.append(part)
    return tuple(found)


def moved(tile: Tile, node: fx.Node, dims: Dims) -> Dims | None:
    """The dimensions of what a view, a permutation, an expansion or a plain index makes of its first argument.

    None for another call, or if batch or tokens do not come through whole.
    """
    found = moved_by(tile, call_of(node), dims)
    return found.dims if isinstance(found, Carried) else None


def moved_by(tile: Tile, call: Call | None, dims: Dims) -> Carried | Across | None:
    """`moved` with its reason; None for a call that does more than to move the slots of its first operand."""
    meaning = meaning_of(call)
    if call is None or meaning is None or meaning.family not in MOVES or len(meaning.relations) != 1:
        return None
    (relation,) = meaning.relations
    if any(operand.argument not in call.unread for operand in call.operands[1:]):
        return None
    if meaning.family == "views" and relation.in_order():
        found = regrouped(tile, dims, call.results[0].shape)
        place = next((d for d, parts in enumerate(dims) if named(parts)), 0)
        return Across(0, place, dims[place] if dims else (), UNKNOWN) if found is None else Carried(found, {})
    return carried(tile, relation, {0: dims})


def regrouped(tile: Tile, dims: Dims, shape: Any) -> Dims | None:
    """The dimensions of a view of another shape; None if it cuts the batch or the tokens."""
    rest = list(itertools.chain(*dims))
    found: list[tuple[Part, ...]] = []
    for n in shape:
        parts: list[Part] = []
        product: Any = 1
        while not same(product, n):
            if not rest:
                return None
            part = rest.pop(0)
            size = tile.size(part)
            if isinstance(part, int) and isinstance(product, int) and isinstance(n, int):
                missing = n // product
                if n % product or not missing:
                    return None
                if part > missing:
                    if part % missing:
                        return None
                    rest.insert(0, part // missing)
                    part = size = missing
            elif isinstance(product, int) and isinstance(n, int) and isinstance(size, int) and product * size > n:
                return None
            if isinstance(part, int) and parts and isinstance(parts[-1], int):
                parts[-1] *= part
            else:
                parts.append(part)
            product = product * size
        found.append(tuple(parts))
    return None if rest else tuple(found)
