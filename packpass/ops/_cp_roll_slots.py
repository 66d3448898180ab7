"""``cp_roll_slots`` (internal): which slots a roll over shards sends, and which it patches with what it gets.

These depend on the boundaries and the shifts alone, not on what is rolled, so that one op computes them for all fields
and depths of a graph; inlined into every roll they were most of what was lowered and generated where many fields are
rolled. It is a few operations on ``[N+1]``; in host memory `_cp_roll_host` needs none of it.

The words are those of `_cp_halo`: windows of ``before + behind`` slots around every chunk, in the order ``[rank, chunk,
document, place]``; ``halves`` is 2 for zigzag shards, 1 for shards of one piece.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from packpass.ops._cp_halo import Shards, locate, shards_of, window_positions
from packpass.ops._library import define
from packpass.ops._roll_slots import NARROW


class Patches(NamedTuple):
    """Slots of this rank's chunks whose source lies in another chunk, int64
    ``[halves * (N + 1) * |shift|]``. Entries that a
    short chunk has no slot for repeat another entry of the same chunk.

    What only tells cases apart is ``NARROW``: code that patches by it is generated without vectors, which computed
    slots have no use for, and a C++ compiler takes a third of the time for it."""

    slots: Tensor
    taken: Tensor
    """Where the values lie among the windows of all ranks."""
    absent: Tensor
    """1 where the source lies outside of the document, unless who holds the document's end sends it; int16."""


class RollSlots(NamedTuple):
    """What `cp_roll_slots_op` returns, by name."""

    sent: Tensor
    """The slots of this rank that every rank's windows take, int64
    ``[group_size * halves * (N + 1) * width]``."""
    outside: Tensor
    """How far outside of its document each lies: -1 is the slot right behind it, 1 the one right before it, 0 none;
    int16."""
    patches: dict[int, Patches]
    """By shift, without 0."""


def reach(shifts: list[int]) -> tuple[int, int]:
    """Slots before and behind a chunk that its windows hold."""
    return max(0, *shifts, 0), max(0, *(-k for k in shifts), 0)


def roll_slots(
    cu_seqlens: Tensor, local: int, group_size: int, rank: int, shifts: list[int], ends_sent: bool, halves: int = 2
) -> RollSlots:
    """`RollSlots` for these shifts; ``ends_sent`` says that the ranks which hold the ends of documents send what slots
    there get: rank 0 in a zigzag, rank 0 and the last one for shards of one piece."""
    moving = sorted({k for k in shifts if k != 0})
    sent, outside, *rest = cp_roll_slots_op(cu_seqlens, local, group_size, rank, moving, ends_sent, halves)
    return RollSlots(sent, outside, {k: Patches(*rest[3 * i : 3 * i + 3]) for i, k in enumerate(moving)})


def _kernel(
    cu_seqlens: Tensor, local: int, group_size: int, rank: int, shifts: list[int], ends_sent: bool, halves: int = 2
) -> list[Tensor]:
    shards = shards_of(cu_seqlens, group_size, halves)
    before, behind = reach(shifts)
    ranks = torch.arange(group_size, device=cu_seqlens.device)
    positions = window_positions(ranks, shards, group_size, before, behind, halves)
    sent = locate(positions, shards, group_size, halves).slot.clamp(0, local - 1)
    whole = halves * group_size * shards.lengths.unsqueeze(1)
    behind_it = torch.where(positions < whole, 0, whole - 1 - positions)
    outside = torch.where(positions < 0, -positions, behind_it) * (whole > 0)
    found = [sent, outside.to(NARROW)]
    for shift in shifts:
        found += _patches(shards, local, (group_size, rank, halves), shift, (before, behind), ends_sent)
    return [table.flatten() for table in found]


def _patches(
    shards: Shards, local: int, place: tuple[int, int, int], shift: int, around: tuple[int, int], ends_sent: bool
) -> Patches:
    (group_size, rank, halves), (before, behind), count = place, around, abs(shift)
    device = shards.starts.device
    length = shards.lengths.unsqueeze(1)
    steps = torch.arange(count, device=device)
    # [N+1, count]: the slot within its chunk, and the place of its source in the chunk's window.
    if shift < 0:
        offset = (length - count + steps).clamp(min=0)
        window = before + offset + count - length
    else:
        offset = torch.minimum(steps, (length - 1).clamp(min=0))
        window = before - count + offset
    half = torch.arange(halves, device=device).view(halves, 1, 1)
    chunk = torch.where(half == 0, rank, 2 * group_size - 1 - rank)
    position = chunk * length + offset - shift
    source = locate(position, shards, group_size, halves)
    filled = length > 0
    documents = shards.starts.shape[0]
    document = torch.arange(documents, device=device).view(-1, 1)
    width = before + behind
    ending = torch.where(position < 0, 0, group_size - 1) if halves == 1 else 0
    owner = torch.where(source.exists, source.rank, ending) if ends_sent else source.rank
    # Where no document has slots, a slot takes itself from what this rank has sent to itself.
    owner = torch.where(filled, owner, rank)
    taken = ((owner * halves + half) * documents + document) * width + window.clamp(0, width - 1)
    slots = (shards.starts.unsqueeze(1) + half * length + offset).clamp(0, local - 1)
    absent = torch.zeros_like(filled) if ends_sent else ~source.exists & filled
    return Patches(slots, taken, absent.expand(slots.shape).to(NARROW))


def _fake(
    cu_seqlens: Tensor, local: int, group_size: int, rank: int, shifts: list[int], ends_sent: bool, halves: int = 2
) -> list[Tensor]:
    documents, width = cu_seqlens.shape[0], sum(reach(shifts))
    tables = [(halves * group_size * documents * width, dtype) for dtype in (torch.int64, NARROW)]
    tables += [(halves * documents * abs(k), dtype) for k in shifts for dtype in (torch.int64, torch.int64, NARROW)]
    return [cu_seqlens.new_empty((size,), dtype=dtype) for size, dtype in tables]


cp_roll_slots_op = define(
    "cp_roll_slots(Tensor cu_seqlens, SymInt local, int group_size, int rank, int[] shifts, bool ends_sent, "
    "int halves=2) -> Tensor[]",
    fake=_fake,
    kernel=_kernel,
    decomposition=_kernel,
)
