"""Places of a row and what lies there in memory.

An expression of a document's numbers is a vector with one entry per document; one that holds coordinates is a tensor
that broadcasts to the row: slots along dimension 0 and, behind it, the dimensions that all documents share.
"""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example, is_tensor
from passes.ragged_grids.documents import DIVISIONS, OPERATORS, Documents
from passes.ragged_grids.sizes import SLOT, Free, Looked
from passes.refused import Refused

_ops = torch.ops.packpass


ALL: Any = sympy.Integer(1)
"""Every document goes there."""


class Slots:
    """The slots of documents of given lengths, one behind the other; shared by all lists of such lengths. ``going`` is
    1 for documents that have these slots, and 0 for those that have none in this row."""

    def __init__(self, documents: Documents, length: Any, going: Any = ALL) -> None:
        self._number(documents, length, going, documents.ends_of(sympy.expand(going * length)))

    def _number(self, documents: Documents, length: Any, going: Any, cu: fx.Node) -> None:
        """``cu``: where the documents begin and end, from 0 on."""
        call = documents.call
        self.length, self.going, self.cu = length, going, cu
        self.total = call(_ops.covered_length.default, self.cu)
        self.ids = call(_ops.segment_ids.default, self.cu, self.total)
        self.numbers = call(_ops.position_ids.default, self.cu, self.total)


def slots_of(documents: Documents, length: Any, going: Any = ALL) -> Slots:
    """The slots of documents of that length, made once."""
    if (length, going) not in documents.slots:
        documents.slots[length, going] = Slots(documents, length, going)
    slots: Slots = documents.slots[length, going]
    return slots


class Places:
    """Slots of all documents, and ``rank - 1`` dimensions behind them."""

    def __init__(self, documents: Documents, slots: Slots, rank: int) -> None:
        self.documents, self.slots, self.rank, self.call = documents, slots, rank, documents.call
        self.inside: fx.Node | None = None
        """Where the places that are read now are within their tensor, if they may be outside of it."""
        self.looked: dict[Any, fx.Node] = {}
        """Coordinates that tensors of integers hold."""
        self._numbers: dict[Any, Any] = {}
        self._spread: dict[fx.Node, fx.Node] = {}
        self._flattened: dict[fx.Node, fx.Node] = {}

    # --- numbers --------------------------------------------------------------------------------------------

    def _varies(self, found: Any) -> bool:
        """Does an expression differ from slot to slot of one document?"""
        return bool(found.has(Free) or found.free_symbols & {SLOT, *self.looked})

    def number(self, found: Any) -> Any:
        """An expression as a tensor that broadcasts to the row, or an int that all slots share."""
        if found not in self._numbers:
            self._numbers[found] = self._number(found)
        return self._numbers[found]

    def _number(self, found: Any) -> Any:
        if not self._varies(found):
            return self._of_documents(self.documents.vector(found))
        if found == SLOT:
            return self.behind(self.slots.numbers)
        if found in self.looked or isinstance(found, Looked):
            return self.looked[found.args[0] if found.args else found]
        if isinstance(found, Free):
            axis, size = int(found.args[0]), self.documents.vector(found.args[1])
            places = self.call(torch.arange, size, device=self.documents.device)
            for _ in range(self.rank - 1 - axis):
                places = self.call(torch.unsqueeze, places, -1)
            return places
        if found.func in DIVISIONS:
            number, by = found.args
            return self.call(DIVISIONS[found.func], self.number(number), self._divisor(by))
        if found.func not in (sympy.Add, sympy.Mul):
            raise Refused("no-rule", f"a coordinate that is {found.func.__name__} of others")
        if found.func is sympy.Add:
            parts = self._summands(found)
        else:
            own, rest = self._apart(found)
            parts = [*map(self.number, own), *([] if rest == 1 else [self.number(rest)])]
        return self.documents.folded(OPERATORS[found.func], parts)

    def _apart(self, found: Any) -> tuple[tuple[Any, ...], Any]:
        """The factors that differ from slot to slot, and the product of the others."""
        factors = sympy.Mul.make_args(found)
        own = tuple(part for part in factors if self._varies(part))
        return own, sympy.Mul(*(part for part in factors if part not in own))

    def _summands(self, found: Any) -> list[Any]:
        """What a sum adds up: what the documents have the same factors of is added up once for each of them, and not
        for each of their slots."""
        weights: dict[tuple[Any, ...], Any] = {}
        for part in found.args:
            own, weight = self._apart(part)
            weights[own] = weights.get(own, 0) + weight
        parts = []
        for own, weight in weights.items():
            numbers = [*map(self.number, own), *([] if own and weight == 1 else [self.number(weight)])]
            parts.append(self.documents.folded(operator.mul, numbers))
        return parts

    def _divisor(self, by: Any) -> Any:
        """A number to divide by: where the documents say it, 0 is replaced once for each of them."""
        if self._varies(by):
            return self.documents.not_zero(self.number(by))
        vector = self.documents.not_zero(self.documents.vector(by))
        return self._of_documents(vector)

    def _of_documents(self, vector: Any) -> Any:
        """The entry of its document for every slot; a number that they share as it is."""
        if not is_tensor(vector):
            return vector
        if vector not in self._spread:
            self._spread[vector] = self.behind(self.call(torch.index_select, vector, 0, self.slots.ids))
        return self._spread[vector]

    def behind(self, slots: fx.Node) -> fx.Node:
        for _ in range(self.rank - 1):
            slots = self.call(torch.unsqueeze, slots, -1)
        return slots

    def tensor(self, found: Any, dtype: torch.dtype) -> fx.Node:
        """An expression, or a number, as a tensor."""
        number = self.number(found) if isinstance(found, sympy.Basic) else found
        if not is_tensor(number):
            return self.call(torch.full, (1,) * self.rank, number, dtype=dtype, device=self.documents.device)
        node: fx.Node = number
        return node if example(node).dtype == dtype else self.call("to", node, dtype, method=True)

    # --- memory ---------------------------------------------------------------------------------------------

    def of_row(self, node: fx.Node, dims: tuple[Any, ...], dim: int, at: tuple[Any, ...], going: Any = ALL) -> fx.Node:
        """A document's part of a row, which lies along ``dim``, at places of this one; ``going``: of the documents that
        have a part of it."""
        axes = range(1, self.rank)
        whole = [Free(axis, size) for axis, size in zip(axes, (*dims[:dim], *dims[dim + 1 :]), strict=False)]
        own = [where for d, where in enumerate(at) if d != dim]
        same = self.slots.length == dims[dim] and self.slots.going == going
        if at[dim] == SLOT and same and own == whole and len(own) == self.rank - 1:
            return self.call(torch.movedim, node, dim, 0) if dim else node
        at = (*at[:dim], at[dim] + self.documents.begin(sympy.expand(going * dims[dim])), *at[dim + 1 :])
        return self.gathered(node, (*dims[:dim], None, *dims[dim + 1 :]), at)

    def gathered(self, node: fx.Node, dims: tuple[Any, ...], at: tuple[Any, ...]) -> fx.Node:
        """An outer tensor at places of the row."""
        if not dims:
            return self.call("reshape", node, (1,) * self.rank, method=True)
        whole = [isinstance(where, Free) and where.args[1] == size for where, size in zip(at, dims, strict=True)]
        axes = [int(where.args[0]) for where, is_whole in zip(at, whole, strict=True) if is_whole]
        rest = [d for d, is_whole in enumerate(whole) if not is_whole]
        moving = [d for d in rest if not at[d].is_Integer]
        slots = {d: self.number(at[d]) for d in moving if not at[d].has(Free)}
        along = moving and len(slots) == len(moving) and len(set(axes)) == len(axes)
        if along and all(self._is_along_slots(at[d], number) for d, number in slots.items()):
            if self.inside is None or self._is_of_slots(self.inside):
                node = self._all_within(node, slots)
                return self._rows(node, {d: slots.get(d, int(at[d]) if at[d].is_Integer else 0) for d in rest}, axes)
        index = dict(enumerate(self.tensor(where, torch.int64) for where in at))
        within = {d: index[d] for d in moving}
        node = self._all_within(node, within)
        return self.call(operator.getitem, node, tuple((index | within).values()))

    def _is_along_slots(self, where: Any, number: Any) -> bool:
        """Is a coordinate a tensor that differs from slot to slot only?"""
        return is_tensor(number) and example(number).dim() and not self._lies_along_shared(where)

    def _all_within(self, node: fx.Node, places: dict[int, fx.Node]) -> fx.Node:
        """A tensor, and ``places`` along its dimensions, so that those outside of it find zeros."""
        for d in places if self.inside is not None else ():
            if d == min(places):
                node, places[d] = self._within(node, d, places[d])
            else:
                places[d] = self.call(torch.where, self.inside, places[d], 0)
        return node

    def _within(self, node: fx.Node, dim: int, slots: fx.Node) -> tuple[fx.Node, fx.Node]:
        """A tensor and places along a dimension, with one more slot of zeros for places that are outside."""
        if self.inside is None:
            return node, slots
        fake = example(node)
        end = self.call(torch.ops.aten.sym_size.int, node, dim)
        sizes = [self.call(torch.ops.aten.sym_size.int, node, d) for d in range(fake.dim())]
        one = self.call("new_zeros", node, tuple(1 if d == dim else size for d, size in enumerate(sizes)), method=True)
        return self.call(torch.cat, (node, one), dim), self.call(torch.where, self.inside, slots, end)

    def _lies_along_shared(self, where: Any) -> bool:
        """Does a coordinate that a tensor holds differ along a dimension that documents share?"""
        looked = [self.looked[s] for s in where.free_symbols if s in self.looked]
        return not all(map(self._is_of_slots, looked))

    def _is_of_slots(self, node: fx.Node) -> bool:
        """Does a tensor of places differ from slot to slot only, not along dimensions that documents share? It may lack
        the first dimensions of the row."""
        shape = example(node).shape
        return all(statically_known_true(size == 1) for size in shape[max(len(shape) - self.rank + 1, 0) :])

    def _flat(self, slots: fx.Node) -> fx.Node:
        """Without the dimensions behind that of the slots."""
        if slots not in self._flattened:
            self._flattened[slots] = self.call("reshape", slots, (-1,), method=True)
        return self._flattened[slots]

    def _rows(self, node: fx.Node, places: dict[int, Any], axes: list[int]) -> fx.Node:
        """Some dimensions are looked up, the others are whole: ``axes`` of the row."""
        if self.rank > 1:
            places = {d: self._flat(at) if isinstance(at, fx.Node) else at for d, at in places.items()}
        kept = [d for d in range(len(axes) + len(places)) if d not in places]
        if len(places) == 1:
            ((dim, slots),) = places.items()
            out, order = self.call(torch.index_select, node, dim, slots), [dim]
        else:
            out, order = node, list(places)
        order += [kept[axes.index(axis)] for axis in sorted(axes)]
        if order != list(range(len(order))):
            out = self.call(torch.permute, out, tuple(order))
        if len(places) > 1:
            out = self.call(operator.getitem, out, tuple(places.values()))
        for axis in range(1, self.rank):
            if axis not in axes:
                out = self.call(torch.unsqueeze, out, axis)
        return out
