"""What a shard needs from the other shards for a roll, and the one exchange that brings it.

``halves`` is the number of chunks of a document on one rank: 2 in a zigzag, 1 where shards are of one piece.

A *window* of a chunk is the run of slots of its document right before it (``before`` of them, for shifts to the right)
followed by the run right behind it (``behind``, for shifts to the left). Where documents are short a window spans
several chunks of several ranks. Every rank sends to every rank its own slots at the places where the window's slots
would lie in its shard; that is the same list on all ranks, so the receiver takes each slot from the rank that owns it.

Per document there are N + 1 entries, see `_segment_geometry`. Documents without slots, and the last entry, stand for
the first document that has some: what is computed for it twice is equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packpass.ops._arguments import Scalar
from packpass.ops._bits import CARRIER, as_bits, fill_bits
from packpass.ops._cp_group import SENT, exchange
from packpass.ops._geometry import read

INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


class Shards(NamedTuple):
    """Chunks of a group, int64 ``[N+1]`` each: where documents start in a shard, and how long a chunk is."""

    starts: Tensor
    lengths: Tensor


class Sources(NamedTuple):
    """Slots named by their position in a document, all of one shape: the rank that owns each, its slot there, and
    whether it lies in the document at all (otherwise it is the slot that a roll around the document would read)."""

    rank: Tensor
    slot: Tensor
    exists: Tensor


def chunk_edges(cu_seqlens: Tensor, group_size: int, halves: int = 2) -> Tensor:
    """Boundaries of a shard's chunks, int64 ``[halves * (N + 1)]``; the last ones are those of an empty document."""
    starts = cu_seqlens.long() // group_size
    if halves == 1:
        return starts
    return torch.stack([starts, starts + _lengths(cu_seqlens, group_size, halves)], 1).flatten()


def _lengths(cu_seqlens: Tensor, group_size: int, halves: int) -> Tensor:
    cu = cu_seqlens.long()
    last = cu.shape[0] - 1
    following = (torch.arange(last + 1, device=cu.device) + 1).clamp(max=last)
    return (cu.index_select(0, following) - cu) // (halves * group_size)


def shards_of(cu_seqlens: Tensor, group_size: int, halves: int = 2) -> Shards:
    lengths = _lengths(cu_seqlens, group_size, halves)
    filled = lengths > 0
    entries = torch.arange(lengths.shape[0], device=lengths.device)
    stand_in = torch.where(filled, entries, filled.long().argmax(0))
    starts = cu_seqlens.long() // group_size
    return Shards(starts.index_select(0, stand_in), lengths.index_select(0, stand_in))


def locate(positions: Tensor, shards: Shards, group_size: int, halves: int = 2) -> Sources:
    """Where slots of documents lie.

    Args:
        positions: int64 ``[..., N+1, k]``: counted from the start of the document, may lie outside of it.
    """
    starts, lengths = shards.starts.unsqueeze(1), shards.lengths.unsqueeze(1)
    whole = halves * group_size * lengths
    exists = (positions >= 0) & (positions < whole)
    # The floor, so that a position before the document wraps to its end; documents exist or all are empty.
    inside = positions.remainder(whole.clamp(min=1))
    one = lengths.clamp(min=1)
    chunk = inside // one
    second = chunk >= group_size
    rank = torch.where(second, 2 * group_size - 1 - chunk, chunk)
    return Sources(rank, starts + torch.where(second, one, 0) + inside % one, exists)


def window_positions(
    ranks: Tensor, shards: Shards, group_size: int, before: int, behind: int, halves: int = 2
) -> Tensor:
    """Positions in their document of the slots of all windows of some ranks, int64
    ``[ranks, halves, N+1, before+behind]``.

    Args:
        ranks: int64 ``[ranks]``.
    """
    chunk = torch.stack([ranks, 2 * group_size - 1 - ranks][:halves], 1).view(-1, halves, 1, 1)
    length = shards.lengths.unsqueeze(1)
    place = torch.arange(before + behind, device=ranks.device)
    return chunk * length + torch.where(place < before, place - before, length + place - before)


def exchange_windows(
    rows: list[Tensor],
    sent: Tensor,
    outside: Tensor,
    group: str,
    group_size: int,
    ends: list[dict[int, Scalar | None]] | None = None,
) -> list[Tensor]:
    """Bring what all ranks hold of this rank's windows, for every field at once.

    Args:
        rows: ``[T / cp, ...]``, packed dimension first, at least one slot.
        sent, outside: as of `packpass.ops._cp_roll_slots.RollSlots`.
        ends: for each field what this rank sends for slots outside of a document: by shift, for those that a roll by it
            brings in and no shorter one does; None for what is there.

    Returns:
        For each field ``[group_size * halves * (N + 1) * (before + behind), ...]``: by owner, chunk, document and
        place.
    """
    taken = [read(row, 0, sent) for row in rows]
    if ends is not None:
        taken = [_with_ends(t, outside, fills) for t, fills in zip(taken, ends, strict=True)]
    if len(rows) == 1:
        return [exchange(taken[0].view(group_size, -1), group, group_size).view(taken[0].shape)]
    mixed = len({row.dtype for row in rows}) > 1 or rows[0].dtype not in SENT
    parts = [(_as_words(t) if mixed else t).reshape(group_size, -1) for t in taken]
    received = exchange(torch.cat(parts, 1), group, group_size)
    halos = received.split_with_sizes([part.shape[1] for part in parts], 1)
    return [
        (_from_words(halo, t.dtype) if mixed else halo).reshape(t.shape) for halo, t in zip(halos, taken, strict=True)
    ]


def _with_ends(taken: Tensor, outside: Tensor, fills: dict[int, Scalar | None]) -> Tensor:
    known = bits = as_bits(taken)
    for shift in sorted(fills, key=abs, reverse=True):
        reached = (outside > 0) & (outside <= shift) if shift > 0 else (outside < 0) & (outside >= shift)
        here, fill = reached.view([-1] + [1] * (bits.dim() - 1)), fills[shift]
        filled = known if fill is None else fill_bits(fill, taken.dtype, taken.device)
        bits = torch.where(here, filled, bits)
    return bits.view(taken.dtype)


def _as_words(x: Tensor) -> Tensor:
    """The bits of any value as int64; complex128 does not fit."""
    if x.dtype in INTEGERS:
        return x.long()
    return x.view(CARRIER[x.dtype.itemsize]).long()


def _from_words(words: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype in INTEGERS:
        return words.to(dtype)
    return words.to(CARRIER[dtype.itemsize]).view(dtype)
