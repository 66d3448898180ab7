"""Finding where the tokens of a row become a longer (or shorter) row.

Three forms, whatever they are written with:

* ``repeat_interleave(x, widths)``: every token, widths[t] times;
* ``out[..., p] = x`` (index_put, index_copy, scatter, ...) at the first or last of a token's slots, see `positions`;
  the rest of ``out`` is filled with what the tokens stand for;
* ``searchsorted(cumsum(widths), arange(total), right=True)``: the token that each slot belongs to.

Each proves that slots ``[sum(widths[:t]), sum(widths[:t + 1]))`` of the new row belong to token t of the old one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true
from packpass._registry import registrar
from packpass.layout.axes import Axes, Axis
from packpass.layout.names import argument, example, op_name
from passes.remap_boundaries.positions import Positions, Reader, Row


@dataclasses.dataclass(frozen=True)
class Expansion:
    """Slots of ``after`` belong to tokens of ``before``: ``widths + plus`` slots each. ``read``: the call that reads
    the widths; ``origin``: the one that makes the new row."""

    origin: fx.Node
    widths: Row
    plus: int
    read: fx.Node
    after: Axis

    @property
    def before(self) -> Axis:
        return self.widths.axis

    @property
    def several_rows(self) -> bool:
        return several_rows(self.widths)


def several_rows(row: Row) -> bool:
    """Does a value hold (or may it hold) more than one row?"""
    shape = example(row.node).shape
    return any(not statically_known_true(n == 1) for d, n in enumerate(shape) if d != row.axis.dim)


Found = tuple[Positions, Axis]
Form = Callable[[Reader, Axes, fx.Node], Found | None]
_FORMS: dict[str, Form] = {}


form = registrar(_FORMS)
"""Registers a form under plain op names."""


def expansions(graph: fx.Graph, axes: Axes, reader: Reader) -> Iterator[Expansion]:
    """Every expansion of a graph. Links axes that these calls keep together, which the layout rules leave apart."""
    for node in graph.nodes:
        fn = _FORMS.get(op_name(node))
        found = fn(reader, axes, node) if fn is not None else None
        if found is not None:
            at, after = found
            yield Expansion(node, at.widths, at.plus, at.summed, after)


@form("repeat_interleave")
def _repeated(reader: Reader, axes: Axes, node: fx.Node) -> Found | None:
    x, repeats = argument(node, 0, "input"), argument(node, 1, "repeats")
    if not isinstance(x, fx.Node):
        return None
    if repeats is None:  # repeat_interleave(widths): the tokens' numbers
        x, repeats = None, x
    if (
        not isinstance(repeats, fx.Node)
        or not isinstance(example(repeats), torch.Tensor)
        or example(repeats).dim() != 1
    ):
        return None
    widths = reader.plain(Row(repeats, -1))
    if x is None:
        return Positions(widths, 0, node), Axis(node, 0)
    dim = argument(node, 2, "dim")
    rank = example(x).dim()
    if dim is None:
        long = [d for d in range(rank) if not statically_known_true(example(x).shape[d] == 1)]
        if len(long) != 1:
            return None
        before, to = long[0], 0
    else:
        before = to = dim % rank
    if not axes.fit(Axis(repeats, 0), Axis(x, before)):
        return None  # one number for all
    axes.link(Axis(repeats, 0), Axis(x, before))
    axes.link(widths.axis, Axis(repeats, 0))
    return Positions(widths, 0, node), Axis(node, to)


@form("searchsorted", "bucketize")
def _searched(reader: Reader, axes: Axes, node: fx.Node) -> Found | None:
    """How many tokens end at or before each slot: the number of the slot's token."""
    at = (0, 1) if op_name(node) == "searchsorted" else (1, 0)
    names = ("sorted_sequence", "self") if op_name(node) == "searchsorted" else ("input", "boundaries")
    first, second = argument(node, 0, names[0]), argument(node, 1, names[1], node.kwargs.get("input"))
    ends, slots = ((first, second)[i] for i in at)
    right = argument(node, 3, "right", False) is True or node.kwargs.get("side") == "right"
    if not right or node.kwargs.get("sorter") is not None or not isinstance(ends, fx.Node):
        return None
    found = reader.ends(ends)
    if found is None or not isinstance(slots, fx.Node) or not reader.is_slots(slots):
        return None
    axes.same(slots, -1, node, -1)
    return found, Axis(node, example(node).dim() - 1)


@form("setitem", "index_put", "index_put_")
def _assigned(reader: Reader, axes: Axes, node: fx.Node) -> Found | None:
    """``base[..., p] = values``, ``base[b, p] = values``."""
    base, index = node.args[0], argument(node, 1, "indices")
    values = argument(node, 2, "values")
    if not isinstance(base, fx.Node) or not isinstance(example(base), torch.Tensor):
        return None
    entries: list[Any] = list(index) if isinstance(index, (tuple, list)) else [index]
    if any(e is None and op_name(node) == "setitem" for e in entries):
        return None
    entries = [slice(None) if e is None else e for e in entries]
    rank = example(base).dim()
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (rank - len(entries) + 1)
    tensors = [d for d, e in enumerate(entries) if isinstance(e, fx.Node) and isinstance(example(e), torch.Tensor)]
    if any(example(entries[d]).dtype is torch.bool for d in tensors):
        return None
    found = [(d, p) for d in tensors if (p := _indexed(reader, entries[d])) is not None]
    short = {d for d, n in enumerate(example(base).shape) if statically_known_true(n == 1)}
    whole = all(e == slice(None) for d, e in enumerate(entries) if d not in tensors and d not in short)
    if len(found) != 1 or not whole:
        return None
    dim, positions = found[0]
    if not set(tensors) <= {dim} | short and not several_rows(positions.widths):
        return None
    link_target(axes, node, base)
    if tensors == [dim] and example(entries[dim]).dim() == 1 and isinstance(values, fx.Node):
        value = example(values)
        if isinstance(value, torch.Tensor) and value.dim() >= rank - dim:
            axes.same(positions.widths.node, positions.widths.dim, values, dim - rank)
    return positions, Axis(base, dim)


@form("index_copy", "index_copy_", "index_add", "index_add_", "index_fill", "index_fill_")
def _copied(reader: Reader, axes: Axes, node: fx.Node) -> Found | None:
    """``base.index_copy(dim, p, values)``."""
    base, dim, index = argument(node, 0, "input"), argument(node, 1, "dim"), argument(node, 2, "index")
    positions = _indexed(reader, index) if isinstance(index, fx.Node) else None
    if positions is None or not isinstance(dim, int) or not isinstance(base, fx.Node):
        return None
    rank = example(base).dim()
    values = argument(node, 3, "source")
    link_target(axes, node, base)
    if isinstance(values, fx.Node) and isinstance(example(values), torch.Tensor) and example(values).dim() == rank:
        axes.same(positions.widths.node, positions.widths.dim, values, dim % rank)
    return positions, Axis(base, dim % rank)


@form("scatter", "scatter_", "scatter_add", "scatter_add_")
def _scattered(reader: Reader, axes: Axes, node: fx.Node) -> Found | None:
    """``base.scatter(dim, p[:, None].expand_as(values), values)``."""
    base, dim, index = argument(node, 0, "input"), argument(node, 1, "dim"), argument(node, 2, "index")
    if not isinstance(dim, int) or not isinstance(base, fx.Node) or not isinstance(index, fx.Node):
        return None
    rank = example(base).dim()
    positions = reader.positions(index, dim % rank - rank)
    if positions is None:
        return None
    values = argument(node, 3, "src")
    link_target(axes, node, base)
    if isinstance(values, fx.Node) and isinstance(example(values), torch.Tensor) and example(values).dim() == rank:
        axes.same(positions.widths.node, positions.widths.dim, values, dim % rank)
    return positions, Axis(base, dim % rank)


def _indexed(reader: Reader, index: fx.Node) -> Positions | None:
    """An index of positions, of all tokens or of some: ``p``, ``p[mask]``, ``p[rows, chosen]``."""
    found = reader.positions(index)
    if found is not None:
        return found
    base = index.args[0] if index.args else None
    name = op_name(index)
    chosen = name in ("masked_select", "index_select") or (name == "getitem" and _chooses(index.args[1]))
    return reader.positions(base) if chosen and isinstance(base, fx.Node) else None


def _chooses(index: Any) -> bool:
    return any(isinstance(e, fx.Node) for e in (index if isinstance(index, (tuple, list)) else (index,)))


def link_target(axes: Axes, node: fx.Node, base: fx.Node) -> None:
    """A row that slots are put into keeps its slots."""
    if isinstance(example(node), torch.Tensor):
        for d in range(example(base).dim()):
            axes.same(base, d, node, d)


def link_more(graph: fx.Graph, axes: Axes) -> None:
    """Links that hold by an op's meaning, but that only matter for boundaries: what is looked up for each slot of a
    row, and the rows and columns of an attention mask."""
    for node in graph.nodes:
        name = op_name(node)
        if name in ("searchsorted", "bucketize"):
            slots = argument(node, 0 if name == "bucketize" else 1, "input")
            if isinstance(slots, fx.Node) and isinstance(example(slots), torch.Tensor):
                for back in range(1, example(slots).dim() + 1):
                    axes.same(slots, -back, node, -back)
        elif name in ("index_put", "index_copy", "index_fill", "scatter", "index_add", "scatter_add") and node.args:
            base = node.args[0]
            if isinstance(base, fx.Node) and isinstance(example(base), torch.Tensor):
                link_target(axes, node, base)
        elif name == "getitem":
            _link_lookup(axes, node)
        elif name == "index_select":
            dim, index = argument(node, 1, "dim"), argument(node, 2, "index")
            if isinstance(dim, int) and isinstance(index, fx.Node):
                axes.same(index, 0, node, dim)
        elif name == "scaled_dot_product_attention":
            q, k, mask = (argument(node, i, n) for i, n in ((0, "query"), (1, "key"), (3, "attn_mask")))
            if isinstance(mask, fx.Node) and isinstance(example(mask), torch.Tensor) and example(mask).dim() >= 2:
                axes.same(q, -2, mask, -2)
                axes.same(k, -2, mask, -1)


def _link_lookup(axes: Axes, node: fx.Node) -> None:
    """``table[index]``: one entry of the table for each slot of the index, where the index stands first."""
    base, index = node.args
    if not isinstance(base, fx.Node) or not isinstance(example(base), torch.Tensor):
        return
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if isinstance(index, fx.Node) and isinstance(example(index), torch.Tensor):
        if example(index).dtype is not torch.bool and isinstance(example(node), torch.Tensor):
            for d in range(example(index).dim()):
                axes.same(index, d, node, d)
