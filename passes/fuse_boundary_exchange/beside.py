"""Slots that are received and used beside the document (a halo): those of documents rolled in front of the loop.

Before, of shards of one piece::

    for s, e in documents:
        before = torch.zeros_like(x[s:e][:3])
        ...                                     # sends x[s:e][-3:] to the next rank, receives `before` from the last
        out.append(conv1d(torch.cat([before, x[s:e]])))

After::

    rolled = cp_packed_roll(x, shift=3)
    for s, e in documents:
        out.append(conv1d(torch.cat([rolled[s:e][:3], x[s:e]])))

Why it is safe: every message of an iteration is the slots at one end of the document's shard, on its way to the
neighbour that a roll by so many takes them to, and what is received there is what a roll brings. The n-th message to
one neighbour is received by it as the n-th, whatever rows these are of, and so are the rolls. The rank at the end of
the row receives nothing; what its program has instead are slots of a constant, with which its roll is filled. The rest
of an iteration uses nothing of the messages but these slots (`apart`). Every document with slots must have so many on
each rank, which is checked.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import statically_known_true
from packpass.semantics import example, is_tensor, storage
from packpass.semantics.bound_mixers import Pad, pad_of
from packpass.semantics.effects import changes_mode, written_inputs
from passes.building import Builder
from passes.document_loops.fission import divided_by
from passes.fuse_boundary_exchange import contents
from passes.fuse_boundary_exchange.apart import Iteration
from passes.fuse_boundary_exchange.canonical import SHARDS, Field, Group, Matched, sent_slots
from passes.fuse_boundary_exchange.decide import readings, wider
from passes.fuse_boundary_exchange.functions import is_message
from passes.fuse_boundary_exchange.halos import passes_gradients
from passes.fuse_boundary_exchange.lengths import check_lengths, check_needs, too_short
from passes.fuse_boundary_exchange.machine import Message
from passes.fuse_boundary_exchange.rules import same_rest
from passes.fuse_boundary_exchange.terms import roll_of
from passes.fuse_boundary_exchange.values import UNKNOWN, ZERO, Constant, Form, Needs, Own, Received, View
from passes.loops import LoopFound
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Halos:
    """What the messages of a loop bring: rolls, in the order of their messages, and per iteration the nodes that hold
    the slots which each of them brings."""

    group: Group
    form: Form
    sharded: bool
    """Are the boundaries those of this rank's row, not of the whole one?"""
    cu: fx.Node
    fields: tuple[Field, ...]
    held: tuple[tuple[tuple[fx.Node, ...], ...], ...]
    known: tuple[tuple[fx.Node, ...], ...]
    """Per iteration, what is understood of it."""
    padded: dict[fx.Node, Pad]
    """Of what holds these slots, the documents that are padded with them."""
    needs: Needs


def halos(loop: LoopFound, groups: Sequence[str]) -> Halos | None:
    """The messages of a loop as rolls of which only the slots that are received are used; None if they are not."""
    if len(loop.iterations) != 2 or any(changes_mode(node) for node in loop.nodes):
        return None
    forms = [form for form in (*SHARDS, *wider(loop)) if form.chunks == 1]
    for group, scale, form in readings(loop, groups, forms):
        iterations = [_Iteration(loop, which, group, scale, form) for which in (0, 1)]
        found = [halo for one in iterations if (halo := one.halos()) is not None]
        if len(found) == 2 and _form(found[0]) == _form(found[1]):
            first, second = found
            held, known = (*first.held, *second.held), (*first.known, *second.known)
            return dataclasses.replace(first, held=held, known=known, padded={**first.padded, **second.padded})
    return None


def _form(found: Halos) -> tuple[Any, ...]:
    return found.cu, found.fields, found.needs


class _Iteration(Iteration):
    """One traced iteration: complete is what slots of a neighbour, or a constant in their place, are in."""

    def __init__(self, loop: LoopFound, which: int, group: Group, scale: int, form: Form) -> None:
        super().__init__(loop, which, group, scale, form)
        self.filled = {storage(node.args[0]) for node in loop.nodes if node.target is markers.RECV} - {None}
        self.since: dict[fx.Node, fx.Node] = {}
        """What is complete, and the first node that may read it so."""
        self.padded: dict[fx.Node, Pad] = {}
        """Documents that are padded with as many slots as a message has, where a roll brings none."""
        self.at = loop.iterations[which][0]
        """The node that is looked at."""

    def halos(self) -> Halos | None:
        known = self._understood()
        try:
            self.machine.finish()
            found = self._fields()
        except Refused:
            return None
        cu, k = self.machine.boundaries or (None, 1)
        if not found or cu is None or k or not self._apart(set(known)):
            return None
        fields, held = zip(*found, strict=True)
        used = [(n, user) for nodes in held for n in nodes if n in self.since for user in n.users if user in self.rest]
        if any(user < self.since[n] for n, user in used):
            return None  # it is read before it has come
        form, sharded = self.machine.form, self.machine.scale == 1
        return Halos(self.group, form, sharded, cu, fields, (held,), (tuple(known),), self.padded, self.machine.needs)

    def _step(self, node: fx.Node) -> None:
        self.at = node
        pad = pad_of(node)
        if pad is not None and self._is_padded(node, pad):
            self.padded[node] = pad
            self._leave(node)
        elif not self._is_view_of_complete(node):
            super()._step(node)

    def _is_view_of_complete(self, node: fx.Node) -> bool:
        """Are these the same slots in another form (``received[0]`` of one), which the rest may use as well?"""
        if len(node.all_input_nodes) != 1 or written_inputs(node) or is_message(node):
            return False
        if not self._is_complete(node.all_input_nodes[0]):
            return False
        try:
            self.machine.step(node)
        except Refused:
            return False
        if not self._is_complete(node):
            del self.machine.values[node]
        return node in self.machine.values

    def _is_padded(self, node: fx.Node, pad: Pad) -> bool:
        """Is this a document with the slots of a constant in the place of those that other ranks receive?"""
        view = self.machine.values.get(pad.x)
        if not isinstance(view, View) or not self.machine.is_document(view):
            return False
        width = self.machine.form.width
        ends = {(width, 0): self.group.previous, (0, width): self.group.following}
        return pad.dim - example(node).dim() == view.dim and ends.get((pad.before, pad.after), 0) is None

    def _is_complete(self, node: fx.Node) -> bool:
        if node in self.complete:
            return True
        view, runs = self._held(node)
        if view is None or view.length != self.machine.form.sent or len(runs) != 1:
            return False
        what = runs[0].what
        if isinstance(what, Constant):
            if storage(node) is None or storage(node) in self.filled or not view.whole:
                return False
        elif not isinstance(what, Received) or what.at != ZERO:
            return False
        self.complete[node], self.since[node] = what, self.at
        return True

    # --- the rolls ------------------------------------------------------------------------------------------

    def _fields(self) -> list[tuple[Field, tuple[fx.Node, ...]]]:
        """Each roll, and the nodes that hold what it brings; raises `Refused`."""
        if len({message.group for message in self.machine.messages}) != 1:
            raise Refused("message-order", "messages of several process groups in one loop")
        width, before, behind = self.machine.form.width, self.group.previous, self.group.following
        found: list[tuple[Field, tuple[fx.Node, ...]]] = []
        for shift, to, source in ((-width, before, behind), (width, behind, before)):
            sent = [m for m in self.machine.messages if m.sends and m.peer == to and self._moves(m, shift)]
            received = [m for m in self.machine.messages if not m.sends and m.peer == source]
            if to is not None and source is not None and len(sent) != len(received):
                raise Refused("message-order", "a slot is sent or received twice")
            for pair in itertools.zip_longest(sent, received):
                found.append(self._field(shift, *pair, {node for _, held in found for node in held}))
        each = sum(peer is not None for peer in (before, behind))
        if len(self.machine.messages) != each * len(found):
            raise Refused("message-order", "a message that is none with a neighbour")
        return found

    def _moves(self, message: Message, shift: int) -> bool:
        """Is what is sent what a roll by so many slots brings to its receiver?"""
        what = message.what[0].what if len(message.what) == 1 else None
        needed = sent_slots(self.group, shift > 0, self.machine.form)
        return isinstance(what, Own) and (message.peer, what.at) in needed

    def _field(
        self, shift: int, sent: Message | None, received: Message | None, taken: set[fx.Node]
    ) -> tuple[Field, tuple[fx.Node, ...]]:
        """One roll, of the row whose slots are sent; where nothing is, of any of the same form, whose slots stay."""
        if sent is not None:
            rows = [run.what for run in sent.what if isinstance(run.what, Own)]
        else:
            rows = [Own(*memory.outer, ZERO) for memory in self.machine.memories.values() if memory.outer is not None]
        if received is not None:
            held = [n for n, what in self.complete.items() if what == Received(received.number) and self._is_used(n)]
            rows = [row for row in rows if all(self._fits(n, row) for n in held)]
        else:
            held = [n for n in self._constants(shift, rows[0]) if n not in taken][:1]
        if not held or not rows:
            raise Refused("not-a-roll", "what is received is not what the row's slots are")
        fill = self._constant(held[0]) if received is None else UNKNOWN
        fields = [Field(row.node, row.dim, shift, fill) for row in rows]
        if self.machine.calls_functions:
            brings = {} if received is None else {received.peer: received.number}
            fields = [f for f in fields if passes_gradients(self.machine, Matched(f, brings), self.group)][:1]
            fields = [dataclasses.replace(field, differentiable=True) for field in fields]
            if not fields:
                raise Refused("message-gradient", "the backward of an autograd.Function is not the way back")
        return fields[0], tuple(held)

    def _constants(self, shift: int, row: Own) -> list[fx.Node]:
        """What may be in the place of slots of a row that a roll brings to other ranks."""
        found = [n for n, what in self.complete.items() if isinstance(what, Constant) and self._fits(n, row)]
        padded = [(n, pad) for n, pad in self.padded.items() if bool(pad.before) == (shift > 0)]
        used = [n for n in found if self._is_used(n)]
        return [*used, *(n for n, pad in padded if self._fits(pad.x, row, whole=True))]

    def _constant(self, node: fx.Node) -> Any:
        """What is in the place of received slots at the end of the row."""
        pad = self.padded.get(node)
        return contents.constant(pad.fill, example(node).dtype) if pad is not None else self.complete[node]

    def _is_used(self, node: fx.Node) -> bool:
        return node in self.appended or any(user in self.rest for user in node.users)

    def _fits(self, node: fx.Node, row: Own, whole: bool = False) -> bool:
        """Is this as many slots of the row as a message has, or one slot alone; or is it a ``whole`` document?"""
        view, slots, all_slots = self.machine.values[node], example(node), example(row.node)
        kept = slots.dim() == all_slots.dim()
        if slots.dtype != all_slots.dtype or all_slots.dim() - slots.dim() not in (0, 1) or (whole and not kept):
            return False
        if view.dim is None:  # of sizes that are given
            if kept and not statically_known_true(slots.shape[row.dim] == self.machine.form.width):
                return False
        elif view.dim != row.dim or view.kept != kept:
            return False
        return same_rest(slots.shape, all_slots.shape, row.dim, kept_a=kept, kept_b=True)


# === Transform ===============================================================================================


def put_rolls(graph: fx.Graph, loop: LoopFound, found: Halos) -> None:
    """Rolls in front of the loop, and their slots in the place of what is received in it."""
    begin, size = loop.iterations[0][0], found.group.size
    local = found.cu if found.sharded else divided_by(graph, found.cu, size, begin)
    skips = [_skip_before(body, set(known)) for (_, body, _), known in zip(loop.iterations, found.known, strict=True)]
    several = found.form.width > 1  # a document that has slots has one
    if not any(skips):
        field = found.fields[0]
        build = Builder(graph, begin, field.node)
        if several:
            check_lengths(build, local, found.form.width)
        check_needs(build, local, found.needs, field.node, field.dim)
    place = (found.cu, found.sharded, found.group, found.form)
    rolled = [roll_of(f, *place).of_row(Builder(graph, begin, f.node), f.node) for f in found.fields]
    for (start, body, _), held, skip in zip(loop.iterations, found.held, skips, strict=True):
        at = skip.next if skip is not None else body[0]
        for field, row, nodes in zip(found.fields, rolled, held, strict=True):
            build = Builder(graph, at, field.node)
            document = build.call(markers.SEGMENT, row, local, start, field.dim % example(row).dim())
            if skip is not None and (several or found.needs):
                _check_length(build, document, field, start)
            for node in nodes:
                node.replace_all_uses_with(_instead(build, document, field, node, found.padded.get(node)))
    for node in sorted((node for known in found.known for node in known), reverse=True):
        exchanged = node.target in markers.MESSAGES or is_message(node)
        if not node.users and (exchanged or is_tensor(node) or written_inputs(node)):
            graph.erase_node(node)


def _skip_before(body: Sequence[fx.Node], known: set[fx.Node]) -> fx.Node | None:
    """The last ``continue`` in front of the messages."""
    first = next(node for node in body if node in known and is_message(node))
    return next((node for node in reversed(body) if node < first and node.target in markers.LOOP_SKIP), None)


def _check_length(build: Builder, document: fx.Node, field: Field, start: fx.Node) -> None:
    """So must one that gets as far as this."""
    width = abs(field.shift)
    enough = build.call(operator.ge, build.call("size", document, field.dim, method=True), width)
    build.call(markers.LOOP_CHECK, enough, too_short(width, width), *start.args[1:])


def _instead(build: Builder, document: fx.Node, field: Field, node: fx.Node, pad: Pad | None) -> fx.Node:
    """What stands for a node that holds the slots which a roll brings, or a document that is padded with them."""
    if pad is None:
        return _slots_of(build, document, field, node)
    build = Builder(build.graph, node, document)
    slots = _slots_of(build, document, field, pad.x)
    parts = (slots, pad.x) if pad.before else (pad.x, slots)
    return build.call(torch.cat, parts, field.dim, fake=example(node))


def _slots_of(build: Builder, document: fx.Node, field: Field, node: fx.Node) -> fx.Node:
    """The slots that a roll has brought, in the form of what holds them."""
    width, rank = abs(field.shift), example(document).dim()
    if example(node).dim() < rank:
        return build.call(torch.select, document, field.dim, 0 if field.shift > 0 else -1, fake=example(node))
    cut = slice(None, width) if field.shift > 0 else slice(-width, None)
    index = [slice(None)] * rank
    index[field.dim] = cut
    slots = list(example(document).shape)
    slots[field.dim] = width
    return build.call(operator.getitem, document, tuple(index), fake=example(document).new_empty(slots))
