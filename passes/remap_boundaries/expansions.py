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
from packpass.layout.axes import Axes, Axis
from packpass.semantics import argument, example, family_of, op_name, ways
from packpass.semantics.meaning import Sent
from packpass.semantics.names import base_name
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


def _form_of(node: fx.Node) -> Form | None:
    """What may make a longer row, by the family of the call and how it is told where slots go."""
    name, family = base_name(op_name(node)), family_of(node)
    if name == "repeat_interleave":
        return _repeated
    if name in ("searchsorted", "bucketize"):
        return _searched
    if name in ("setitem", "index_put"):
        return _assigned
    if family == "writes" and any(isinstance(how, Sent) for _, how in ways(node)):
        return _copied if name.startswith("index_") else _scattered
    return None


def expansions(graph: fx.Graph, axes: Axes, reader: Reader) -> Iterator[Expansion]:
    """Every expansion of a graph. Links axes that these calls keep together, which the layout rules leave apart."""
    for node in graph.nodes:
        fn = _form_of(node)
        found = fn(reader, axes, node) if fn is not None else None
        if found is not None:
            at, after = found
            yield Expansion(node, at.widths, at.plus, at.summed, after)


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
