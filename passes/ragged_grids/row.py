"""From terms to nodes: what all documents append, one behind the other, as operations on one row of slots.

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
from packpass.semantics import example
from passes.ragged_grids.documents import DIVISIONS, OPERATORS, Documents
from passes.ragged_grids.sizes import SLOT, Free, placed
from passes.ragged_grids.terms import (
    Applied,
    Chosen,
    Count,
    Filled,
    Index,
    Input,
    Kept,
    Moved,
    Number,
    Padded,
    Piece,
    Read,
    Reduced,
    Scanned,
    Term,
    Value,
)
from passes.refused import Refused

_ops = torch.ops.packpass


class Slots:
    """The slots of documents of given lengths, one behind the other; shared by all lists of such lengths."""

    def __init__(self, documents: Documents, length: Any) -> None:
        call = documents.call
        self.length = length
        sums = call(torch.cumsum, documents.full(length), 0)
        self.cu = call(torch.cat, (call("new_zeros", sums, (1,), method=True), sums))
        self.total = call(_ops.covered_length.default, self.cu)
        self.ids = call(_ops.segment_ids.default, self.cu, self.total)
        self.numbers = call(_ops.position_ids.default, self.cu, self.total)


class KeptSlots(Slots):
    """Those slots of documents at which a condition holds."""

    def __init__(self, documents: Documents, name: Any, mask: Term) -> None:
        call = documents.call
        every = Slots(documents, mask.dims[0])
        sums = call(torch.cumsum, Row(documents, every, mask, 0).made(), 0)
        sums = call(torch.cat, (call("new_zeros", sums, (1,), method=True), sums))
        self.length = name
        self.cu = call(torch.index_select, sums, 0, every.cu)
        self.total = call(_ops.covered_length.default, self.cu)
        wanted = call(torch.arange, self.total, device=documents.device)
        places = call(torch.searchsorted, sums, wanted, right=True)
        places = call(torch.sub, places, 1)
        self.ids = call(torch.index_select, every.ids, 0, places)
        self.numbers = call(torch.sub, wanted, call(torch.index_select, self.cu, 0, self.ids))
        self.before = call(torch.index_select, every.numbers, 0, places)
        """The number of the slot among all of its document's."""
        documents.note(name, call(torch.diff, self.cu))


class Row:
    """One tensor per document, concatenated along ``dim``."""

    def __init__(self, documents: Documents, slots: Slots, term: Term, dim: int, rank: int | None = None) -> None:
        """``rank``: dimensions of the row, if it has more than ``term``."""
        self.documents, self.slots, self.term, self.dim = documents, slots, term, dim
        self.call, self.rank = documents.call, len(term.dims) if rank is None else rank
        self._numbers: dict[Any, Any] = {}
        self._nodes: dict[Any, fx.Node] = {}
        self._looked: dict[Any, fx.Node] = {}
        """Coordinates that tensors of integers hold."""

    def made(self) -> fx.Node:
        """The whole row, as eager lays it out."""
        shared = iter(range(1, self.rank))
        at = [SLOT if d == self.dim else Free(next(shared), size) for d, size in enumerate(self.term.dims)]
        out = self.node(self.term, tuple(at))
        rest = [self.documents.vector(size) for d, size in enumerate(self.term.dims) if d != self.dim]
        sizes = (self.slots.total, *rest)
        same = [
            statically_known_true(have == (example(want) if isinstance(want, fx.Node) else want))
            for have, want in zip(example(out).shape, sizes, strict=True)
        ]
        if not all(same):
            out = self.call("expand", out, sizes, method=True)
        if self.dim:
            out = self.call(torch.movedim, out, 0, self.dim)
        return out if all(same) and not self.dim else self.call(torch.clone, out, memory_format=torch.contiguous_format)

    # --- numbers --------------------------------------------------------------------------------------------

    def _varies(self, found: Any) -> bool:
        """Does an expression differ from slot to slot of one document?"""
        return bool(found.has(Free) or found.free_symbols & {SLOT, *self._looked})

    def number(self, found: Any) -> Any:
        """An expression as a tensor that broadcasts to the row, or an int that all slots share."""
        if found not in self._numbers:
            self._numbers[found] = self._number(found)
        return self._numbers[found]

    def _number(self, found: Any) -> Any:
        if not self._varies(found):
            vector = self.documents.vector(found)
            return (
                self._behind(self.call(torch.index_select, vector, 0, self.slots.ids)) if is_tensor(vector) else vector
            )
        if found == SLOT:
            return self._behind(self.slots.numbers)
        if found in self._looked:
            return self._looked[found]
        if isinstance(found, Free):
            axis, size = int(found.args[0]), self.documents.vector(found.args[1])
            places = self.call(torch.arange, size, device=self.documents.device)
            for _ in range(self.rank - 1 - axis):
                places = self.call(torch.unsqueeze, places, -1)
            return places
        if found.func in DIVISIONS:
            return self.documents.divided(found.func, *(self.number(part) for part in found.args))
        if found.func not in (sympy.Add, sympy.Mul):
            raise Refused("no-rule", f"a coordinate that is {found.func.__name__} of others")
        own = [part for part in found.args if self._varies(part)]
        rest = found.func(*(part for part in found.args if not self._varies(part)))
        parts = [self.number(part) for part in own] + ([] if rest == found.func.identity else [self.number(rest)])
        return self.documents.folded(OPERATORS[found.func], parts)

    def _behind(self, slots: fx.Node) -> fx.Node:
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

    # --- terms ----------------------------------------------------------------------------------------------

    def node(self, term: Term, at: tuple[Any, ...]) -> fx.Node:
        """A term at places of the row, made once."""
        if (term, at) not in self._nodes:
            made = self._made(term, at)
            if example(made).dtype != term.dtype:
                raise Refused(
                    "emit", f"the whole-row form has dtype {example(made).dtype} instead of {term.dtype}", made
                )
            self._nodes[term, at] = made
        return self._nodes[term, at]

    def _made(self, term: Term, at: tuple[Any, ...]) -> fx.Node:
        if isinstance(term, Moved):
            return self.read(term.read, term.dims, at)
        if isinstance(term, (Number, Filled)):
            return self.tensor(term.value, term.dtype)
        if isinstance(term, Count):
            return self.tensor(sympy.expand(term.start + term.step * at[0]), term.dtype)
        if isinstance(term, Input):
            return self._gathered(term.node, term.dims, at)
        if isinstance(term, Piece):
            begin = self.documents.begin(term.length)
            at = (*at[: term.dim], at[term.dim] + begin, *at[term.dim + 1 :])
            return self._gathered(term.node, (*term.dims[: term.dim], None, *term.dims[term.dim + 1 :]), at)
        if isinstance(term, Kept):
            return self._kept(term, at)
        if isinstance(term, Reduced):
            return self._reduced(term, at)
        if isinstance(term, Scanned):
            return self._scanned(term, at)
        if isinstance(term, Chosen):
            return self._chosen(term, at)
        if isinstance(term, Padded):
            return self._padded(term, at)
        assert isinstance(term, Applied)
        args, kwargs = (self._arguments(part, term, at) for part in (term.args, term.kwargs))
        return self.call(term.target, *args, method=term.method, **dict(kwargs))

    def _arguments(self, value: Any, term: Term, at: tuple[Any, ...]) -> Any:
        if isinstance(value, tuple):
            return tuple(self._arguments(v, term, at) for v in value)
        if isinstance(value, Read):
            return self.read(value, term.dims, at)
        if isinstance(value, Value):
            number = self.number(placed(value.value, term.dims, at))
            return self.tensor(value.value, value.dtype) if is_tensor(number) else number
        return value

    def read(self, read: Read, dims: tuple[Any, ...], at: tuple[Any, ...]) -> fx.Node:
        """What ``read`` says for the places ``at`` of a tensor with ``dims``."""
        places = []
        for where, size in zip(read.at, read.of.dims, strict=True):
            if not isinstance(where, Index):
                places.append(placed(where, dims, at))
                continue
            index = self.read(where.read, dims, at)
            if example(index).dtype != torch.int64:
                index = self.call("to", index, torch.int64, method=True)
            if where.wraps:
                behind = self.call(operator.add, index, self.number(size))
                index = self.call(torch.where, self.call(operator.lt, index, 0), behind, index)
            name = sympy.Symbol(f"at_{index.name}", integer=True)
            self._looked[name] = index
            places.append(name)
        return self.node(read.of, tuple(places))

    def _kept(self, term: Kept, at: tuple[Any, ...]) -> fx.Node:
        if at[0] != SLOT or not isinstance(self.slots, KeptSlots) or self.slots.length != term.dims[0]:
            raise Refused("no-rule", "slots that were selected are not used in their order")
        name = sympy.Symbol(f"before_{self.slots.length}", integer=True)
        self._looked[name] = self._behind(self.slots.before)
        return self.read(term.read, (term.read.of.dims[0], *term.dims[1:]), (name, *at[1:]))

    def _reduced(self, term: Reduced, at: tuple[Any, ...]) -> fx.Node:
        inner = Row(self.documents, self.slots, term.read.of, 0, self.rank + len(term.over))
        for name, node in self._looked.items():
            for _ in term.over:
                node = self.call(torch.unsqueeze, node, -1)
            inner._looked[name] = node
        gone = [Free(self.rank + i, size) for i, size in enumerate(term.over)]
        made = inner.read(term.read, (*term.dims, *term.over), (*at, *gone))
        sizes = [self.documents.vector(size) for size in term.over]
        made = self.call("expand", made, (*[-1] * self.rank, *sizes), method=True)
        made = self.call(torch.flatten, made, self.rank)
        return self.call(getattr(torch, term.op), made, -1)

    def _scanned(self, term: Scanned, at: tuple[Any, ...]) -> fx.Node:
        if at != (SLOT,) or self.slots.length != term.dims[0]:
            raise Refused("no-rule", "running sums of a document are not used in their order")
        made = self.call("expand", self.read(term.read, term.dims, at), (self.slots.total,), method=True)
        sums = self.call(torch.cumsum, made, 0)
        before = self.call(torch.cat, (self.call("new_zeros", sums, (1,), method=True), sums))
        starts = self.call(torch.index_select, before, 0, self.slots.cu)
        return self.call(torch.sub, sums, self.call(torch.index_select, starts, 0, self.slots.ids))

    def _chosen(self, term: Chosen, at: tuple[Any, ...]) -> fx.Node:
        last, *others = reversed(term.parts)
        out = self.read(last, term.dims, at)
        where = at[term.dim]
        for part, end in zip(others, reversed(term.ends[:-1]), strict=True):
            if where.is_Integer and end.is_Integer:
                out = self.read(part, term.dims, at) if where < end else out
                continue
            before = self.call(operator.lt, self.tensor(where, torch.int64), self.number(end))
            out = self.call(torch.where, before, self.read(part, term.dims, at), out)
        return out

    def _padded(self, term: Padded, at: tuple[Any, ...]) -> fx.Node:
        inside = None
        for where, size in term.within:
            place = self.tensor(placed(where, term.dims, at), torch.int64)
            fits = self.call(
                torch.logical_and, self.call(operator.ge, place, 0), self.call(operator.lt, place, self.number(size))
            )
            inside = fits if inside is None else self.call(torch.logical_and, inside, fits)
        out = self.read(term.read, term.dims, at)
        fill = self.call(torch.full, (1,) * self.rank, term.fill, dtype=term.dtype, device=self.documents.device)
        return self.call(torch.where, inside, out, fill)

    # --- memory ---------------------------------------------------------------------------------------------

    def _gathered(self, node: fx.Node, dims: tuple[Any, ...], at: tuple[Any, ...]) -> fx.Node:
        """An outer tensor at places of the row."""
        if not dims:
            return self.call("reshape", node, (1,) * self.rank, method=True)
        whole = [isinstance(where, Free) and where.args[1] == size for where, size in zip(at, dims, strict=True)]
        axes = [int(where.args[0]) for where, is_whole in zip(at, whole, strict=True) if is_whole]
        rest = [d for d, is_whole in enumerate(whole) if not is_whole]
        if len(rest) == 1 and len(set(axes)) == len(axes) and not at[rest[0]].has(Free):
            slots = self.number(at[rest[0]])
            if is_tensor(slots) and example(slots).dim() and not self._lies_along_shared(at[rest[0]]):
                return self._rows(node, rest[0], slots, axes)
        index = tuple(self.tensor(where, torch.int64) for where in at)
        return self.call(operator.getitem, node, index)

    def _lies_along_shared(self, where: Any) -> bool:
        """Does a coordinate that a tensor holds differ along a dimension that documents share?"""
        looked = [self._looked[s] for s in where.free_symbols if s in self._looked]
        return any(not statically_known_true(size == 1) for n in looked for size in example(n).shape[1:])

    def _rows(self, node: fx.Node, dim: int, slots: fx.Node, axes: list[int]) -> fx.Node:
        """One dimension is looked up, the others are whole: ``axes`` of the row."""
        if self.rank > 1:
            slots = self.call("reshape", slots, (-1,), method=True)
        out = self.call(torch.index_select, node, dim, slots)
        order = [0] * (len(axes) + 1)
        kept = [d for d in range(len(axes) + 1) if d != dim]
        for place, axis in enumerate(sorted(axes), 1):
            order[place] = kept[axes.index(axis)]
        order[0] = dim
        if order != list(range(len(order))):
            out = self.call(torch.permute, out, tuple(order))
        for axis in range(1, self.rank):
            if axis not in axes:
                out = self.call(torch.unsqueeze, out, axis)
        return out


def is_tensor(value: Any) -> bool:
    """Is it a node with a tensor, and not a number?"""
    return isinstance(value, fx.Node) and isinstance(example(value), torch.Tensor)
