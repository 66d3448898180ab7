"""The proof: what one rank keeps, sends and receives is its part of a roll of shards, by one slot or a few.

Rank r of a group holds chunks r (front) and 2 cp - 1 - r (back) of every document. For a roll by -1 every slot takes
the one behind it, so that only the last slot of either chunk comes from somewhere else::

    front's last slot:  front's first slot of rank r + 1;  on the last rank, of its own back chunk
    back's last slot:   back's first slot of rank r - 1;   on rank 0 the document ends: a fill (or its own first slot)

and a roll by +1 is the same from the other end. Shards of one piece are one chunk, whose last slot comes from the
first one of rank r + 1; on the last rank the document ends. A roll by k slots is the same with k slots for each, where
every chunk has so many; what a message of more slots brings is enough for it. If the program of every rank does this
for its own rank, all of them together roll the whole row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from torch import fx

from passes.fuse_boundary_exchange.machine import Machine, Message
from passes.fuse_boundary_exchange.values import (
    UNKNOWN,
    ZERO,
    Constant,
    Form,
    Int,
    Own,
    Received,
    Run,
    cut,
    normal,
    number,
)
from passes.refused import Refused

SHARDS = (Form(2), Form(1))
"""Of a zigzag, and of shards of one piece."""


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
    """What is rolled: an outer row, either way by as many slots as a message has, or fewer; ``fill`` is None for a roll
    around the document."""

    node: fx.Node
    dim: int
    shift: int
    fill: Constant | None
    differentiable: bool = False
    """Does an ``autograd.Function`` roll gradients back?"""
    one_too_many: bool = False
    """Has the rolled document one slot where there is none, unless the messages fail?"""

    @property
    def source(self) -> Source:
        return Source(self.node, self.dim, self.shift > 0)


@dataclasses.dataclass(frozen=True)
class Source:
    """The row whose slots a message has, and which way they go: one message for all rolls of it."""

    node: fx.Node
    dim: int
    onwards: bool


@dataclasses.dataclass(frozen=True)
class Open:
    """Slots of a chunk, as many as a roll moves them by, whose values come from another chunk."""

    at: Int
    source: int | None
    """Global rank that sends it, None if no rank does."""
    own: Int | None
    """Without a sender: this rank's slots that a roll around the document puts there; None if another rank has them."""
    ends: bool
    """Does the document end here? Then a fill may take the slot's place."""


def open_slots(group: Group, shift: int, form: Form) -> tuple[Open, ...]:
    """By the definition above."""
    before, behind = group.previous, group.following
    few = number(abs(shift))
    last = form.whole.plus(few, -1)
    if form.chunks == 1:
        at, source = (last, behind) if shift < 0 else (ZERO, before)
        return (Open(at, source, None, source is None),)
    front_last = form.chunk.plus(few, -1)
    if shift < 0:
        return Open(front_last, behind, form.chunk, False), Open(last, before, ZERO, before is None)
    return Open(ZERO, before, last, before is None), Open(form.chunk, behind, front_last, False)


def sent_slots(group: Group, onwards: bool, form: Form) -> list[tuple[int, Int]]:
    """(Global rank, first of the own slots that it needs), by the same definition; ``onwards`` for a roll by +k."""
    before, behind = group.previous, group.following
    last = form.whole.plus(form.sent, -1)
    if form.chunks == 1:
        pairs = [(behind, last)] if onwards else [(before, ZERO)]
    else:
        front_last = form.chunk.plus(form.sent, -1)
        pairs = [(behind, front_last), (before, last)] if onwards else [(before, ZERO), (behind, form.chunk)]
    return [(peer, slot) for peer, slot in pairs if peer is not None]


@dataclasses.dataclass
class Matched:
    """A field and the messages that bring its open slots: global rank -> number."""

    field: Field
    received: dict[int, tuple[int, int]]


def match(runs: tuple[Run, ...], group: Group, form: Form, node: fx.Node | None) -> Matched:
    """The roll that a document's new slots are; refuses anything else."""
    reasons = []
    for few in range(1, form.width + 1):
        for shift in (-few, few):
            try:
                return _match(runs, group, shift, form, node)
            except Refused as refused:
                reasons.append(refused)
    raise reasons[0]


def _match(runs: tuple[Run, ...], group: Group, shift: int, form: Form, node: fx.Node | None) -> Matched:
    slots, few = open_slots(group, shift, form), number(abs(shift))
    nearest = ZERO if shift < 0 else form.sent.plus(few, -1)
    starts, stops = [ZERO, *(s.at.plus(few) for s in slots)], [*(s.at for s in slots), form.whole]
    kept = [(start, stop, cut(runs, start, stop, node)) for start, stop in zip(starts, stops, strict=True)]
    rows = {(run.what.node, run.what.dim) for *_, part in kept for run in part if isinstance(run.what, Own)}
    if len(rows) != 1:
        raise Refused("not-a-roll", "a document's new slots are not those of one rolled row", node)
    ((row, dim),) = rows
    for start, stop, part in kept:
        wanted = normal([Run(stop.plus(start, -1), Own(row, dim, start.plus(number(shift), -1)))])
        if normal(part) != wanted:
            raise Refused("not-a-roll", f"a document's new slots are not its own, moved by {few.const}", node)
    fill, received = None if any(slot.ends for slot in slots) else UNKNOWN, dict[int, tuple[int, int]]()
    for slot in slots:
        run, *others = normal(cut(runs, slot.at, slot.at.plus(few), node))
        if others:
            raise Refused("not-a-roll", "the slots at the end of a chunk come from more than one place", node)
        if slot.source is not None:
            if not isinstance(run.what, Received) or run.what.at != nearest:
                raise Refused("not-a-roll", f"the slot that rank {slot.source} sends is not taken from it", node)
            received[slot.source] = run.what.message
        elif slot.ends and isinstance(run.what, Constant):
            fill = run.what
        elif slot.own is None or run.what != Own(row, dim, slot.own):
            raise Refused("not-a-roll", "the slot at the end of the document is not the one that follows", node)
    if fill is None and few.const > 1:
        raise Refused("not-a-roll", "a roll around the document by several slots", node)
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
    if not machine.messages:
        raise Refused("not-a-roll", "nothing is sent or received")
    sources = _by_source(found)
    orders: dict[tuple[bool, int], list[Source]] = {}
    around = 0
    for message in machine.messages:
        source = _source_of(message, found, group, machine.form)
        if source is None:
            around += 1
        else:
            orders.setdefault((message.sends, message.peer), []).append(source)
    order: list[Source] = []
    wanted: dict[tuple[bool, int], list[Source]] = {}
    for onwards in (False, True) if machine.form.chunks == 1 else (None,):
        moved = [source for source in sources if onwards in (None, source.onwards)]
        channels = _channels(group, onwards)
        if moved and channels:
            moved = orders.get(channels[0], [])
        order += moved
        wanted |= {channel: moved for channel in channels if moved}
    if orders != wanted or set(order) != set(sources):
        raise Refused(
            "message-order",
            "the messages with a neighbouring rank are not one each way for every rolled tensor, in one order",
            machine.messages[0].node,
        )
    if len(order) != len(sources) or around not in (0, len(sources)):
        raise Refused("message-order", "a slot is sent or received twice", machine.messages[0].node)
    return [matched.field for source in order for matched in sources[source]]


def _by_source(found: list[Matched]) -> dict[Source, list[Matched]]:
    """The rolls that are made of the same messages, by how far they move."""
    sources: dict[Source, list[Matched]] = {}
    for matched in sorted(found, key=lambda one: abs(one.field.shift)):
        others = sources.setdefault(matched.field.source, [])
        shifts = [other.field.shift for other in others]
        if matched.field.shift in shifts or any(other.received != matched.received for other in others):
            raise Refused("message-order", "a slot is received twice")
        others.append(matched)
    return sources


def _channels(group: Group, onwards: bool | None) -> list[tuple[bool, int]]:
    """Does this rank send (else receive), and with which peer? ``onwards`` None: both ways, for zigzag shards."""
    if onwards is None:
        peers = [peer for peer in (group.previous, group.following) if peer is not None]
        return [(sends, peer) for sends in (True, False) for peer in peers]
    to, source = (group.following, group.previous) if onwards else (group.previous, group.following)
    return [(sends, peer) for sends, peer in ((True, to), (False, source)) if peer is not None]


def _source_of(message: Message, found: list[Matched], group: Group, form: Form) -> Source | None:
    """Whose message this is; None for one around the ring, which the rank at the end does not look at."""
    for matched in found:
        source = matched.field.source
        if message.sends:
            needed = [
                (peer, (Run(form.sent, Own(source.node, source.dim, slot)),))
                for peer, slot in sent_slots(group, source.onwards, form)
            ]
            if (message.peer, message.what) in needed:
                return source
        elif matched.received.get(message.peer) == message.number:
            return source
    if form.chunks == 1 and _around(message, found, group, form):
        return None
    what = f"{'sent to' if message.sends else 'received from'} rank {message.peer}"
    raise Refused("not-a-roll", f"what is {what} is not what a roll by {form.width} needs", message.node)


def _around(message: Message, found: list[Matched], group: Group, form: Form) -> bool:
    """Everybody sends to one side, the rank at one end to that at the other end, which fills the slot: nothing of what
    it receives is left."""
    ways = {matched.field.source.onwards for matched in found}
    if len(ways) != 1:
        return False
    (onwards,) = ways
    slot = form.whole.plus(form.sent, -1) if onwards else ZERO
    known = {(Run(form.sent, Own(matched.field.node, matched.field.dim, slot)),) for matched in found}
    first, last = (group.following, group.previous) if onwards else (group.previous, group.following)
    end = group.ranks[-1 if onwards != message.sends else 0]
    fits = message.what in known if message.sends else True
    return (first if message.sends else last) is None and message.peer == end and fits
