"""Dimensions of a padded batch: which part of a value's shape counts rows, which tokens of a row, which features.

A dimension is a tuple of *parts*, outermost first: ``("B",)`` and ``("S",)`` are the batch and the tokens of a row,
``("B", 8)`` is the batch merged with 8 heads, a number is anything else, and ``()`` is a dimension of one slot. Views,
permutations and indices move parts around; `moved` follows them, for values with tokens and for masks alike.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch
from torch import fx

from packpass._compat import statically_known_true as known
from packpass.layout.names import argument, example, op_name
from packpass.layout.shape_rules import permutation
from passes.refused import Refused

Part = Any
"""``"B"``, ``"S"``, ``"K"`` (tokens of the same row once more, as keys), or a size."""
Dims = tuple[tuple[Part, ...], ...]

VIEWS = frozenset({"view", "reshape", "flatten", "unflatten", "_unsafe_view", "ravel", "view_as", "reshape_as"})
PERMUTES = frozenset({"transpose", "t", "permute", "movedim", "unsqueeze", "squeeze", "adjoint", "getattr"})
EXPANDS = frozenset({"expand", "expand_as", "broadcast_to"})


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


def moved(tile: Tile, node: fx.Node, dims: Dims) -> Dims | None:
    """The dimensions of what a view, a permutation, an expansion or a plain index makes of its first argument.

    None for another op, or if batch or tokens do not come through whole.
    """
    name, value = op_name(node), example(node)
    if not isinstance(value, torch.Tensor):
        return None
    if name in VIEWS:
        return regrouped(tile, dims, value.shape)
    if name in PERMUTES:
        order = permutation(node)
        return None if order is None else tuple(dims[d] if d >= 0 else () for d in order)
    if name in EXPANDS:
        return expanded(dims, value.shape)
    if name == "getitem":
        return indexed(tile, node, dims)
    if name in ("select", "narrow"):
        return _selected(node, dims)
    return None


def expanded(dims: Dims, shape: Any) -> Dims:
    new = len(shape) - len(dims)
    return tuple(dims[d - new] if d >= new and dims[d - new] else _slots(n) for d, n in enumerate(shape))


def _slots(n: Any) -> tuple[Part, ...]:
    return () if same(n, 1) else (n,)


def entries_of(index: Any, rank: int) -> list[Any] | None:
    """An index of integers, slices and None with its Ellipsis written out; None for any other."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(e, (bool, fx.Node, torch.Tensor, list)) for e in entries):
        return None
    given = sum(e is not None and e is not Ellipsis for e in entries)
    where = next((i for i, e in enumerate(entries) if e is Ellipsis), len(entries))
    entries[where : where + 1] = [slice(None)] * (rank - given)
    return entries


def is_whole(cut: slice, size: Any) -> bool:
    """Does a slice take every slot of a dimension of this size?"""
    start, stop, step = (example(x) for x in (cut.start, cut.stop, cut.step))
    return step in (None, 1) and start in (None, 0) and (stop is None or same(stop, size))


def indexed(tile: Tile, node: fx.Node, dims: Dims) -> Dims | None:
    """``x[:, None, ..., 3]`` that takes the batch and the tokens whole."""
    base, index = node.args
    shape, out = example(base).shape, example(node).shape
    entries = entries_of(index, len(shape))
    if entries is None:
        return None
    found: list[tuple[Part, ...]] = []
    d = 0
    for entry in entries:
        if entry is None:
            found.append(())
            continue
        whole = isinstance(entry, slice) and is_whole(entry, shape[d])
        if named(dims[d]) and not whole:
            return None
        if whole:
            found.append(dims[d])
        elif isinstance(entry, slice):
            n = out[len(found)]
            found.append(_slots(n))
        d += 1
    return tuple(found)


def _selected(node: fx.Node, dims: Dims) -> Dims | None:
    dim = argument(node, 1, "dim")
    if not isinstance(dim, int) or named(dims[dim % len(dims)]):
        return None
    dim %= len(dims)
    if op_name(node) == "select":
        return dims[:dim] + dims[dim + 1 :]
    n = example(node).shape[dim]
    return (*dims[:dim], _slots(n), *dims[dim + 1 :])


def merged(dims_of: list[Dims], rank: int, node: fx.Node) -> Dims:
    """The dimensions of an elementwise op: aligned from the right, the batch and the tokens in one place each."""
    found: list[tuple[Part, ...]] = [()] * rank
    for dims in dims_of:
        for back in range(1, len(dims) + 1):
            have, new = found[-back], dims[-back]
            if not have or (named(new) and not named(have)):
                found[-back] = new
            elif named(have) and named(new) and have != new:
                raise Refused("cross-token", f"{op_name(node)} combines the tokens of a row with one another", node)
    if any(count(tuple(found), part) > 1 for part in ("B", "S")):
        raise Refused("cross-token", f"{op_name(node)} combines the tokens of a row with one another", node)
    return tuple(found)
