"""A roll that passes gradients on through functions that only exchange the slots at the ends of shards.

    class FromBefore(torch.autograd.Function):    # forward: sends its slot to the next rank, returns the one before
        ...                                       # backward: sends the gradient back
    rolled = torch.cat([FromBefore.apply(document[-1:]), document[:-1]])

The slots that stay on the rank have their gradients by autograd itself, as long as nothing is detached. What is proven
here is the rest: the function is given the slot that a neighbour needs; its backward sends the gradient of what it has
received to where that came from, and returns what comes back for the slot that was sent, or zeros at the end of the
row. Shards of one piece only, with messages that do not go around.
"""

from __future__ import annotations

from passes.fuse_boundary_exchange.canonical import Group, Matched
from passes.fuse_boundary_exchange.functions import Halo, gradient, is_nothing
from passes.fuse_boundary_exchange.machine import Machine
from passes.fuse_boundary_exchange.values import ZERO, Constant, Own, Received, Run
from passes.refused import Refused


def passes_gradients(machine: Machine, found: Matched, group: Group) -> bool:
    """Does a function exchange the slots of this roll, and their gradients the other way? Raises `Refused` if it does
    something else with these."""
    field = found.field
    form = machine.form
    slot = ZERO if field.shift < 0 else form.whole.plus(form.sent, -1)
    given = (Run(form.sent, Own(field.node, field.dim, slot)),)
    halos = [halo for halo in machine.halos if halo.given == given]
    if form.chunks != 1 or machine.detaches or len(halos) != 1:
        return False
    (halo,) = halos
    if not set(found.received.values()) <= halo.messages or not _returns(machine, halo, group, field.shift):
        raise Refused(
            "message-gradient", "the backward of an autograd.Function is not the way back", halo.function.node
        )
    return True


def _returns(machine: Machine, halo: Halo, group: Group, shift: int) -> bool:
    ran, place, back = gradient(machine, halo.function, halo.result)
    to, source = (group.previous, group.following) if shift > 0 else (group.following, group.previous)
    sends = [(message.peer, message.what) for message in ran.messages if message.sends]
    receives = [message for message in ran.messages if not message.sends]
    wanted = [] if to is None else [(to, (Run(machine.form.sent, Own(place, halo.result.dim or -1, ZERO)),))]
    groups = {message.group for message in machine.messages}
    if sends != wanted or not {message.group for message in ran.messages} <= groups:
        return False
    runs = ran.read(back, halo.function.node)
    if source is None:
        what = runs[0].what if len(runs) == 1 else None
        return not receives and isinstance(what, Constant) and is_nothing(what)
    known = [message.peer for message in receives] == [source]
    return known and runs == (Run(machine.form.sent, Received(receives[0].number)),)
