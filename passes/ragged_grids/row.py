"""From terms to nodes: what all documents append, one behind the other, as operations on one row of slots."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example, is_tensor
from packpass.semantics.build import fills
from packpass.semantics.reductions import PLACED, SCANS
from passes.ragged_grids import looked
from passes.ragged_grids.documents import Documents
from passes.ragged_grids.places import ALL, Places, Slots, slots_of
from passes.ragged_grids.sizes import SLOT, Coordinate, Free, below, placed
from passes.ragged_grids.terms import (
    OWN_ROWS,
    Applied,
    Chosen,
    Count,
    Filled,
    Index,
    Input,
    Kept,
    Layer,
    Moved,
    Number,
    Numbers,
    Padded,
    Piece,
    Pooled,
    Product,
    Read,
    Reduced,
    Scanned,
    Selected,
    Term,
    Value,
)
from passes.refused import Refused

_ops = torch.ops.packpass


class KeptSlots(Slots):
    """Those slots of documents at which a condition holds."""

    def __init__(self, documents: Documents, name: Any, mask: Term) -> None:
        call = documents.call
        every = Slots(documents, mask.dims[0])
        self.every, self.row = every, Row(documents, every, mask, 0)
        sums = documents.ends(self.row.made())
        self._number(documents, name, ALL, call(torch.index_select, sums, 0, every.cu))
        self.places = call(_ops.segment_ids.default, sums, self.total)
        """Their numbers among the slots of all documents."""
        self.before = call(torch.index_select, every.numbers, 0, self.places)
        """The number of the slot among all of its document's."""
        documents.note(name, call(torch.diff, self.cu))


class Row(Places):
    """One tensor per document, concatenated along ``dim``."""

    def __init__(self, documents: Documents, slots: Slots, term: Term, dim: int, rank: int | None = None) -> None:
        """``rank``: dimensions of the row, if it has more than ``term``."""
        super().__init__(documents, slots, len(term.dims) if rank is None else rank)
        self.term, self.dim = term, dim
        self._nodes: dict[Any, fx.Node] = {}

    def made(self) -> fx.Node:
        """The whole row, as eager lays it out."""
        if isinstance(self.term, Selected):
            return _selected(self.documents, self.slots, self.term, self.dim)
        shared = iter(range(1, self.rank))
        at = [SLOT if d == self.dim else Free(next(shared), size) for d, size in enumerate(self.term.dims)]
        out = self.node(self.term, tuple(at))
        rest = [self.documents.vector(size) for d, size in enumerate(self.term.dims) if d != self.dim]
        sizes = (self.slots.total, *rest)
        have = example(out).shape
        known = [example(size) if isinstance(size, fx.Node) else size for size in sizes]
        whole = len(have) == len(known) and all(map(statically_known_true, map(operator.eq, have, known)))
        if not whole:  # it is the same for all slots, or along a dimension that documents share
            out = self.call("expand", out, sizes, method=True)
        if self.dim:
            out = self.call(torch.movedim, out, 0, self.dim)
        as_it_is = whole and not self.dim and fills(example(out), tuple(range(self.rank)))
        return out if as_it_is else self.call(torch.clone, out, memory_format=torch.contiguous_format)

    def node(self, term: Term, at: tuple[Any, ...]) -> fx.Node:
        """A term at places of the row, made once."""
        key = (term, at, self.inside)
        if key not in self._nodes:
            made = self._made(term, at)
            if example(made).dtype != term.dtype:
                raise Refused(
                    "emit", f"the whole-row form has dtype {example(made).dtype} instead of {term.dtype}", made
                )
            self._nodes[key] = made
        return self._nodes[key]

    def _made(self, term: Term, at: tuple[Any, ...]) -> fx.Node:
        if isinstance(term, Moved):
            return self.read(term.read, term.dims, at)
        if isinstance(term, (Number, Filled)):
            return self.tensor(term.value, term.dtype)
        if isinstance(term, Numbers):
            return self.tensor(sympy.expand(placed(term.value, term.dims, at)), term.dtype)
        if isinstance(term, Count):
            return self.tensor(sympy.expand(term.start + term.step * at[0]), term.dtype)
        if isinstance(term, Input):
            return self.gathered(term.node, term.dims, at)
        if isinstance(term, Piece):
            return self.of_row(term.node, term.dims, term.dim, at)
        if isinstance(term, OWN_ROWS):
            going = self.slots.going
            return self.of_row(in_one_row(self.documents, term, going), term.dims, 0, at, going)
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
        if not isinstance(term, Applied):
            raise Refused("no-rule", "what a branch leaves is not used as it is")
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
            found = looked.place(self, where.read, dims, at)
            if found is not None and below(found, size):
                places.append(found)
                continue
            index = self.read(where.read, dims, at)
            if example(index).dtype != torch.int64:
                index = self.call("to", index, torch.int64, method=True)
            if not isinstance(read.of, Input):  # torch looks at the places of a tensor from outside itself
                self._check_index(index, size, where.wraps)
            if where.wraps:
                behind = self.call(operator.add, index, self.number(size))
                index = self.call(torch.where, self.call(operator.lt, index, 0), behind, index)
            name = sympy.Symbol(f"at_{index.name}", integer=True)
            self.looked[name] = index
            places.append(name)
        return self.node(read.of, tuple(places))

    def _check_index(self, index: fx.Node, size: Any, wraps: bool) -> None:
        """Eager's error for a place that lies outside of its document, where in the row there are others."""
        extent = self.number(size)
        least = self.call(operator.mul, extent, -1) if wraps else 0
        fits = [self.call(operator.ge, index, least), self.call(operator.lt, index, extent)]
        holds = self.call(torch.logical_and, *fits)
        if self.inside is not None:
            holds = self.call(torch.logical_or, holds, self.call(torch.logical_not, self.inside))
        message = "packpass: an index is out of bounds for a tensor of its document"
        self.call(torch._assert_async, self.call(torch.all, holds), message)

    def _kept(self, term: Kept, at: tuple[Any, ...]) -> fx.Node:
        if at[0] != SLOT or not isinstance(self.slots, KeptSlots) or self.slots.length != term.dims[0]:
            raise Refused("no-rule", "slots that were selected are not used in their order")
        if self.rank == 1 and not term.grad and not term.dtype.is_floating_point:
            return self._kept_numbers(term, self.slots)
        name = sympy.Symbol(f"before_{self.slots.length}", integer=True)
        self.looked[name] = self.behind(self.slots.before)
        return self.read(term.read, (term.read.of.dims[0], *term.dims[1:]), (name, *at[1:]))

    def _kept_numbers(self, term: Kept, slots: KeptSlots) -> fx.Node:
        """Integers are worked out for all slots, as the condition needs them mostly, and then picked."""
        made = slots.row.read(term.read, (term.read.of.dims[0],), (SLOT,))
        made = self.call("expand", made, (slots.every.total,), method=True)
        return self.call(torch.index_select, made, 0, slots.places)

    def _reduced(self, term: Reduced, at: tuple[Any, ...]) -> fx.Node:
        inner = Row(self.documents, self.slots, term.read.of, 0, self.rank + len(term.over))
        for name, node in self.looked.items():
            for _ in term.over:
                node = self.call(torch.unsqueeze, node, -1)
            inner.looked[name] = node
        inner.inside = self.inside
        for _ in term.over:
            inner.inside = None if inner.inside is None else self.call(torch.unsqueeze, inner.inside, -1)
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
        where = at[term.dim]
        ends = [self._before(where, end) for end in term.ends[:-1]]
        outside = [None if end is None or isinstance(end, bool) else self.call(torch.logical_not, end) for end in ends]
        out = None
        for i in reversed(range(len(term.parts))):
            end = ends[i] if i < len(ends) else None
            if end is False or (i and ends[i - 1] is True):
                continue
            inside = [limit for limit in (end, outside[i - 1] if i else None) if isinstance(limit, fx.Node)]
            part = self._read_inside(inside, term.parts[i], term.dims, at)
            out = part if out is None else self.call(torch.where, end, part, out)
        assert out is not None
        return out

    def _before(self, where: Any, end: Any) -> Any:
        """Is a place in front of the end of a part? Known, or a tensor."""
        if where.is_Integer and end.is_Integer:
            return bool(where < end)
        return self.call(operator.lt, self.tensor(where, torch.int64), self.number(end))

    def _read_inside(self, inside: list[fx.Node], read: Read, dims: tuple[Any, ...], at: tuple[Any, ...]) -> fx.Node:
        """The same, where only some places are within the tensor that is read; elsewhere anything that is allowed."""
        outer = self.inside
        for fits in inside:
            self.inside = fits if self.inside is None else self.call(torch.logical_and, self.inside, fits)
        try:
            return self.read(read, dims, at)
        finally:
            self.inside = outer

    def _padded(self, term: Padded, at: tuple[Any, ...]) -> fx.Node:
        inside = None
        for where, size in term.within:
            place = self.tensor(placed(where, term.dims, at), torch.int64)
            fits = self.call(operator.lt, place, self.number(size))
            if not isinstance(where, Coordinate):
                fits = self.call(torch.logical_and, self.call(operator.ge, place, 0), fits)
            inside = fits if inside is None else self.call(torch.logical_and, inside, fits)
        assert inside is not None
        out = self._read_inside([inside], term.read, term.dims, at)
        if isinstance(term.fill, Read):
            return self.call(torch.where, inside, out, self.read(term.fill, term.dims, at))
        fill = self.call(torch.full, (1,) * self.rank, term.fill, dtype=term.dtype, device=self.documents.device)
        return self.call(torch.where, inside, out, fill)


def _selected(documents: Documents, slots: Slots, term: Selected, dim: int) -> fx.Node:
    """The rows of the documents of each way, and each document's slots out of the one that has them."""
    call, rows, start, front = documents.call, [], None, None
    for part, going in zip(term.parts, term.names, strict=True):
        own = slots_of(documents, part.of.dims[dim], going)
        rows.append(Row(documents, own, part.of, dim).made())
        begins = call(operator.getitem, own.cu, slice(0, -1))
        if start is None:
            start = begins
        else:
            begins = call(torch.add, begins, front)
            start = call(torch.where, call(operator.eq, documents.full(going), 1), begins, start)
        size = call(torch.ops.aten.sym_size.int, rows[-1], dim)
        front = size if front is None else call(operator.add, front, size)
    places = call(torch.add, call(torch.index_select, start, 0, slots.ids), slots.numbers)
    return call(torch.index_select, call(torch.cat, tuple(rows), dim), dim, places)


def in_one_row(documents: Documents, term: Layer | Pooled | Product, going: Any) -> fx.Node:
    """The row of the slots that such a term holds, of those documents that are ``going``, made once for all who read
    it."""
    if (term, going) not in documents.layers:
        make: Any = {Layer: _layer, Pooled: _pooled, Product: _product}[type(term)]
        documents.layers[term, going] = make(documents, term, going)
    return documents.layers[term, going]


def _layer(documents: Documents, term: Layer, going: Any) -> fx.Node:
    slots = slots_of(documents, term.dims[0], going)

    def argument(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(argument(part) for part in value)
        return _operand(documents, slots, term, value.of) if isinstance(value, Read) else value

    args, kwargs = argument(term.args), dict(argument(term.kwargs))
    if term.target is None:
        out = documents.call("contiguous", *args, method=True)
    else:
        out = documents.call(term.target, *args, method=term.method, **kwargs)
    return documents.call(torch.flatten, out, 0, term.rank - 1) if term.rank > 1 else out


def _pooled(documents: Documents, term: Pooled, going: Any) -> fx.Node:
    """Groups of slots are documents of their own. Halves are put together as float32, as torch does."""
    call, of = documents.call, term.read.of
    row = Row(documents, slots_of(documents, of.dims[0], going), of, 0).made()
    groups = slots_of(documents, term.count, going)
    size = documents.vector(term.size)
    if is_tensor(size):
        size = call(torch.index_select, size, 0, groups.ids)
        cu = documents.ends(size)
    else:
        cu = documents.multiples(size, groups.total)
    exact = torch.float32 if of.dtype.is_floating_point and of.dtype.itemsize == 2 else of.dtype
    row = row if exact == of.dtype else call("to", row, exact, method=True)
    if term.op in ("softmax", "log_softmax"):
        out = call(_ops.segment_softmax.default, row, cu, 0, term.op == "log_softmax")
    elif term.op in SCANS:
        out = call(_ops.segment_scan.default, row, cu, SCANS[term.op], 0)
    else:
        out = _of_groups(documents, term.op, row, cu)
    if term.op == "mean":
        for _ in term.dims[1:] if is_tensor(size) else ():
            size = call(torch.unsqueeze, size, -1)
        out = call(torch.div, out, size)
    return out if example(out).dtype == term.dtype else call("to", out, term.dtype, method=True)


def _of_groups(documents: Documents, op: str, row: fx.Node, cu: fx.Node) -> fx.Node:
    """One entry per group of slots."""
    call = documents.call
    if op == "logsumexp":
        return _log_of_powers(documents, row, cu)
    if op in PLACED:
        out = call(_ops.segment_argmax.default, row, cu, op.endswith("max"), 0)
        if not op.startswith("arg"):
            out = call(_ops.segment_take.default, row, cu, out, 0)
    else:
        out = call(_ops.segment_reduce.default, row, cu, "sum" if op == "mean" else op, 0)
    return call(operator.getitem, out, slice(0, -1))  # the entry of what is behind all documents


def _log_of_powers(documents: Documents, row: fx.Node, cu: fx.Node) -> fx.Node:
    """Of the powers of what is at most 0: the largest slot of a group is taken from all of them before."""
    call = documents.call
    highest = call("detach", call(_ops.segment_reduce.default, row, cu, "amax", 0), method=True)
    highest = call(torch.where, call(torch.isfinite, highest), highest, 0.0)
    slots = call(torch.ops.aten.sym_size.int, row, 0)
    powers = call(torch.exp, call(torch.sub, row, call(_ops.segment_spread.default, highest, cu, slots)))
    total = call(_ops.segment_reduce.default, powers, cu, "sum", 0)
    return call(operator.getitem, call(torch.add, call(torch.log, total), highest), slice(0, -1))


def _product(documents: Documents, term: Product, going: Any) -> fx.Node:
    call, rows = documents.call, []
    for of in (term.left.of, term.right.of):
        row = Row(documents, slots_of(documents, of.dims[0], going), of, 0).made()
        rows.append(call("flatten", row, method=True) if len(of.dims) > 1 else row)
    batch, *rest = (documents.full(size) for size in (sympy.expand(going * term.sizes[0]), *term.sizes[1:]))
    sizes = call(torch.stack, (batch, *rest), 1)
    count: Any = slots_of(documents, term.dims[0], going).total
    width = documents.vector(term.dims[1]) if len(term.dims) > 1 else 1
    total = count if width == 1 else call(operator.mul, count, width)
    if term.p is None:
        out = call(_ops.segment_matmul.default, *rows, sizes, total, False, term.turned)
    else:
        out = call(_ops.segment_cdist.default, *rows, sizes, total, term.p)
    return call("reshape", out, (count, width), method=True) if len(term.dims) > 1 else out


def _operand(documents: Documents, slots: Slots, term: Layer, of: Term) -> fx.Node:
    """What a layer reads: the row of slots, with as many dimensions as the program's tensor, or a tensor that all
    documents share."""
    if isinstance(of, Input):
        return of.node
    if of is not term.operand:
        row = Row(documents, slots, of, 0, len(of.dims) + 1)
        made = row.node(of, tuple(Free(d + 1, size) for d, size in enumerate(of.dims)))
        sizes = [documents.vector(size) for size in of.dims]
        return documents.call(torch.squeeze, documents.call("expand", made, (1, *sizes), method=True), 0)
    made = Row(documents, slots, of, 0).made()
    for _ in range(term.rank - 1):
        made = documents.call(torch.unsqueeze, made, 1)
    return made
