"""From where every block ends up to one op: is this tensor `cp_to_hp` or `hp_to_cp` of an outer one?"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from packpass.semantics import example
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all.blocks import TOKENS, Blocks
from passes.fuse_all_to_all.held import Source

Columns = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Section:
    """``width`` columns, counted over all ranks, from column ``start`` of the source (of its part on one rank, where
    the source holds all tokens and some heads)."""

    start: int
    width: int


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A document's part of ``op(columns of the sources)``, its columns in the order of ``sections``, as ``dims``."""

    sources: tuple[Source, ...]
    """The rows that it comes from; columns are counted over all of them."""
    to_heads: bool
    sections: tuple[Section, ...]
    dims: tuple[B.Dim, ...]
    """Of the document's part; one of them holds the tokens."""
    gathered: bool = False
    """Do all ranks get all columns?"""

    @property
    def source(self) -> Source:
        """The first of its rows, of which all others hold the same documents in the same way."""
        return self.sources[0]

    def parts(self, cp: int) -> int:
        """Among how many ranks the columns of a section are divided in the result."""
        return cp if self.to_heads and not self.gathered else 1

    @property
    def token_dim(self) -> int:
        return next(d for d, dim in enumerate(self.dims) if TOKENS in dim)


def recognise(value: Blocks, sources: dict[Source, tuple[Blocks, int]], cp: int, shard: int) -> Exchange | None:
    """The one op that gives ``value``, or None. ``shard``: chunks of a document on one rank."""
    found = _alike(value, sources)
    order = _tokens_first(value) if found else None
    if order is None or {f for dim in value.dims for f in dim if isinstance(f, str)} != {
        f for dim in found[0][1].dims for f in dim if isinstance(f, str)
    }:
        return None
    rows = tuple(source for source, _, _ in found)
    sharded = rows[0].sharded
    if order.shape[1] != (shard * cp if sharded else shard):
        return None
    rank, piece, column = _origins(order, found)
    held = np.arange(cp)[:, None]
    if shard == 2:
        held = np.concatenate([held, 2 * cp - 1 - held], 1)
    sections = (_to_heads if sharded else _to_tokens)(rank, piece, column, held)
    if sections is not None:
        return Exchange(rows, sharded, sections, value.dims)
    sections = _gathered(rank, piece, column, held) if sharded else None
    return None if sections is None else Exchange(rows, True, sections, value.dims, gathered=True)


Rows = list[tuple[Source, Blocks, int]]
"""Rows, their blocks and the numbers of the first ones."""


def _rows_of(value: Blocks, sources: dict[Source, tuple[Blocks, int]]) -> Rows:
    """The rows that all blocks come from; none if a block comes from none of them."""
    found = [(source, *held) for source, held in sources.items() if _of(value.data, *held).any()]
    known = sum(_of(value.data, whole, base).sum() for _, whole, base in found)
    return found if known == value.data.size else []


def _of(numbers: Columns, whole: Blocks, base: int) -> Columns:
    """Which of these are blocks of a row?"""
    return (numbers >= base) & (numbers < base + whole.data.size)


def only_source(value: Blocks, sources: dict[Source, tuple[Blocks, int]]) -> tuple[Source, Blocks, int] | None:
    """The one row that all blocks come from, its blocks and the number of the first; None if there are several."""
    rows = _rows_of(value, sources)
    return rows[0] if len(rows) == 1 else None


def _alike(value: Blocks, sources: dict[Source, tuple[Blocks, int]]) -> Rows:
    """The rows that all blocks come from, if one message may hold parts of all of them; else none."""
    found = _rows_of(value, sources)
    kinds = {
        (source.sharded, source.detached, example(source.node).dtype, example(source.node).device, source.unknown)
        for source, _, _ in found
    }
    return found if len(kinds) == 1 else []


def _origins(numbers: Columns, rows: Rows) -> tuple[Columns, Columns, Columns]:
    """`_origin` of all blocks; the columns of a row are counted on from those of the rows before it."""
    found = [np.zeros_like(numbers) for _ in range(3)]
    width = 0
    for source, whole, base in rows:
        own = _of(numbers, whole, base)
        rank, piece, column = _origin(numbers[own] - base, source, whole)
        for all_of, part in zip(found, (rank, piece, column + width), strict=True):
            all_of[own] = part
        width += source.columns
    return found[0], found[1], found[2]


def _tokens_first(value: Blocks) -> Columns | None:
    """``[ranks, chunks, columns]``, if one dimension holds the tokens and no other a mixture."""
    tokens = [d for d, dim in enumerate(value.dims) if TOKENS in dim]
    if len(tokens) != 1 or B.outer(value, tokens[0])[1] != (TOKENS,):
        return None
    if any(len(dim) > 1 for d, dim in enumerate(value.dims) if d != tokens[0]):
        return None
    first = B.permute(value, [tokens[0], *(d for d in range(value.rank) if d != tokens[0])])
    return first.data.reshape(first.data.shape[0], B.outer(value, tokens[0])[0], -1)


def _origin(numbers: Columns, source: Source, whole: Blocks) -> tuple[Columns, Columns, Columns]:
    """Rank, chunk and column of every block, the columns numbered in the order of the source's other dimensions."""
    ints = [(d, f) for d, dim in enumerate(whole.dims) for f in dim if isinstance(f, int)]
    rank, *parts = np.unravel_index(numbers, whole.data.shape)
    # A document of one chunk has no number for it.
    at = next((i for i, (d, _) in enumerate(ints) if d == source.dim), None)
    piece = np.zeros_like(rank) if at is None else parts.pop(at)
    rest = [f for i, (_, f) in enumerate(ints) if i != at]
    column = np.ravel_multi_index(tuple(parts), tuple(rest)) if rest else np.zeros_like(rank)
    return rank, piece, np.asarray(column)


def _to_heads(rank: Columns, piece: Columns, column: Columns, held: Columns) -> tuple[Section, ...] | None:
    """All tokens in natural order, from whoever holds them; each rank its part of every section.

    ``held[r]``: the chunks of a document that rank r holds."""
    cp = held.shape[0]
    if not (_in_order(rank, piece, held) and (column == column[:, :1]).all()):
        return None
    of_rank, at, found = column[:, 0], 0, []
    ranks = np.arange(cp)[:, None]
    while at < of_rank.shape[1]:
        part = int(of_rank[1, at] - of_rank[0, at]) if cp > 1 else of_rank.shape[1] - at
        start = int(of_rank[0, at])
        wanted = start + ranks * part + np.arange(part)
        if part <= 0 or not np.array_equal(of_rank[:, at : at + part], wanted):
            return None
        found.append(Section(start, part * cp))
        at += part
    return tuple(found)


def _in_order(rank: Columns, piece: Columns, held: Columns) -> bool:
    """Are these all chunks of a document, from whoever holds them?"""
    owner, place = np.unravel_index(np.argsort(held, axis=None), held.shape)
    return bool((rank == owner[None, :, None]).all() and (piece == place[None, :, None]).all())


def _gathered(rank: Columns, piece: Columns, column: Columns, held: Columns) -> tuple[Section, ...] | None:
    """All tokens in natural order, the same columns on every rank."""
    if not (_in_order(rank, piece, held) and (column == column[:1, :1]).all()):
        return None
    columns = column[0, 0]
    ends = [*(np.flatnonzero(np.diff(columns) != 1) + 1), columns.size]
    starts = [0, *ends[:-1]]
    return tuple(Section(int(columns[a]), int(b - a)) for a, b in zip(starts, ends, strict=True))


def _to_tokens(rank: Columns, piece: Columns, column: Columns, held: Columns) -> tuple[Section, ...] | None:
    """The chunks that this rank holds, with the parts of every section from all ranks."""
    cp = held.shape[0]
    if (
        not (piece == held[:, :, None]).all()
        or not (rank == rank[:1, :1]).all()
        or not (column == column[:1, :1]).all()
    ):
        return None
    owner, of_rank, at, found = rank[0, 0], column[0, 0], 0, []
    while at < owner.size:
        other = np.flatnonzero(owner[at:] != 0)
        part = int(other[0]) if other.size else owner.size - at
        if part == 0:
            return None
        block = slice(at, at + part * cp)
        start = int(of_rank[at])
        if not np.array_equal(owner[block], np.repeat(np.arange(cp), part)):
            return None
        if not np.array_equal(of_rank[block], np.tile(start + np.arange(part), cp)):
            return None
        found.append(Section(start, part * cp))
        at += part * cp
    return tuple(found)
