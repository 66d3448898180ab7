"""Shifts of a row of which a context-parallel group holds zigzag shards (``packpass.packed(..., cp_group=group)``).

The next token of a chunk's last one is on another rank, so the naive shift of a shard is wrong there and at the ends of
documents. Both are right after `cp_packed_roll`, which all shifts of a graph share (`passes.compose_rolls`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import fx

from packpass._compat import process_group_of
from packpass.layout import Packing
from packpass.ops._cp_packed_roll import LONGEST
from packpass.semantics import example
from passes.cp_rolls import CP_ROLL
from passes.pack_shifts.interpret import Found
from passes.pack_shifts.values import Left

CUT = Left(
    "sharded-row",
    "the row is one rank's shard of a context-parallel group, and cutting it drops a token whose target is on another "
    "rank; shift without cutting: labels = torch.roll(labels, -1, -1); labels[..., -1] = -100",
)


class Shards(NamedTuple):
    """Who holds the row: a process group by name, its size, and this rank's place in it."""

    group: str
    size: int
    rank: int


def shards_of(packing: Packing) -> Shards | None:
    """None if the row is whole: declared without a group, or with a group of one."""
    if not packing.cp_group:
        return None
    group = process_group_of(packing.cp_group)
    return Shards(packing.cp_group, group.size(), group.rank()) if group.size() > 1 else None


def refused_shards(found: Found) -> Left | None:
    """Why this shift of a shard is left alone; None also for rows that are whole."""
    shards = shards_of(found.packing)
    if shards is None:
        return None
    reason = None
    if shards.rank < 0:
        reason = "this rank is not in the group that holds the shards"
    elif found.shift.dropped:
        return CUT
    elif found.packing.padded is not None:
        reason = (
            "the row is one rank's shard of documents with padded slots; declare cu_seqlens alone, with the padded "
            "boundaries, if the padded slots hold values that the loss ignores"
        )
    elif abs(found.shift.by) > LONGEST:
        reason = f"shards are shifted by at most {LONGEST} slots, for neighbours have to send them"
    elif example(found.shift.source.node).dtype is torch.complex128:
        reason = "shards of complex128 cannot be exchanged; use torch.view_as_real"
    return None if reason is None else Left("sharded-row", reason)


def roll_shards(
    call: Callable[..., fx.Node], shards: Shards, row: fx.Node, cu: fx.Node, shift: int, dim: int, fill: Any
) -> fx.Node:
    """The nodes of one `cp_packed_roll`; ``fill`` None wraps around every document."""
    fills, wraps = [0 if fill is None else fill], [fill is None]
    outs = call(CP_ROLL, [row], cu, [0], [shift], [dim], fills, wraps, *shards, None, None, True)
    return call(operator.getitem, outs, 0)
