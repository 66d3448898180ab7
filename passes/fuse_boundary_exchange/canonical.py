"""The proof: what one rank keeps, sends and receives is its part of a roll of shards by one slot.

Rank r of a group holds chunks r (front) and 2 cp - 1 - r (back) of every document. For a roll by -1 every slot takes
the one behind it, so that only the last slot of either chunk comes from somewhere else::

    front's last slot:  front's first slot of rank r + 1;  on the last rank, of its own back chunk
    back's last slot:   back's first slot of rank r - 1;   on rank 0 the document ends: a fill (or its own first slot)

and a roll by +1 is the same from the other end. Shards of one piece are one chunk, whose last slot comes from the
first one of rank r + 1; on the last rank the document ends. If the program of every rank does this for its own rank,
all of them together roll the whole row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import fx

from passes.fuse_boundary_exchange.machine import Machine, Message
from passes.fuse_boundary_exchange.values import (
    HALF,
    ONE,
    UNKNOWN,
    ZERO,
    Constant,
    Int,
    Own,
    Received,
    Run,
    cut,
    normal,
    number,
)
from passes.refused import Refused

SHARDS = (2, 1)
"""Chunks of a document on one rank: of a zigzag, and of shards of one piece."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The ranks that hold the shards: the group's name, its global ranks in order, this process's place."""

    name: str
    ranks: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def following(self) -> int | None:
        """Global rank of the next one, None on the last."""
        return self.ranks[self.rank + 1] if self.rank + 1 < self.size else None

    @property
    def previous(self) -> int | None:
        return self.ranks[self.rank - 1] if self.rank else None


@dataclasses.dataclass(frozen=True)
class Field:
    """What is rolled: an outer row, by one slot either way; ``fill`` is None for a roll around the document."""

    node: fx.Node
    dim: int
    shift: int
    fill: Constant | None
    differentiable: bool = False
    """Does an ``autograd.Function`` roll gradients back?"""
    one_too_many: bool = False
    """Has the rolled document one slot where there is none, unless the messages fail?"""


@dataclasses.dataclass(frozen=True)
class Open:
    """A slot of a chunk whose value comes from another chunk."""

    at: Int
    source: int | None
    """Global rank that sends it, None if no rank does."""
    own: Int | None
    """Without a sender: this rank's slot that a roll around the document puts there; None if another rank has it."""
    ends: bool
    """Does the document end here? Then a fill may take the slot's place."""


def open_slots(group: Group, shift: int, halves: int) -> tuple[Open, ...]:
    """By the definition above."""
    before, behind = group.previous, group.following
    whole = Int(half=halves)
    last = whole.plus(ONE, -1)
    if halves == 1:
        at, source = (last, behind) if shift < 0 else (ZERO, before)
        return (Open(at, source, None, source is None),)
    front_last = HALF.plus(ONE, -1)
    if shift < 0:
        return Open(front_last, behind, HALF, False), Open(last, before, ZERO, before is None)
    return Open(ZERO, before, last, before is None), Open(HALF, behind, front_last, False)


def sent_slots(group: Group, shift: int, halves: int) -> list[tuple[int, Int]]:
    """(Global rank, own slot that it needs), by the same definition."""
    before, behind = group.previous, group.following
    last = Int(half=halves).plus(ONE, -1)
    if halves == 1:
        pairs = [(before, ZERO)] if shift < 0 else [(behind, last)]
    else:
        front_last = HALF.plus(ONE, -1)
        pairs = [(before, ZERO), (behind, HALF)] if shift < 0 else [(behind, front_last), (before, last)]
    return [(peer, slot) for peer, slot in pairs if peer is not None]


@dataclasses.dataclass
class Matched:
    """A field and the messages that bring its open slots: global rank -> number."""

    field: Field
    received: dict[int, tuple[int, int]]


def match(runs: tuple[Run, ...], group: Group, halves: int, node: fx.Node | None) -> Matched:
    """The roll that a document's new slots are; refuses anything else."""
    reasons = []
    for shift in (-1, 1):
        try:
            return _match(runs, group, shift, halves, node)
        except Refused as refused:
            reasons.append(refused)
    raise reasons[0]


def _match(runs: tuple[Run, ...], group: Group, shift: int, halves: int, node: fx.Node | None) -> Matched:
    slots = open_slots(group, shift, halves)
    starts, stops = [ZERO, *(s.at.plus(ONE) for s in slots)], [*(s.at for s in slots), Int(half=halves)]
    kept = [(start, stop, cut(runs, start, stop, node)) for start, stop in zip(starts, stops, strict=True)]
    rows = {(run.what.node, run.what.dim) for *_, part in kept for run in part if isinstance(run.what, Own)}
    if len(rows) != 1:
        raise Refused("not-a-roll", "a document's new slots are not those of one rolled row", node)
    ((row, dim),) = rows
    for start, stop, part in kept:
        wanted = normal([Run(stop.plus(start, -1), Own(row, dim, start.plus(number(shift), -1)))])
        if normal(part) != wanted:
            raise Refused("not-a-roll", "a document's new slots are not its own, moved by one", node)
    fill, received = None if any(slot.ends for slot in slots) else UNKNOWN, dict[int, tuple[int, int]]()
    for slot in slots:
        (run,) = cut(runs, slot.at, slot.at.plus(ONE), node)
        if slot.source is not None:
            if not isinstance(run.what, Received):
                raise Refused("not-a-roll", f"the slot that rank {slot.source} sends is not taken from it", node)
            received[slot.source] = run.what.message
        elif slot.ends and isinstance(run.what, Constant):
            fill = run.what
        elif slot.own is None or run.what != Own(row, dim, slot.own):
            raise Refused("not-a-roll", "the slot at the end of the document is not the one that follows", node)
    return Matched(Field(row, dim, shift, fill), received)


def merged(found: Iterable[Matched]) -> list[Matched]:
    """One entry per field; two results of one field must come from the same messages."""
    fields: dict[Field, Matched] = {}
    for matched in found:
        if fields.setdefault(matched.field, matched).received != matched.received:
            raise Refused("message-order", "a slot is received twice")
    return list(fields.values())


# === Messages ================================================================================================


def check_messages(machine: Machine, found: list[Matched], group: Group) -> list[Field]:
    """Are the messages exactly those that the fields need, in one order for every peer and direction?

    Messages between two ranks pair up in the order in which each rank asks for them. One field after the other
    everywhere, they pair up as the fields do. Returns the fields in that order, those that move one way first where
    shards are of one piece, which have no messages in common with the others.
    """
    if len({message.group for message in machine.messages}) > 1:
        raise Refused("message-order", "messages of several process groups in one loop", machine.messages[-1].node)
    fields = {m.field: m for m in found}
    orders: dict[tuple[bool, int], list[Field]] = {}
    around = 0
    for message in machine.messages:
        field = _field_of(message, list(fields.values()), group, machine.halves)
        if field is None:
            around += 1
        else:
            orders.setdefault((message.sends, message.peer), []).append(field)
    order: list[Field] = []
    wanted: dict[tuple[bool, int], list[Field]] = {}
    for shift in (-1, 1) if machine.halves == 1 else (None,):
        moved = [field for field in fields if shift in (None, field.shift)]
        channels = _channels(group, shift)
        if moved and channels:
            moved = orders.get(channels[0], [])
        order += moved
        wanted |= {channel: moved for channel in channels if moved}
    if not machine.messages:
        raise Refused("not-a-roll", "nothing is sent or received")
    if orders != wanted or set(order) != set(fields):
        raise Refused(
            "message-order",
            "the messages with a neighbouring rank are not one each way for every rolled tensor, in one order",
            machine.messages[0].node,
        )
    if len(order) != len(fields) or around not in (0, len(fields)):
        raise Refused("message-order", "a slot is sent or received twice", machine.messages[0].node)
    return order


def _channels(group: Group, shift: int | None) -> list[tuple[bool, int]]:
    """Does this rank send (else receive), and with which peer? ``shift`` None: both ways, for zigzag shards."""
    if shift is None:
        peers = [peer for peer in (group.previous, group.following) if peer is not None]
        return [(sends, peer) for sends in (True, False) for peer in peers]
    to, source = (group.previous, group.following) if shift < 0 else (group.following, group.previous)
    return [(sends, peer) for sends, peer in ((True, to), (False, source)) if peer is not None]


def _field_of(message: Message, found: list[Matched], group: Group, halves: int) -> Field | None:
    """Whose message this is; None for one around the ring, which the rank at the end does not look at."""
    for matched in found:
        field = matched.field
        if message.sends:
            needed = [
                (peer, (Run(ONE, Own(field.node, field.dim, slot)),))
                for peer, slot in sent_slots(group, field.shift, halves)
            ]
            if (message.peer, message.what) in needed:
                return field
        elif matched.received.get(message.peer) == message.number:
            return field
    if halves == 1 and _around(message, found, group):
        return None
    what = "sent to" if message.sends else "received from"
    raise Refused("not-a-roll", f"what is {what} rank {message.peer} is not what a roll by one needs", message.node)


def _around(message: Message, found: list[Matched], group: Group) -> bool:
    """Everybody sends to one side, the rank at one end to that at the other end, which fills the slot: nothing of what
    it receives is left."""
    shifts = {matched.field.shift for matched in found}
    if len(shifts) != 1:
        return False
    (shift,) = shifts
    slot = ZERO if shift < 0 else Int(half=1).plus(ONE, -1)
    known = {(Run(ONE, Own(matched.field.node, matched.field.dim, slot)),) for matched in found}
    first, last = (group.previous, group.following) if shift < 0 else (group.following, group.previous)
    end = group.ranks[-1 if shift < 0 else 0] if message.sends else group.ranks[0 if shift < 0 else -1]
    fits = message.what in known if message.sends else True
    return (first if message.sends else last) is None and message.peer == end and fits
