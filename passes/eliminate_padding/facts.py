"""What is known about masks: their value at every (query, key) as a small table.

A mask is made of the key-padding mask, positions and constants by elementwise ops, so its value at row ``b``, query
``i``, key ``j`` depends on three things only: is token ``i`` real, is token ``j`` real, and does ``i`` lie before, at
or behind ``j``. `facts` therefore runs the graph's own ops on a table of these 2 x 2 x 3 cases instead of recognising
how people spell masks: ``(1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min`` becomes -3.4e38
where the key is padding and 0 where it is real, whichever way it is written.

Where a value depends on anything else, nothing is known about it.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import Tensor, fx

from packpass.semantics import Call, Meaning, argument, call_of, example, meaning_of
from packpass.semantics.meaning import Iota, Uniform
from packpass.semantics.pointwise import COMPARISONS, COPIES
from passes.eliminate_padding.tile import Dims, Tile, count, holds, moved, named, parts_of, same
from passes.eliminate_padding.writes import unseen


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A value by cases. ``cells`` has an axis of 2 (padding, real) per ``"S"`` in ``dims``, in order; with two of them
    also an axis of 3: the first position lies before, at, behind the second. Along features it is constant."""

    dims: Dims
    cells: Tensor

    @property
    def tokens(self) -> int:
        return count(self.dims, "S")


@dataclasses.dataclass(frozen=True)
class Index:
    """``start, start + 1, ...`` along dimension ``dim`` of ``rank``, and constant along the others."""

    rank: int
    dim: int
    start: int
    size: Any


Fact = Table | Index


def facts(graph: fx.Graph, tile: Tile, known_masks: dict[fx.Node, Table]) -> dict[fx.Node, Fact]:
    """The facts of a graph; ``known_masks`` are the nodes that say which tokens are real."""
    found: dict[fx.Node, Fact] = dict(known_masks)
    for node in graph.nodes:
        if node in found or node.op in ("placeholder", "output") or not isinstance(example(node), Tensor):
            continue
        try:
            fact = _fact(node, tile, found)
        except Exception:  # an op that does not run on the table says nothing
            fact = None
        if fact is not None:
            found[node] = fact
    return found


def of_padding(tile: Tile, node: fx.Node) -> Table:
    """The table of the padding mask itself, ``[B, S]`` or ``[B, 1, 1, S]``: 1 for a real token."""
    value = example(node)
    dims: Dims = (("B",), *[()] * (value.dim() - 2), ("S",))
    return Table(dims, torch.tensor([0, 1], dtype=value.dtype))


def _fact(node: fx.Node, tile: Tile, found: dict[fx.Node, Fact]) -> Fact | None:
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        return None
    if isinstance(meaning.contents, Iota):
        return _counted(node, meaning.contents)
    if isinstance(meaning.contents, Uniform):
        return _constant(node, meaning.contents.value)
    if call.op == "eye":
        return _eye(node, tile)
    first = node.args[0] if node.args else None
    fact = found.get(first) if isinstance(first, fx.Node) else None
    if isinstance(fact, Index) or any(isinstance(found.get(n), Index) for n in node.all_input_nodes):
        if call.op == "getitem" and isinstance(fact, Table):
            return _looked_up(node, fact, found)
        return _of_positions(node, call, tile, found)
    if call.op in ("tril", "triu"):
        return None if call.in_place else _triangle(node, call.op, tile, fact)
    if isinstance(fact, Table) and (dims := moved(tile, node, _told_apart(fact.dims))) is not None:
        return None if call.in_place else _reordered(fact, dims)
    if call.op in COPIES and isinstance(fact, Table):
        return dataclasses.replace(fact, cells=fact.cells.to(example(node).dtype))
    if meaning.family == "pointwise" and not (call.in_place and not unseen(node)):
        return _elementwise(node, call, meaning, found)
    return None


# === Tables =====================================================================================================


def _reordered(table: Table, dims: Dims) -> Table | None:
    """The same cells after the dimensions moved; two positions may have changed places."""
    order = [p for parts in dims for p in parts if isinstance(p, str) and p != "B"]
    if len(order) != table.tokens:
        return None
    swapped = order == ["K", "S"]
    return Table(_relabelled(dims, "K", "S"), table.cells.permute(1, 0, 2).flip(2) if swapped else table.cells)


def _relabelled(dims: Dims, old: str, new: str) -> Dims:
    return tuple(tuple(new if isinstance(p, str) and p == old else p for p in parts) for parts in dims)


def _told_apart(dims: Dims) -> Dims:
    """The second of two positions is called ``"K"``."""
    places = [d for d, parts in enumerate(dims) if holds(parts, "S")]
    return dims if len(places) < 2 else (*dims[: places[1]], *_relabelled(dims[places[1] :], "S", "K"))


def _elementwise(node: fx.Node, call: Call, meaning: Meaning, found: dict[fx.Node, Fact]) -> Table | None:
    if meaning.traits.random or len(meaning.relations) != 1:
        return None
    operands = [n for n in node.all_input_nodes if isinstance(example(n), Tensor)]
    tables = [found.get(n) for n in operands]
    if not operands or len(operands) != len(node.all_input_nodes) or not all(isinstance(t, Table) for t in tables):
        return None
    rank = example(node).dim()
    dims: list[tuple[Any, ...]] = list(parts_of(example(node).shape))
    for table in tables:
        assert isinstance(table, Table)
        for back in range(1, len(table.dims) + 1):
            new = table.dims[-back]
            if named(new):
                if named(dims[-back]) and dims[-back] != new:
                    return None
                dims[-back] = new
    out: Dims = tuple(dims)
    places = [rank - d for d, parts in enumerate(out) if holds(parts, "S")]
    if len(places) > 2 or count(out, "B") > 1:
        return None
    cells = {n: aligned(found[n], places) for n in operands}  # type: ignore[arg-type]
    args = fx.map_arg(node.args, lambda n: cells[n].clone())
    kwargs = fx.map_arg(node.kwargs, lambda n: cells[n])
    result = run(call, args, dict(kwargs))
    return Table(out, result.expand(shape_of(len(places))).clone())


def shape_of(tokens: int) -> list[int]:
    return [[], [2], [2, 2, 3]][tokens]


def aligned(table: Table, places: list[int]) -> Tensor:
    """The cells for a result whose positions lie at ``places``, counted from the right."""
    mine = [len(table.dims) - d for d, parts in enumerate(table.dims) if holds(parts, "S")]
    if mine == places:
        return table.cells
    if not mine:
        return table.cells.view([1] * len(shape_of(len(places))))
    return table.cells.view([2 if place in mine else 1 for place in places] + [1])


def run(call: Call, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A call on other arguments, on the CPU."""
    cpu = torch.device("cpu")
    args = tuple(cpu if isinstance(a, torch.device) else a for a in args)
    kwargs = {k: cpu if isinstance(a, torch.device) else a for k, a in kwargs.items() if k != "memory_format"}
    with torch.no_grad():
        if call.name != call.op and call.in_place:  # the table may have to grow
            result = getattr(args[0], call.op)(*args[1:], **kwargs)
        elif call.node.op == "call_method":
            result = getattr(args[0], str(call.node.target))(*args[1:], **kwargs)
        else:
            assert callable(call.node.target)
            result = call.node.target(*args, **kwargs)
    assert isinstance(result, Tensor)
    return result


def _constant(node: fx.Node, value: Any) -> Table | None:
    if not isinstance(value, (int, float, bool)):
        return None
    return Table(parts_of(example(node).shape), torch.tensor(value, dtype=example(node).dtype))


def _eye(node: fx.Node, tile: Tile) -> Table | None:
    """``eye`` of ``[S, S]``."""
    shape = example(node).shape
    if not all(same(n, tile.length) for n in shape):
        return None
    cells = torch.tensor([0, 1, 0], dtype=example(node).dtype)
    return Table((("S",), ("S",)), cells.expand(2, 2, 3).clone())


def _triangle(node: fx.Node, name: str, tile: Tile, fact: Fact | None) -> Table | None:
    """``tril`` and ``triu`` of ``[..., S, S]``."""
    shape = example(node).shape
    diagonal = argument(node, 1, "diagonal", 0)
    if not isinstance(fact, Table) or len(shape) < 2 or diagonal not in (-1, 0, 1):
        return None
    if not (same(shape[-1], tile.length) and same(shape[-2], tile.length)) or count(fact.dims, "B"):
        return None
    distance = torch.tensor([1, 0, -1])  # j - i where i lies before, at, behind j; only its sign is known
    kept = distance <= diagonal if name == "tril" else distance >= diagonal
    if (name, diagonal) in (("tril", 1), ("triu", -1)):
        return None  # of the tokens behind (before) it keeps one and drops the others
    dims: Dims = (*fact.dims[:-2], ("S",), ("S",))
    cells = aligned(fact, [2, 1])
    return Table(dims, torch.where(kept, cells, torch.zeros((), dtype=cells.dtype)).expand(2, 2, 3).clone())


# === Positions ==================================================================================================


def _counted(node: fx.Node, contents: Iota) -> Index | None:
    """``arange``"""
    start, step = contents.start, contents.step
    if type(start) is not int or type(step) is not int or (start, step) != (0, 1) or example(node).is_floating_point():
        return None
    return Index(1, 0, 0, example(node).shape[0])


def _of_positions(node: fx.Node, call: Call, tile: Tile, found: dict[fx.Node, Fact]) -> Fact | None:
    value, name = example(node), call.op
    if call.in_place:
        return None
    if name in COMPARISONS or name in ("add", "sub") or name in COPIES:
        a, b = (node.args[0], node.args[1] if len(node.args) > 1 else None)
        if name in COMPARISONS:
            return _compared(node, name, tile, *(found.get(x) if isinstance(x, fx.Node) else x for x in (a, b)))
        index = found.get(a) if isinstance(a, fx.Node) else None
        if not isinstance(index, Index) or value.dtype not in (torch.int32, torch.int64):
            return None
        if name in ("add", "sub"):
            if type(b) is not int or node.kwargs:
                return None
            return dataclasses.replace(index, start=index.start + (b if name == "add" else -b))
        return index
    source = node.args[0] if node.args else None
    index = found.get(source) if isinstance(source, fx.Node) else None
    if not isinstance(index, Index):
        return None
    marked: Dims = tuple(("S",) if d == index.dim else () for d in range(index.rank))
    # Only where the positions go matters here, so their own size stands for that of the tokens.
    dims = moved(Tile(tile.batch, index.size), node, marked)
    if dims is None or count(dims, "S") != 1:
        return None
    return Index(len(dims), next(d for d, parts in enumerate(dims) if holds(parts, "S")), index.start, index.size)


def _compared(node: fx.Node, name: str, tile: Tile, a: Any, b: Any) -> Table | None:
    """Positions of queries against positions of keys; or of any against a number that lies outside."""
    rank = example(node).dim()
    compare = getattr(operator, name)
    if isinstance(a, Index) and isinstance(b, Index):
        places = rank - a.rank + a.dim, rank - b.rank + b.dim
        sizes = same(a.size, tile.length) and same(b.size, tile.length)
        if not sizes or a.start != b.start or places[0] == places[1]:
            return None
        dims: Dims = tuple(("S",) if d in places else () for d in range(rank))
        order = torch.tensor([-1, 0, 1]) if places[0] < places[1] else torch.tensor([1, 0, -1])
        return Table(dims, compare(order, torch.zeros(3)).expand(2, 2, 3).clone())
    if isinstance(a, Index) and type(b) is int and b <= a.start and name in ("ge", "lt"):
        return Table(parts_of(example(node).shape), torch.tensor(name == "ge"))
    return None


def _looked_up(node: fx.Node, table: Table, found: dict[fx.Node, Fact]) -> Table | None:
    """``mask[rows, keys]`` where the indices are all rows and all positions, each along a dimension of its own."""
    index = node.args[1]
    if not isinstance(index, tuple) or len(index) != len(table.dims):
        return None
    rank = example(node).dim()
    shape = example(node.args[0]).shape
    dims: list[tuple[Any, ...]] = [()] * rank
    order = []
    for d, entry in enumerate(index):
        fact = found.get(entry) if isinstance(entry, fx.Node) else None
        if not isinstance(fact, Index) or fact.start != 0 or not same(fact.size, shape[d]):
            return None
        place = rank - fact.rank + fact.dim
        if dims[place] != ():
            return None
        dims[place] = table.dims[d]
        order.append(place)
    return Table(tuple(dims), table.cells) if table.tokens < 2 or order == sorted(order) else None


__all__ = ["Fact", "Index", "Table", "aligned", "facts", "of_padding"]
