"""Attention with a mask of squares becomes attention within documents, and the mask goes.

::

    for s, e in spans:
        mask[..., s:e, s:e] = True                           # a dense mask, [T, T]: `blocks`
    y = scaled_dot_product_attention(q, k, v, attn_mask=mask)

    y = varlen_attention(q, k, v, cu_seqlens)                # after

What is done to the mask on its way (casts, triangles, other masks) is done to two bands (`pairs.Band`), one for slots
of one document and one for all others. The second must hide everything, and the first show a window of keys. A slot of
no document sees nothing, which makes 0; with a mask that hides by the lowest number there is, it sees all slots
alike.

Does not handle: masks that tell heads or rows apart, dropout, masks that are changed later, other numbers for slots
that are hidden than -inf and the lowest ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass.ops._varlen_attention_gpu import takes
from packpass.semantics import call_of, contents_of, example
from packpass.semantics.bound_mixers import Attention, attention_of
from packpass.semantics.build import Builder, NotBuilt, laid_out, memory_order
from packpass.semantics.call import invoke
from packpass.semantics.effects import mutated_after
from packpass.semantics.meaning import Uniform
from packpass.semantics.names import is_in_place
from packpass.semantics.pointwise import COPIES, is_pointwise
from packpass.semantics.views import EXPANDING, PERMUTING, permutation_of
from passes.document_loops.pairs import Band, Visible, constant, visible
from passes.prune import prune
from passes.refused import Refused

_ops = torch.ops.packpass
_LOWEST = -1e30
"""What is added to a score in order that nothing of the score is left."""


@dataclasses.dataclass(frozen=True)
class Cells:
    """What a mask holds for two slots of one document, and for two others; in its last two dimensions."""

    inside: Band
    outside: Band

    def turned(self) -> Cells:
        return Cells(self.inside.turned(), self.outside.turned())


@dataclasses.dataclass(frozen=True)
class Squares:
    """A mask that a loop has written, and the boundaries that it is made of."""

    mask: fx.Node
    cells: Cells
    cu: fx.Node
    documents: fx.Node
    """bool [T]: slots of documents."""
    rule: str


def attend_within_documents(graph: fx.Graph, squares: Squares) -> int:
    """Replace attentions with that mask; how many there were."""
    reading, found = _Reading(graph, squares), 0
    order = {node: i for i, node in enumerate(graph.nodes)}
    used: list[fx.Node] = []
    for node in list(graph.nodes):
        parts = attention_of(node) if order[node] > order[squares.mask] else None
        if parts is None or parts.mask is None:
            continue
        seen = reading.seen(node, parts)
        if seen is not None and _replace(graph, squares, node, parts, *seen):
            used.append(parts.mask)
            found += 1
    prune(graph, used)
    return found


class _Reading:
    """What the masks of a graph hold, as far as they are made of one mask of squares."""

    def __init__(self, graph: fx.Graph, squares: Squares) -> None:
        self.graph, self.squares = graph, squares
        self.known: dict[fx.Node, Cells | None] = {squares.mask: squares.cells}
        self.size = example(squares.mask).shape[-1]

    def seen(self, node: fx.Node, parts: Attention) -> tuple[Visible, bool] | None:
        """What a query sees of its document, and whether slots of no document see all slots alike."""
        assert parts.mask is not None
        cells = self.cells(parts.mask)
        if cells is None or self._changed(parts.mask, node):
            return None
        inside, outside = cells.inside.values, cells.outside.values
        alike = False
        if outside.dtype is torch.bool:
            hidden, inside = not bool(outside.any()), torch.zeros(inside.shape).masked_fill(~inside, -torch.inf)
        else:
            hidden = bool((outside <= _LOWEST).all())
            alike = not bool((outside == -torch.inf).all())
            if alike and not bool((outside == outside[0]).all()):
                return None
        try:
            return (visible(Band(inside.double()), True, node), alike) if hidden else None
        except Refused:
            return None

    def cells(self, node: fx.Node) -> Cells | None:
        if node not in self.known:
            self.known[node] = None  # also while it is looked at
            self.known[node] = self._read(node)
        return self.known[node]

    def _changed(self, node: fx.Node, until: fx.Node) -> bool:
        """Is the memory of a mask, or of what it is made of, written before it is used?"""
        stack, seen = [node], {node}
        while stack:
            at = stack.pop()
            if mutated_after(self.graph, at, at.next, until):
                return True
            for n in at.all_input_nodes if at is not self.squares.mask else ():
                if n not in seen and self.known.get(n) is not None:
                    seen.add(n)
                    stack.append(n)
        return False

    def _square(self, fake: Any) -> bool:
        """Are the last two dimensions the rows and columns of the mask, or of one slot for all?"""
        sizes = fake.shape[-2:]
        whole = all(statically_known_true(size == self.size) for size in sizes)
        return fake.dim() >= 2 and whole

    def _read(self, node: fx.Node) -> Cells | None:
        call, fake = call_of(node), example(node)
        if call is None or not isinstance(fake, torch.Tensor) or is_in_place(call.name) or not self._square(fake):
            return None
        contents = contents_of(node)
        if isinstance(contents, Uniform) and isinstance(contents.value, (bool, int, float)):
            band = constant(contents.value, fake.dtype)
            return Cells(band, band)
        first = self.cells(call.operands[0].node) if call.operands else None
        if call.op in PERMUTING:
            return self._moved(node, first)
        if call.op in EXPANDING:
            return first
        if call.op == "getitem":
            return first if _keeps_all(call.arguments.get("index"), call.operands[0].rank) else None
        if call.op in ("tril", "triu"):
            return _triangle(first, call.op == "tril", call.get("diagonal", default=0))
        if call.op in COPIES:
            return None if first is None else Cells(*(Band(b.values.to(fake.dtype)) for b in _bands(first)))
        return self._computed(node) if is_pointwise(call.op) and not node.kwargs else None

    def _moved(self, node: fx.Node, first: Cells | None) -> Cells | None:
        order = permutation_of(node)
        if first is None or order is None or sorted(order[-2:]) != [max(order) - 1, max(order)]:
            return None
        return first if order[-2] < order[-1] else first.turned()

    def _computed(self, node: fx.Node) -> Cells | None:
        """A pointwise op, done to the numbers of both bands."""
        given: list[Any] = []
        for arg in node.args:
            if isinstance(arg, fx.Node):
                value = contents_of(arg)
                single = isinstance(value, Uniform) and not example(arg).dim()
                given.append(value.value if single else self.cells(arg))
            else:
                given.append(arg)
        if any(v is None or not isinstance(v, (Cells, bool, int, float)) for v in given):
            return None
        cells = [v for v in given if isinstance(v, Cells)]
        if not cells:
            return None
        reach = max(b.reach for c in cells for b in _bands(c))
        bands = []
        for side in (0, 1):
            args = [_bands(v)[side].widened(reach) if isinstance(v, Cells) else v for v in given]
            try:
                bands.append(Band(invoke(node, args, {}).to(example(node).dtype)))
            except Exception:  # whatever torch raises for a number that does not fit: the mask is not read
                return None
        return Cells(*bands)


def _bands(cells: Cells) -> tuple[Band, Band]:
    return cells.inside, cells.outside


def _keeps_all(index: Any, rank: int) -> bool:
    """Does an index only add dimensions, choose in those before the last two, or cut what is of the same size after it
    (`_Reading._square`)?"""
    entries = index if isinstance(index, tuple) else (index,)
    plain = None not in entries and Ellipsis not in entries

    def kept(place: int, entry: Any) -> bool:
        if type(entry) is int:
            return plain and place < rank - 2
        whole = isinstance(entry, slice) and entry.start in (None, 0) and entry.step in (None, 1)
        return entry is None or entry is Ellipsis or whole

    return all(kept(place, entry) for place, entry in enumerate(entries))


def _triangle(cells: Cells | None, lower: bool, diagonal: Any) -> Cells | None:
    if cells is None or type(diagonal) is not int:
        return None
    reach = max(abs(diagonal) + 1, *(b.reach for b in _bands(cells)))
    ahead = -torch.arange(-reach, reach + 1)
    kept = ahead <= diagonal if lower else ahead >= diagonal
    return Cells(*(Band(b.widened(reach) * kept.to(b.values.dtype)) for b in _bands(cells)))


# === The attention ===========================================================================================


def _fits(squares: Squares, node: fx.Node, parts: Attention, window: tuple[int, int]) -> bool:
    values = [example(n) for n in (parts.query, parts.key, parts.value)]
    size, rank = example(squares.mask).shape[-1], values[0].dim()
    if parts.dropout or parts.causal or not isinstance(parts.scale, (int, float, type(None))):
        return False
    if rank < 2 or any(v.dim() != rank or not statically_known_true(v.shape[-2] == size) for v in values):
        return False
    leading = [tuple(v.shape[:-2]) for v in values]
    if any(not isinstance(n, int) for sizes in leading for n in sizes) or leading[1] != leading[2]:
        return False
    if leading[0] != leading[1]:
        one = rank in (3, 4) and all(n == 1 for sizes in leading for n in sizes[:-1])
        if not (one and parts.grouped and leading[0][-1] % leading[1][-1] == 0):
            return False
    same_width = values[0].shape[-1] == values[2].shape[-1]
    return same_width and takes(values[0].device.type, example(node).dtype, values[0].shape[-1], window)


def _replace(graph: fx.Graph, squares: Squares, node: fx.Node, parts: Attention, seen: Visible, alike: bool) -> bool:
    if not _fits(squares, node, parts, seen.window) or mutated_after(graph, squares.cu, squares.mask, node):
        return False
    build = Builder(graph, node, parts.query, squares.rule)
    fake = example(node)
    try:
        rows = []
        for operand in (parts.query, parts.key, parts.value):
            x = operand if example(operand).dtype == fake.dtype else build.call("to", operand, fake.dtype, method=True)
            rank = example(x).dim()
            if rank == 2:
                x = build.call(torch.unsqueeze, x, 0)
            elif rank > 3:
                x = build.call(torch.flatten, x, 0, rank - 3)
            rows.append(build.call(torch.transpose, x, 0, 1))
        window = () if seen.window == (-1, -1) else seen.window
        scale = None if parts.scale is None else float(parts.scale)
        cu = squares.cu
        if example(cu).device != fake.device:
            cu = build.call("to", cu, fake.device, method=True)
        out = build.call(_ops.varlen_attention.default, *rows, cu, cu, seen.causal, scale, *window)
        if alike:
            out = _beside_documents(build, squares, rows, out)
        out = build.call(torch.transpose, out, 0, 1)
        rank = fake.dim()
        if rank == 2:
            out = build.call(torch.squeeze, out, 0)
        elif rank > 3:
            out = build.call(torch.unflatten, out, 0, tuple(fake.shape[:-2]))
        if tuple(example(out).shape) != tuple(fake.shape) or example(out).dtype != fake.dtype:
            raise NotBuilt(node.target, node, RuntimeError("another shape"))
        out = laid_out(build, out, memory_order(fake))
    except NotBuilt:
        build.undo()
        return False
    node.replace_all_uses_with(out)
    for key, value in node.meta.items():
        out.meta.setdefault(key, value)
    graph.erase_node(node)
    return True


def _beside_documents(build: Builder, squares: Squares, rows: list[fx.Node], out: fx.Node) -> fx.Node:
    """Slots of no document see all slots alike: the mean of the values. (The gradient of the scores that are lost there
    is left out: torch's fused kernels make of it what no formula says, as the sum of their weights is not 1.)"""
    mean = build.call(torch.mean, rows[2], 0, True)
    heads, own = example(rows[0]).shape[1], example(rows[2]).shape[1]
    if heads != own:
        mean = build.call(torch.repeat_interleave, mean, heads // own, 1)
    inside = build.call("view", squares.documents, -1, 1, 1, method=True)
    return build.call(torch.where, inside, out, mean)


def outside_of(node: fx.Node) -> Band | None:
    """What a mask held before the loop, for all slots alike; None if that is not known."""
    contents = contents_of(node)
    if not isinstance(contents, Uniform) or not isinstance(contents.value, (bool, int, float)):
        return None
    return constant(contents.value, example(node).dtype)
