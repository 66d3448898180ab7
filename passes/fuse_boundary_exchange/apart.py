"""A loop that does more with its documents than to roll them, as two: the roll alone, and the rest with what it gives.

Before::

    for s, e in documents:
        rolled = ...            # messages, and what is made of them
        out.append(rolled * mask[s:e])

After::

    for s, e in documents:
        rolls.append(...)       # a roll, as any other
    for i, (s, e) in enumerate(documents):
        out.append(rolls[i] * mask[s:e])

Why it is safe: what moves to the first loop is all that the machine understands of an iteration up to where a rolled
document is complete, messages and their memory included. The rest uses nothing of it but complete rolls and what only
reads memory that the loop leaves alone, and writes nothing that the first loop reads. A rest with messages of its own
(the next depth) is one more such loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import example, storage
from packpass.semantics.effects import changes_mode, written_inputs
from passes.document_loops.fission import Prefix
from passes.fuse_boundary_exchange.canonical import SHARDS, Group, check_messages, match, merged
from passes.fuse_boundary_exchange.decide import readings, wider
from passes.fuse_boundary_exchange.functions import is_message
from passes.fuse_boundary_exchange.machine import Machine
from passes.fuse_boundary_exchange.values import ZERO, Form, Own, Run, View
from passes.loops import LoopFound
from passes.refused import Refused


def rolled(loop: LoopFound, groups: Sequence[str]) -> list[Prefix]:
    """Of each iteration, the documents that it rolls, and all that makes them; none if the rest needs more of it."""
    if len(loop.iterations) != 2 or any(changes_mode(node) or node.target in markers.LOOP_SKIP for node in loop.nodes):
        return []
    for forms in (SHARDS, wider(loop)):
        for group, scale, form in readings(loop, groups, forms):
            iterations = [Iteration(loop, which, group, scale, form) for which in (0, 1)]
            known = [prefix for one in iterations if (prefix := one.prefix()) is not None]
            if len(known) == 2 and _alike(*known):
                for one in iterations:
                    one.read_themselves()
                return known
    return []


def _form(node: fx.Node) -> tuple[Any, ...]:
    fake = example(node)
    return fake.dim(), fake.dtype, fake.requires_grad


def _alike(one: Prefix, other: Prefix) -> bool:
    """Do two iterations roll as many documents? That they do so alike is for each of the two loops to prove."""
    return [n.target for n in one.results] == [n.target for n in other.results]


class Iteration:
    """One traced iteration: what is understood of it, node by node, and the rest."""

    def __init__(self, loop: LoopFound, which: int, group: Group, scale: int, form: Form) -> None:
        self.loop, self.group = loop, group
        begin, self.body, _ = loop.iterations[which]
        self.machine = Machine(loop.nodes, begin, loop.iterations[0][0], scale, form)
        given = dict.fromkeys(collect.args[which] for collect in loop.collects)
        self.appended = [node for node in given if isinstance(node, fx.Node)]
        self.rest: set[fx.Node] = set()
        self.complete: dict[fx.Node, Any] = {}
        """What the rest may use of it: rolled documents, and how they are matched."""
        self.same: dict[fx.Node, fx.Node] = {}
        """What holds the document as it is (``ext[1:]`` of a halo and the document), and the document."""

    def prefix(self) -> Prefix | None:
        known = self._understood()
        more = bool(self.rest) or not set(self.appended) <= set(self.complete)
        if not self.complete or not more or not any(is_message(node) for node in known):
            return None
        try:
            self.machine.finish()
            # On the last rank, a zigzag and a shard of one piece are the same slots: the messages tell them apart.
            check_messages(self.machine, merged(self.complete.values()), self.group)
        except Refused:
            return None
        return Prefix(tuple(self.complete), tuple(known)) if self._apart(set(known)) else None

    def _understood(self) -> list[fx.Node]:
        """The nodes of the body that are no part of the rest."""
        for node in self.body:
            self._step(node)
        for node in self.appended:
            if node not in self.rest:
                self._is_complete(node)
        return [node for node in self.body if node not in self.rest]

    def _step(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        done = [n for n in inputs if self._is_complete(n)]
        waits = node.target is markers.WAIT
        outside = any(target not in self.loop.nodes for target in written_inputs(node))
        if done or outside or any(n in self.rest for n in inputs) or (waits and node.args[0] not in self._asked()):
            self._leave(node)
            return
        try:
            self.machine.step(node)
        except Refused:
            self._leave(node)

    def _leave(self, node: fx.Node) -> None:
        self.rest.add(node)
        for n in node.all_input_nodes:
            document = self._document_in(n)
            if document is not None:
                self.same[n] = document

    def _document_in(self, node: fx.Node) -> fx.Node | None:
        """The document that this is a copy of."""
        view, runs = self._held(node)
        if node in self.rest or view is None or not self.machine.is_document(view) or len(runs) != 1:
            return None
        what = runs[0].what
        if not isinstance(what, Own) or what.at != ZERO or runs[0].length != self.machine.whole:
            return None
        for other, held in self.machine.values.items():
            if isinstance(held, View) and held.memory.outer == (what.node, what.dim) and held.dim == view.dim:
                if _form(other) == _form(node) and held.whole and self.machine.is_document(held):
                    return other
        return None

    def _held(self, node: fx.Node) -> tuple[View | None, tuple[Run, ...]]:
        """What is known of a tensor that is no part of an outer row, and its slots; None, and none, of any other."""
        view = self.machine.values.get(node)
        if isinstance(view, View) and view.memory.outer is None:
            with contextlib.suppress(Refused):
                return view, self.machine.read(view, node)
        return None, ()

    def read_themselves(self) -> None:
        """Let the rest read documents where it has read copies of them."""
        for node, document in self.same.items():
            for user in [user for user in node.users if user in self.rest]:
                user.replace_input_with(node, document)

    def _asked(self) -> set[int]:
        """The messages that are understood."""
        return {message.number[0] for message in self.machine.messages}

    def _is_complete(self, node: fx.Node) -> bool:
        """Is this a document that is rolled, and complete?"""
        if node in self.complete:
            return True
        view, runs = self._held(node)
        if view is None or not self.machine.is_document(view):
            return False
        try:
            found = match(runs, self.group, self.machine.form, node)
        except Refused:
            return False
        # The rank at the end of a row of shards of one piece receives nothing.
        if found.received or self.machine.form.chunks == 1:
            self.complete[node] = found
        return node in self.complete

    def _apart(self, known: set[fx.Node]) -> bool:
        """May the rest run after what is known of all documents?"""
        tensors = {node for node in known if isinstance(example(node), torch.Tensor)}
        outer = {n for node in known for n in node.all_input_nodes if n not in self.loop.nodes}
        read = {storage(node) for node in (*tensors, *outer, *self.same)} - {None}
        for node in self.rest:
            if any(storage(target) is None or storage(target) in read for target in written_inputs(node)):
                return False
        changed = {storage(target) for node in known for target in written_inputs(node)}
        stack: list[Any] = [n for node in self.rest for n in node.all_input_nodes]
        stack += [node for node in self.appended if node not in self.rest]
        seen: set[Any] = set()
        while stack:
            node = stack.pop()
            if node in seen or node in self.rest or node in self.complete:
                continue
            seen.add(node)
            if node in self.same:
                stack.append(self.same[node])
                continue
            if isinstance(example(node), torch.Tensor) and storage(node) in changed:
                return False
            stack += node.all_input_nodes if node in known else ()
        return True
