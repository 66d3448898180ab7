"""Where every block of a tensor comes from, on all ranks of a group at once.

Code for context parallelism cuts a document in chunks of ``h`` tokens and moves chunks, heads and ranks around. What
it computes is therefore known, for every ``h``, from where each block (one chunk of one feature of one rank) ends up.
`Blocks` holds exactly that: the dimensions of a tensor as products of integers and of sizes that are never taken apart
(``h``, a batch of unknown size), and one array with the origin of every block on every rank. Each op that moves data
is the same op on that array. Everything is enumerated, nothing is sampled: two tensors with equal blocks are equal for
every length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

TOKENS = "h"
"""The size of one chunk of the iteration's document."""

LIMIT = 1 << 23
"""Blocks of all ranks: beyond this the enumeration is not worth its time and memory."""

Factor = int | str
Dim = tuple[Factor, ...]


class NotMovement(Exception):
    """This is not a permutation of whole blocks."""


@dataclasses.dataclass(frozen=True)
class Size:
    """A number of elements: ``count`` times sizes that are not taken apart."""

    count: int
    atoms: frozenset[str] = frozenset()

    def times(self, other: Size) -> Size:
        if self.atoms & other.atoms:
            raise NotMovement("a length times itself")
        return Size(self.count * other.count, self.atoms | other.atoms)

    def over(self, other: Size) -> Size:
        if not other.atoms <= self.atoms or other.count <= 0 or self.count % other.count:
            raise NotMovement("sizes do not divide")
        return Size(self.count // other.count, self.atoms - other.atoms)


def size_of(dim: Dim) -> Size:
    """Number of elements along one dimension."""
    return Size(math.prod(f for f in dim if isinstance(f, int)), frozenset(f for f in dim if isinstance(f, str)))


@dataclasses.dataclass(frozen=True, eq=False)
class Blocks:
    """``dims[d]``: factors of dimension d, outermost first, neighbouring integers merged, none of them 1.

    ``data``: ``[ranks, *integer factors]``, the origin of every block on every rank.
    """

    dims: tuple[Dim, ...]
    data: np.ndarray[Any, Any]

    @property
    def rank(self) -> int:
        return len(self.dims)

    def same(self, other: Blocks) -> bool:
        return self.dims == other.dims and np.array_equal(self.data, other.data)


def fresh(dims: Sequence[Dim], ranks: int, base: int = 0) -> Blocks:
    """A tensor that is different on every rank: block k of rank r is ``base + r * blocks + k``."""
    ints = [f for dim in dims for f in dim if isinstance(f, int)]
    count = ranks * math.prod(ints)
    if count > LIMIT:
        raise NotMovement(f"more than {LIMIT} blocks on all ranks")
    data = base + np.arange(count, dtype=np.int64).reshape(ranks, *ints)
    return normal(list(dims), data)


def normal(dims: Sequence[Sequence[Factor]], data: np.ndarray[Any, Any]) -> Blocks:
    """Merge neighbouring integer factors of each dimension and drop those of 1."""
    shape: list[int] = [data.shape[0]]
    merged: list[Dim] = []
    for dim in dims:
        out: list[Factor] = []
        for f in dim:
            if isinstance(f, int) and out and isinstance(out[-1], int):
                out[-1] *= f
            else:
                out.append(f)
        kept = tuple(f for f in out if f != 1)
        shape += [f for f in kept if isinstance(f, int)]
        merged.append(kept)
    return Blocks(tuple(merged), data.reshape(shape))


def _axes(x: Blocks) -> list[list[int]]:
    """For every dimension the axes of ``data`` that belong to it."""
    at, out = 1, []
    for dim in x.dims:
        ints = sum(isinstance(f, int) for f in dim)
        out.append(list(range(at, at + ints)))
        at += ints
    return out


def _opened(x: Blocks, d: int) -> tuple[np.ndarray[Any, Any], int, int, Dim]:
    """``(data with an axis for the outermost integer of dimension d, that axis, its size, the other factors)``."""
    axes, dim = _axes(x), x.dims[d]
    if dim and isinstance(dim[0], int):
        return x.data, axes[d][0], dim[0], dim[1:]
    at = 1 + sum(len(a) for a in axes[:d])
    return np.expand_dims(x.data, at), at, 1, dim


def outer(x: Blocks, d: int) -> tuple[int, Dim]:
    """``(n, rest)``: dimension d is n pieces of ``rest``."""
    dim = x.dims[d]
    return (dim[0], dim[1:]) if dim and isinstance(dim[0], int) else (1, dim)


def permute(x: Blocks, order: Sequence[int]) -> Blocks:
    axes = _axes(x)
    return normal([x.dims[d] for d in order], x.data.transpose([0, *(a for d in order for a in axes[d])]))


def take(x: Blocks, d: int, index: Any) -> Blocks:
    """Pieces of dimension d by a slice or an array of their numbers."""
    data, axis, _, rest = _opened(x, d)
    data = data[(slice(None),) * axis + (index,)]
    if data.size == 0:
        raise NotMovement("an empty part")
    return normal([*x.dims[:d], (data.shape[axis], *rest), *x.dims[d + 1 :]], data)


def select(x: Blocks, d: int, index: int) -> Blocks:
    n, rest = outer(x, d)
    if rest or not -n <= index < n:
        raise NotMovement("a single token of a chunk")
    part = take(x, d, slice(index % n, index % n + 1))
    return Blocks(part.dims[:d] + part.dims[d + 1 :], part.data)


def unsqueeze(x: Blocks, d: int) -> Blocks:
    return Blocks((*x.dims[:d], (), *x.dims[d:]), x.data)


def squeeze(x: Blocks, d: int) -> Blocks:
    if x.dims[d] and size_of(x.dims[d]).count == 1:
        raise NotMovement("squeeze of a dimension that may have one token")
    return Blocks(x.dims[:d] + x.dims[d + 1 :], x.data) if x.dims[d] == () else x


def pieces(x: Blocks, d: int, start: Size, length: Size) -> Blocks:
    """``narrow(d, start, length)`` where both are whole pieces."""
    n, rest = outer(x, d)
    unit = size_of(rest)
    first = 0 if start.count == 0 else start.over(unit).count
    count = length.over(unit)
    if count.atoms or (start.count and start.atoms != unit.atoms) or first + count.count > n:
        raise NotMovement("a part that does not consist of whole chunks")
    return take(x, d, slice(first, first + count.count))


def cat(parts: Sequence[Blocks], d: int) -> Blocks:
    others = [(p.dims[:d], p.dims[d + 1 :], outer(p, d)[1]) for p in parts]
    if any(o != others[0] for o in others):
        raise NotMovement("cat of parts that do not match")
    opened = [_opened(p, d) for p in parts]
    data = np.concatenate([o[0] for o in opened], opened[0][1])
    _check(data)
    return normal([*parts[0].dims[:d], (data.shape[opened[0][1]], *opened[0][3]), *parts[0].dims[d + 1 :]], data)


def reshape(x: Blocks, sizes: Sequence[Size | None]) -> Blocks:
    """Row-major reshape; one size may be None (whatever is left)."""
    factors: list[Factor] = [f for dim in x.dims for f in dim]
    if None in sizes:
        left = size_of(tuple(factors))
        for size in sizes:
            left = left.over(size) if size is not None else left
        sizes = [left if size is None else size for size in sizes]
    dims: list[list[Factor]] = []
    axes: list[int] = [x.data.shape[0]]
    for size in sizes:
        assert size is not None
        count, atoms, dim = size.count, set(size.atoms), list[Factor]()
        while count != 1 or atoms:
            if not factors:
                raise NotMovement("a reshape to more elements")
            f = factors.pop(0)
            if isinstance(f, str):
                if f not in atoms:
                    raise NotMovement("a reshape that takes tokens apart")
                atoms.remove(f)
                dim.append(f)
                continue
            if count and count % f == 0:
                part = f
            elif count and f % count == 0:
                part = count
                factors.insert(0, f // count)
            else:
                raise NotMovement("a reshape that takes blocks apart")
            count //= part
            dim.append(part)
            axes.append(part)
        dims.append(dim)
    if factors:
        raise NotMovement("a reshape to fewer elements")
    return normal(dims, x.data.reshape(axes))


def all_to_all(x: Blocks) -> Blocks:
    """The j-th of equal parts along dimension 0 goes to rank j; the result's part j came from rank j."""
    ranks = x.data.shape[0]
    data, axis, n, rest = _opened(x, 0)
    if n % ranks:
        raise NotMovement("the first dimension does not divide by the group")
    assert axis == 1
    split = data.reshape(ranks, ranks, n // ranks, *data.shape[2:])
    return normal([(n, *rest), *x.dims[1:]], split.swapaxes(0, 1).reshape(data.shape))


def all_gather(x: Blocks) -> Blocks:
    """Every rank gets what all of them hold, one behind the other along dimension 0."""
    ranks = x.data.shape[0]
    data, _, n, rest = _opened(x, 0)
    data = np.broadcast_to(data.reshape(1, ranks * n, *data.shape[2:]), (ranks, ranks * n, *data.shape[2:]))
    _check(data)
    return normal([(ranks * n, *rest), *x.dims[1:]], data)


def all_reduce(x: Blocks, count: int) -> Blocks:
    """The sum over the ranks of a tensor that is moved alike on all of them, of ``count`` blocks each: block k of it
    counts as number ``ranks * count + k``, on every rank."""
    ranks = x.data.shape[0]
    own = x.data.reshape(ranks, -1) - np.arange(ranks)[:, None] * count
    if not (own == own[:1]).all() or own.min() < 0 or own.max() >= count:
        raise NotMovement("a sum of what is not moved alike on all ranks")
    return Blocks(x.dims, (own + ranks * count).reshape(x.data.shape))


def own_part(x: Blocks) -> Blocks:
    """Of as many equal parts along dimension 0 as there are ranks, each rank its own."""
    ranks = x.data.shape[0]
    data, _, n, rest = _opened(x, 0)
    if n % ranks:
        raise NotMovement("the first dimension does not divide by the group")
    parts = data.reshape(ranks, ranks, n // ranks, *data.shape[2:])
    return normal([(n // ranks, *rest), *x.dims[1:]], parts[np.arange(ranks), np.arange(ranks)])


def way_back(forward: Blocks, backward: Blocks, source: Blocks, rank: int) -> str | None:
    """What ``backward`` makes of the gradient of ``forward``: its gradient where blocks are only moved (``moved``); of
    what all ranks have gathered, each rank's own part of its gradient (``own``), or of the sum of all ranks' (``sum``);
    None for anything else. Both run on tensors numbered as `fresh` does it: on the gradient of the result, and on
    ``source``. Which part is its own is a matter of each ``rank``, which proves that of itself."""
    if backward.dims != source.dims:
        return None
    ranks, moved = forward.data.shape[0], forward.data.reshape(forward.data.shape[0], -1)
    back = backward.data.reshape(ranks, -1)
    if forward.data.size == source.data.size:
        return "moved" if _is_inverse(moved.reshape(-1), back.reshape(-1)) else None
    places = np.empty_like(moved[0])
    if not (moved == moved[:1]).all() or not np.array_equal(np.sort(moved[0]), np.arange(source.data.size)):
        return None
    places[moved[0]] = np.arange(places.size)
    places = places.reshape(ranks, -1)
    if np.array_equal(back[rank], places[rank] + rank * moved.shape[1]):
        return "own"
    return "sum" if np.array_equal(back[rank], places[rank] + ranks * moved.shape[1]) else None


def _is_inverse(moved: np.ndarray[Any, Any], back: np.ndarray[Any, Any]) -> bool:
    if not np.array_equal(np.sort(moved), np.arange(moved.size)):
        return False
    wanted = np.empty_like(moved)
    wanted[moved] = np.arange(moved.size)
    return np.array_equal(back, wanted)


def _check(data: np.ndarray[Any, Any]) -> None:
    if data.size > LIMIT:
        raise NotMovement(f"more than {LIMIT} blocks on all ranks")
