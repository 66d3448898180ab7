"""The proof: what one rank keeps, sends and receives is its part of a roll of zigzag shards by one slot.

Rank r of a group holds chunks r (front) and 2 cp - 1 - r (back) of every document. For a roll by -1 every slot takes
the one behind it, so that only the last slot of either chunk comes from somewhere else::

    front's last slot:  front's first slot of rank r + 1;  on the last rank, of its own back chunk
    back's last slot:   back's first slot of rank r - 1;   on rank 0 the document ends: a fill (or its own first slot)

and a roll by +1 is the same from the other end. If the program of every rank does this for its own rank, all of them
together roll the whole row.
"""

from __future__ import annotations

import dataclasses

from torch import fx

from passes.fuse_boundary_exchange.machine import Machine, Message
from passes.fuse_boundary_exchange.values import (
    HALF,
    ONE,
    WHOLE,
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


UNKNOWN = Constant(0, "unknown")
"""The fill on all ranks but the first, which alone holds the ends of documents."""


@dataclasses.dataclass(frozen=True)
class Field:
    """What is rolled: an outer row, by one slot either way; ``fill`` is None for a roll around the document."""

    node: fx.Node
    dim: int
    shift: int
    fill: Constant | None


@dataclasses.dataclass(frozen=True)
class Open:
    """A slot of a chunk whose value comes from another chunk."""

    at: Int
    source: int | None
    """Global rank that sends it, None if no rank does."""
    own: Int
    """Without a sender: this rank's slot that a roll around the document puts there."""
    ends: bool
    """Does the document end here (on the first rank)? Then a fill may take the slot's place."""


def open_slots(group: Group, shift: int) -> tuple[Open, Open]:
    """By the definition above."""
    before, behind = group.previous, group.following
    front_last, back_last = HALF.plus(ONE, -1), WHOLE.plus(ONE, -1)
    if shift < 0:
        return Open(front_last, behind, HALF, False), Open(back_last, before, ZERO, before is None)
    return Open(ZERO, before, back_last, before is None), Open(HALF, behind, front_last, False)


def sent_slots(group: Group, shift: int) -> list[tuple[int, Int]]:
    """(Global rank, own slot that it needs), by the same definition."""
    before, behind = group.previous, group.following
    front_last, back_last = HALF.plus(ONE, -1), WHOLE.plus(ONE, -1)
    pairs = [(before, ZERO), (behind, HALF)] if shift < 0 else [(behind, front_last), (before, back_last)]
    return [(peer, slot) for peer, slot in pairs if peer is not None]


@dataclasses.dataclass
class Matched:
    """A field and the messages that bring its open slots: global rank -> number."""

    field: Field
    received: dict[int, tuple[int, int]]


def match(runs: tuple[Run, ...], group: Group, node: fx.Node | None) -> Matched:
    """The roll that a document's new slots are; refuses anything else."""
    reasons = []
    for shift in (-1, 1):
        try:
            return _match(runs, group, shift, node)
        except Refused as refused:
            reasons.append(refused)
    raise reasons[0]


def _match(runs: tuple[Run, ...], group: Group, shift: int, node: fx.Node | None) -> Matched:
    first, second = open_slots(group, shift)
    stretches = [(ZERO, first.at), (first.at.plus(ONE), second.at), (second.at.plus(ONE), WHOLE)]
    kept = [(start, cut(runs, start, stop, node)) for start, stop in stretches]
    rows = {(run.what.node, run.what.dim) for _, part in kept for run in part if isinstance(run.what, Own)}
    if len(rows) != 1:
        raise Refused("not-a-roll", "a document's new slots are not those of one rolled row", node)
    ((row, dim),) = rows
    for (start, part), (_, stop) in zip(kept, stretches, strict=True):
        wanted = normal([Run(stop.plus(start, -1), Own(row, dim, start.plus(number(shift), -1)))])
        if normal(part) != wanted:
            raise Refused("not-a-roll", "a document's new slots are not its own, moved by one", node)
    fill, received = UNKNOWN if group.rank else None, dict[int, tuple[int, int]]()
    for slot in (first, second):
        (run,) = cut(runs, slot.at, slot.at.plus(ONE), node)
        if slot.source is not None:
            if not isinstance(run.what, Received):
                raise Refused("not-a-roll", f"the slot that rank {slot.source} sends is not taken from it", node)
            received[slot.source] = run.what.message
        elif slot.ends and isinstance(run.what, Constant):
            fill = run.what
        elif run.what != Own(row, dim, slot.own):
            raise Refused("not-a-roll", "the slot at the end of the zigzag is not the one that follows", node)
    return Matched(Field(row, dim, shift, fill), received)


def check_messages(machine: Machine, found: list[Matched], group: Group) -> list[Field]:
    """Are the messages exactly those that the fields need, in one order for every peer and direction?

    Messages between two ranks pair up in the order in which each rank asks for them. One field after the other
    everywhere, they pair up as the fields do. Returns the fields in that order.
    """
    if len({message.group for message in machine.messages}) > 1:
        raise Refused("message-order", "messages of several process groups in one loop", machine.messages[-1].node)
    orders: dict[tuple[bool, int], list[Field]] = {}
    fields = {m.field: m for m in found}
    for message in machine.messages:
        orders.setdefault((message.sends, message.peer), []).append(_field_of(message, list(fields.values()), group))
    peers = [peer for peer in (group.previous, group.following) if peer is not None]
    order = next(iter(orders.values()))
    wanted = {(sends, peer) for sends in (True, False) for peer in peers}
    if set(orders) != wanted or any(other != order for other in orders.values()) or len(set(order)) != len(fields):
        raise Refused(
            "message-order",
            "the messages with a neighbouring rank are not one each way for every rolled tensor, in one order",
            machine.messages[0].node,
        )
    if len(order) != len(fields):
        raise Refused("message-order", "a slot is sent or received twice", machine.messages[0].node)
    return order


def _field_of(message: Message, found: list[Matched], group: Group) -> Field:
    for matched in found:
        field = matched.field
        if message.sends:
            needed = [
                (peer, (Run(ONE, Own(field.node, field.dim, slot)),)) for peer, slot in sent_slots(group, field.shift)
            ]
            if (message.peer, message.what) in needed:
                return field
        elif matched.received.get(message.peer) == message.number:
            return field
    what = "sent to" if message.sends else "received from"
    raise Refused("not-a-roll", f"what is {what} rank {message.peer} is not what a roll by one needs", message.node)
