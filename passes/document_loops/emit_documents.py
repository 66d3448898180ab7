"""From terms with one entry per document, and those that go back to the slots, to graph nodes."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example
from passes.document_loops.integers import FULL, Affine, Bound, Condition, Reach, Share, broadcast, place
from passes.document_loops.terms import (
    ArgReduce,
    Attention,
    DocAssign,
    DocGuard,
    DocRow,
    DocVector,
    Fill,
    Outside,
    PointRead,
    Reduce,
    Scan,
    Softmax,
    Spread,
    Take,
    Term,
)
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

_ops = torch.ops.packpass


def make(emitter: Emitter, value: Any) -> fx.Node:
    """The node of one of this file's terms."""
    if isinstance(value, DocVector):
        return vector_of(emitter, value.value, value.dtype)
    if isinstance(value, DocRow):
        return _rows(emitter, value)
    if isinstance(value, PointRead):
        return _point(emitter, value)
    if isinstance(value, Reduce):
        x, cu, dim = _flattened(emitter, value.of, value.dim, value.others)
        return emitter.call(_ops.segment_reduce.default, x, cu, value.op, dim)
    if isinstance(value, ArgReduce):
        x, cu, dim = _flattened(emitter, value.of, value.dim, value.others)
        return emitter.call(_ops.segment_argmax.default, x, cu, value.largest, dim)
    if isinstance(value, Take):
        position = value.position
        at = emitter.node(position) if isinstance(position, Term) else constant(emitter, position)
        return emitter.call(_ops.segment_take.default, emitter.node(value.of), emitter.cu, at, value.dim)
    if isinstance(value, DocGuard):
        inner = emitter.node(value.of)
        one: Any = True if example(inner).dtype == torch.bool else 1
        return emitter.call(torch.where, _mask(emitter, value.reach, inner), inner, one)
    if isinstance(value, DocAssign):
        return _doc_assign(emitter, value)
    if isinstance(value, Spread):
        return _spread(emitter, value)
    if isinstance(value, Fill):
        return emitter.choose(value.window, emitter.node(value.of), value.number, value.dim)
    if isinstance(value, Scan):
        return emitter.call(_ops.segment_scan.default, emitter.node(value.of), emitter.cu, value.op, value.dim)
    if isinstance(value, Softmax):
        return emitter.call(_ops.segment_softmax.default, emitter.node(value.of), emitter.cu, value.dim, value.log)
    if isinstance(value, Attention):
        return attention(emitter, value)
    raise AssertionError(f"unknown term {value!r}")


def attention(emitter: Emitter, value: Attention) -> fx.Node:
    """Every document to itself, in one call."""
    q, k, v = (by_slots(emitter, emitter.node(t), value.rank) for t in (value.q, value.k, value.v))
    window = () if value.window == (-1, -1) else value.window
    given = (q, k, v, emitter.cu, emitter.cu, value.causal, value.scale, *window)
    return by_heads(emitter, emitter.call(_ops.varlen_attention.default, *given), value.rank)


def by_slots(emitter: Emitter, row: fx.Node, rank: int) -> fx.Node:
    """``[..., H, T, D]``, or ``[..., 1, H, T, D]`` for a ``rank`` of 4, as the op takes it: ``[..., T, H, D]``."""
    row = emitter.call(torch.select, row, -4, 0) if rank == 4 else row
    return emitter.call(torch.transpose, row, -3, -2)


def by_heads(emitter: Emitter, out: fx.Node, rank: int) -> fx.Node:
    """The other way round."""
    out = emitter.call(torch.transpose, out, -3, -2)
    return emitter.call(torch.unsqueeze, out, -4) if rank == 4 else out


def constant(emitter: Emitter, number: int) -> fx.Node:
    """int64 [N + 1], all one number."""
    return emitter.call(torch.full_like, emitter.cu, number, dtype=torch.int64)


def vector_of(emitter: Emitter, value: Affine, dtype: torch.dtype) -> fx.Node:
    """``value`` of every document: [N + 1]."""
    made = emitter.vector(value, emitter.boundaries)
    if not isinstance(made, fx.Node) or not isinstance(example(made), torch.Tensor):
        return emitter.call(torch.full_like, emitter.cu, made, dtype=dtype)
    return made if example(made).dtype == dtype else emitter.call("to", made, dtype, method=True)


def extent_of(emitter: Emitter, x: fx.Node, dim: int) -> Any:
    """The size of a tensor along ``dim`` (of either sign): a number, or a node of the graph."""
    at = dim % example(x).dim()
    size = example(x).shape[at]
    return size if isinstance(size, int) else emitter.call(torch.ops.aten.sym_size.int, x, at)


def place_of(emitter: Emitter, bound: Any, extent: Any) -> Any:
    """Where a slice of ``extent`` slots begins or ends, of every document: torch's own arithmetic of slices."""
    if not isinstance(bound, fx.Node):  # a constant
        if not isinstance(extent, fx.Node):
            return place(bound, extent)
        if isinstance(example(extent), torch.Tensor):
            if bound >= 0:
                return emitter.call(torch.clamp, extent, max=bound)
            return emitter.call(torch.clamp, emitter.call(operator.add, extent, bound), min=0)
        if bound >= 0:
            return emitter.call(torch.sym_min, extent, bound)
        return emitter.call(torch.sym_max, emitter.call(operator.add, extent, bound), 0)
    wrapped = emitter.call(operator.add, bound, extent)
    bound = emitter.call(torch.where, emitter.call(operator.lt, bound, 0), wrapped, bound)
    if isinstance(extent, fx.Node) and isinstance(example(extent), torch.Tensor):
        return emitter.call(torch.minimum, emitter.call(torch.clamp, bound, min=0), extent)
    return emitter.call(torch.clamp, bound, 0, extent)


def _broadcast_of(emitter: Emitter, one: Any, other: Any) -> fx.Node:
    """How many slots two lengths make together, of every document."""
    return emitter.call(torch.where, emitter.call(operator.eq, one, 1), other, one)


def share_of(emitter: Emitter, share: Share, numbers: fx.Node) -> fx.Node:
    """A share of a number of every document, as Python computes it, in the dtype of the numbers."""
    made = emitter.call("to", numbers, torch.float64, method=True)
    for divides, by in share.steps:
        # By a tensor: some kernels multiply by the reciprocal of a number, which is rounded.
        other: Any = emitter.call(torch.full_like, made, by) if divides else by
        made = emitter.call(torch.div if divides else torch.mul, made, other)
    made = emitter.call(getattr(torch, share.how), made)
    result: fx.Node = emitter.call("to", made, example(numbers).dtype, method=True)
    return result


OF_NUMBERS = {place: place_of, broadcast: _broadcast_of}
"""Function of numbers of a document -> what makes it of all documents' numbers."""


def summed_up(emitter: Emitter, bound: Bound) -> fx.Node:
    """Where documents begin (end) that are cut by lengths, of which the loop looks at parts."""
    if bound.of.made is not None or bound.k not in (0, 1):
        raise Refused("index-as-number", "the boundaries of another document are used as a value", bound.of.node)
    lengths = emitter.node(DocRow(bound.of.node, (), -1, 0))
    ends = emitter.call(torch.cumsum, lengths, 0)
    return ends if bound.k else emitter.call(torch.sub, ends, lengths)


def mask_between(emitter: Emitter, start: Affine, stop: Affine) -> fx.Node:
    """bool [total]: slots of documents between two numbers of theirs, counted from where they begin."""
    here = emitter.call(_ops.position_ids.default, emitter.cu, emitter.total)
    mask = emitter.mask(FULL)
    for number, compare in ((start, operator.ge), (stop, operator.lt)):
        if number != Affine():
            end = emitter.call(
                _ops.segment_spread.default, vector_of(emitter, number, torch.int64), emitter.cu, emitter.total
            )
            mask = emitter.call(torch.logical_and, mask, emitter.call(compare, here, end))
    return mask


def only_documents(emitter: Emitter, whole: fx.Node) -> fx.Node:
    """The N entries that mean something."""
    return emitter.call(torch.narrow, whole, 0, 0, emitter.documents())


def _mask(emitter: Emitter, reach: Reach, like: fx.Node) -> fx.Node:
    """bool [N + 1, 1, ...]: documents of ``reach``; not the last entry."""
    return emitter.on(emitter.along(emitter.reaches(reach), -example(like).dim()), example(like).device)


def reached_slots(emitter: Emitter, reach: Reach) -> fx.Node:
    """bool [total]: is a slot one of a document of ``reach``? What lies outside of all documents is anything."""
    ids = emitter.call(_ops.segment_ids.default, emitter.cu, emitter.total)
    entry = emitter.call(torch.clamp, ids, min=0)
    return emitter.once(reach, lambda: emitter.call(torch.index_select, emitter.reaches(reach), 0, entry))


def write_rows(emitter: Emitter, row: DocRow, new: fx.Node) -> None:
    """Write [N + 1, *shape] to the outer tensor in place."""
    target = emitter.selected(row)
    enough_rows(emitter, row, target)
    target, dim = _turned_back(target, row.dim % example(target).dim())
    values = only_documents(emitter, new)
    if dim:
        values = emitter.call(torch.movedim, values, 0, dim)
    if row.k or not statically_known_true(example(target).shape[dim] == example(values).shape[dim]):
        target = emitter.call(torch.narrow, target, dim, row.k, emitter.documents())
    emitter.call("copy_", target, values, method=True)


def _turned_back(target: fx.Node, dim: int) -> tuple[fx.Node, int]:
    """A tensor whose dimension of documents was moved to the front (`places_of_documents`), as it lies in memory:
    torch asks of a view that is turned around, and written to, whether there is one document."""
    source, *moved = target.args if target.target is torch.movedim and not dim else (target,)
    if isinstance(source, fx.Node) and len(moved) == 2 and type(moved[0]) is int and moved[1] == 0:
        return source, moved[0] % example(source).dim()
    return target, dim


def _rows(emitter: Emitter, row: DocRow) -> fx.Node:
    """The first N rows, and one of zeros for the entry that means nothing."""
    node = emitter.selected(row)
    enough_rows(emitter, row, node)
    if row.dim != -example(node).dim():
        node = emitter.call(torch.movedim, node, row.dim, 0)
    padded = emitter.call(torch.nn.functional.pad, node, [0, 0] * (example(node).dim() - 1) + [0, 1])
    return emitter.call(torch.narrow, padded, 0, row.k, emitter.call(torch.ops.aten.sym_size.int, emitter.cu, 0))


def enough_rows(emitter: Emitter, row: DocRow, node: fx.Node) -> None:
    """Eager's IndexError for a document without a row."""
    documents = example(emitter.cu).shape[0] - 1
    if statically_known_true(example(node).shape[row.dim] - row.k >= documents):
        return
    rows = emitter.call(torch.ops.aten.sym_size.int, node, row.dim % example(node).dim())
    needed = emitter.call(operator.add, emitter.documents(), row.k) if row.k else emitter.documents()
    emitter.call(torch._check, emitter.call(operator.ge, rows, needed))


def condition(emitter: Emitter, asked: Condition) -> fx.Node:
    """bool [N + 1]: which documents it holds for."""
    numbers = (asked.left, asked.right)
    sides = (emitter.vector(n, emitter.boundaries) if isinstance(n, Affine) else emitter.node(n) for n in numbers)
    made = emitter.call(getattr(operator, asked.op), *sides)
    return made if asked.holds else emitter.call(torch.logical_not, made)


def check_number(emitter: Emitter, at: fx.Node, extent: fx.Node, reach: Reach, message: str) -> fx.Node:
    """Eager's IndexError for a document whose number ``at`` names none of ``extent`` slots, counted from either end;
    bool [N + 1]: which documents' do."""
    behind = emitter.call(operator.ge, emitter.call(torch.add, at, extent), 0)
    inside = emitter.call(torch.logical_and, behind, emitter.call(operator.lt, at, extent))
    emitter.call(torch._assert_async, emitter.for_every_document(inside, reach), message)
    return inside


def slot_number(emitter: Emitter, position: Affine | Term, extent: fx.Node, reach: Reach) -> tuple[fx.Node, fx.Node]:
    """The number that names a slot of every document's row, counted from the first one of ``extent``, and for which
    documents it is one. The others raise, as in eager."""
    at = emitter.node(position) if isinstance(position, Term) else vector_of(emitter, position, torch.int64)
    at = emitter.on(at, emitter.device)
    inside = check_number(emitter, at, extent, reach, "packpass: a slot named by its number lies outside of the row")
    wrapped = emitter.call(operator.add, at, extent)
    return emitter.call(torch.where, emitter.call(operator.lt, at, 0), wrapped, at), inside


def _point(emitter: Emitter, read: PointRead) -> fx.Node:
    """Any slot of the row, as eager's index finds it: documents without slots may read a neighbour's."""
    row = emitter.node(read.row)
    extent = emitter.call(torch.ops.aten.sym_size.int, row, example(row).dim() + read.row.dim)
    _has_slots(emitter, extent)
    at, _ = slot_number(emitter, read.position, extent, read.reach)
    at = emitter.call(
        torch.clamp, emitter.on(at, example(row).device), min=0, max=emitter.call(operator.sub, extent, 1)
    )
    taken = emitter.call(torch.index_select, row, read.row.dim, at)
    return emitter.call(torch.movedim, taken, read.row.dim, 0) if read.row.dim != -example(row).dim() else taken


def _has_slots(emitter: Emitter, extent: fx.Node) -> None:
    """A row without slots is read by no document, but would be by the kernel."""
    size = example(extent)
    if statically_known_true(size == 0):
        raise Refused("no-segments", "the row of documents has no slot")
    if not statically_known_true(size > 0):
        some = emitter.call(operator.ge, extent, 1)
        emitter.call(torch.ops.aten._assert_scalar.default, some, markers.NO_SLOTS)


def _flattened(emitter: Emitter, of: Term, dim: int, others: tuple[int, ...]) -> tuple[fx.Node, fx.Node, int]:
    """``(x, boundaries, dim)`` where the dimensions ``others`` are part of the packed one, which is then the first."""
    x, cu = emitter.node(of), emitter.cu
    if not others:
        return x, cu, dim
    rank = example(x).dim()
    merged = sorted(d % rank for d in others)
    order = [dim % rank, *merged]
    order += [d for d in range(rank) if d not in order]
    width = _width(emitter, x, merged)
    if order != list(range(rank)):
        x = emitter.call("permute", x, order, method=True)
    x = emitter.call(torch.flatten, x, 0, len(merged))
    return x, emitter.call(operator.mul, cu, width) if isinstance(width, fx.Node) or width != 1 else cu, 0


def _width(emitter: Emitter, x: fx.Node, dims: list[int]) -> Any:
    """How many entries a slot has along these dimensions; sizes may be symbols."""
    sizes = {d: example(x).shape[d] for d in dims}
    width: Any = math.prod(size for size in sizes.values() if isinstance(size, int))
    for d, size in sizes.items():
        if not isinstance(size, int):
            width = emitter.call(operator.mul, emitter.call(torch.ops.aten.sym_size.int, x, d), width)
    return width


def _spread(emitter: Emitter, value: Spread) -> fx.Node:
    """[N + 1, *shape] -> the packed row that a document's [*shape] broadcasts to (sizes of 1 where it has none)."""
    x, behind = emitter.node(value.of), -value.dim - 1
    if value.rank > behind:
        x = emitter.call(torch.squeeze, x, value.rank + value.dim + 1)
    if example(x).dtype == torch.bool:  # what a slot without a document gets is never seen
        x = emitter.call("to", x, torch.uint8, method=True)
        out = emitter.call(_ops.segment_spread.default, x, emitter.cu, emitter.total)
        out = emitter.call("to", out, torch.bool, method=True)
    else:
        out = emitter.call(_ops.segment_spread.default, x, emitter.cu, emitter.total)
    rank = example(out).dim() - 1
    if rank > behind:
        return emitter.call(torch.movedim, out, 0, rank - behind)
    for _ in range(behind - rank):
        out = emitter.call(torch.unsqueeze, out, 1)
    return out


def lined_up(emitter: Emitter, value: Term | Outside, base: fx.Node, rank: int) -> fx.Node:
    """What is assigned to (a part of ``rank`` of) a value of every document, in its dtype; that of a document against
    the last dimensions, as eager has it."""
    node, like = emitter.node(value), example(base)
    if example(node).dtype != like.dtype or example(node).device != like.device:
        node = emitter.call("to", node, device=like.device, dtype=like.dtype, method=True)
    if isinstance(value, Term):
        for _ in range(rank - example(node).dim()):
            node = emitter.call(torch.unsqueeze, node, 1)
    return node


def _doc_assign(emitter: Emitter, value: DocAssign) -> fx.Node:
    """``row[...] = value`` for every document, in the row's dtype and shape."""
    base = emitter.node(value.base)
    like = example(base)
    new: Any = value.value
    if isinstance(new, (Term, Outside)):
        node = lined_up(emitter, new, base, like.dim())
        if tuple(example(node).shape) != tuple(like.shape):
            node = emitter.call("expand_as", node, base, method=True)
        new = node
    else:
        new = emitter.call(torch.full_like, base, new)
    return emitter.call(torch.where, _mask(emitter, value.reach, base), new, base) if value.reach else new
