"""Decide whether a captured loop with messages is a roll of shards. Nothing here changes the graph."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import process_group_of
from packpass.semantics import example
from packpass.semantics.effects import written_inputs
from passes.document_loops import machine as segments
from passes.document_loops.aliasing import separate_inputs
from passes.document_loops.find import Decided as LoopDecided
from passes.document_loops.find import all_documents, conclude
from passes.document_loops.integers import FULL, Boundaries
from passes.document_loops.terms import Assign, Row
from passes.fuse_boundary_exchange import rules, rules_messages, rules_writes  # noqa: F401  (fill the rule table)
from passes.fuse_boundary_exchange.canonical import (
    SHARDS,
    Field,
    Group,
    Matched,
    check_messages,
    match,
    merged,
)
from passes.fuse_boundary_exchange.functions import gradient, is_nothing, markers_in
from passes.fuse_boundary_exchange.halos import passes_gradients
from passes.fuse_boundary_exchange.machine import Machine
from passes.fuse_boundary_exchange.terms import ShardsRoll
from passes.fuse_boundary_exchange.values import UNKNOWN, ZERO, View
from passes.loops import LoopFound, hoistable
from passes.refused import Refused

SHARED = (
    "the loop reads one input and writes another, which may share memory in a later call; let it write a tensor that "
    "is made in the compiled function"
)

GRADIENT = (
    "what is received carries no gradient in eager, and what stays on the rank does; send and keep x.detach(), or, if "
    "the gradient is wanted, use packpass.ops.cp_packed_roll"
)


@dataclasses.dataclass(frozen=True)
class Decided:
    """A loop that is a roll: the whole-row form for `passes.document_loops.rewrite`, and facts for the report."""

    loop: LoopDecided
    cu: fx.Node
    sharded: bool
    """Are the boundaries those of this rank's row, not of the whole one?"""
    group: Group
    zigzag: bool
    fields: tuple[Field, ...]
    """In the order of their messages."""


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What one iteration leaves behind; equal for two iterations that do the same."""

    boundaries: tuple[fx.Node, int]
    written: tuple[tuple[tuple[fx.Node, int], Field], ...]
    appended: tuple[tuple[fx.Node, Field, int], ...]
    fields: tuple[Field, ...]


def has_messages(loop: LoopFound) -> bool:
    return bool(markers_in(loop.nodes, *markers.MESSAGES))


def groups_seen(graph: fx.Graph) -> list[str]:
    """Names of the process groups that the code looks at: capture notes them beside the first message of a graph."""
    return [str(node.args[0]) for node in markers_in(graph.nodes, markers.GROUP)]


def decide(graph: fx.Graph, loop: LoopFound, groups: Sequence[str]) -> Decided:
    """Check every condition; raises `Refused`. ``groups`` are those that may hold the shards, by name."""
    if len(loop.iterations) != 2:
        raise Refused("not-captured", "the loop was not traced twice")
    hoisted = hoistable(graph, loop)
    inside = loop.nodes - set(hoisted)
    loop = LoopFound(
        loop.id, tuple((b, tuple(n for n in body if n in inside), e) for b, body, e in loop.iterations), loop.collects
    )
    found: dict[tuple[int, ...], tuple[Group, int, int, _Outcome]] = {}
    refused: list[Refused] = []
    for group in candidates(loop, groups):
        for scale, halves in itertools.product((group.size, 1), SHARDS):
            try:
                outcome = _outcome(loop, group, scale, halves)
            except Refused as reason:
                refused.append(reason)
            else:
                found.setdefault(group.ranks, (group, scale, halves, outcome))
    if not found:
        raise _best(refused)
    if len(found) > 1:
        raise Refused("message-group", "the messages are those of a roll over more than one process group")
    ((group, scale, halves, outcome),) = found.values()
    return _conclude(graph, loop, group, (scale, halves), outcome, hoisted)


def _best(refused: list[Refused]) -> Refused:
    """The reason of the reading that came furthest."""
    if not refused:
        return Refused(
            "message-group", "this rank belongs to no process group of more than one rank that the code uses"
        )
    early = ("not-a-segment", "unknown-bounds")
    late = [r for r in refused if r.code == "message-gradient"] + [r for r in refused if r.code not in early]
    return next(iter(late), refused[0])


def candidates(loop: LoopFound, groups: Sequence[str]) -> list[Group]:
    """Groups that may hold the shards: those that the code looks at, and that of the messages. By ranks, once each."""
    names = [*groups]
    names += [str(node.args[3]) for node in markers_in(loop.nodes, markers.SEND, markers.RECV)]
    found: dict[tuple[int, ...], Group] = {}
    for name in dict.fromkeys(names):
        group = process_group_of(name)
        ranks = tuple(torch.distributed.get_process_group_ranks(group))
        if len(ranks) > 1 and group.rank() >= 0:
            found.setdefault(ranks, Group(name, ranks, group.rank()))
    return list(found.values())


def _outcome(loop: LoopFound, group: Group, scale: int, halves: int) -> _Outcome:
    first, second = (_iteration(loop, which, group, scale, halves) for which in (0, 1))
    if first != second:
        raise Refused("not-generic", "two iterations of the loop do different things")
    return first


def _iteration(loop: LoopFound, which: int, group: Group, scale: int, halves: int) -> _Outcome:
    """Run one traced iteration and prove that it rolls its document."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(loop.nodes, begin, loop.iterations[0][0], scale, halves)
    for node in body:
        machine.step(node)
    machine.finish()
    if machine.boundaries is None:
        raise Refused("no-segments", "the loop does not cut anything by boundaries")
    written: list[tuple[tuple[fx.Node, int], Matched]] = []
    for key, memory in machine.memories.items():
        if memory.version:
            whole = View(memory, ZERO, memory.length, memory.empty, key[1], True)
            written.append((key, _matched(machine, whole, group, key[0])))
    appended: list[tuple[fx.Node, Matched, int]] = []
    for collect in loop.collects:
        source = collect.args[which]
        view = machine.values.get(source)  # type: ignore[arg-type]
        refused = Refused("list-append", "what is appended per document is not the document", collect)
        if not isinstance(view, View) or view.dim is None:
            raise refused
        one_too_many = machine.one_too_many(view)
        if not one_too_many and not machine.is_document(view):
            raise refused
        found = _matched(machine, view, group, collect)
        field = dataclasses.replace(found.field, one_too_many=one_too_many)
        appended.append((collect, dataclasses.replace(found, field=field), view.dim))
    matched = [m for _, m in written] + [m for _, m, _ in appended]
    if not matched:
        raise Refused("no-effect", "the loop over documents changes nothing")
    return _Outcome(
        machine.boundaries,
        tuple((key, m.field) for key, m in written),
        tuple((collect, m.field, dim) for collect, m, dim in appended),
        tuple(check_messages(machine, merged(matched), group)),
    )


def _matched(machine: Machine, view: View, group: Group, node: fx.Node) -> Matched:
    """The roll that a document is. One that is returned by a function passes gradients on, if the function does."""
    found = match(machine.read(view, node), group, machine.halves, node)
    function = view.memory.function if view.whole else None
    if not machine.calls_functions:
        return found
    if function is None and passes_gradients(machine, found, group):
        return dataclasses.replace(found, field=dataclasses.replace(found.field, differentiable=True))
    if function is None:
        raise Refused("message-gradient", "what an autograd.Function has rolled is changed before it is put away", node)
    ran, given, grad = gradient(machine, function, view)
    back = match(ran.read(grad, node), group, machine.halves, function.node)
    fills = [f for f in (found.field.fill, back.field.fill) if f is None or f != UNKNOWN]
    around = [fill is None for fill in fills]
    same = len(set(around)) < 2 and (back.field.fill is None or is_nothing(back.field.fill))
    if back.field.node is not given or back.field.shift != -found.field.shift or not same:
        raise Refused("message-gradient", "the backward of an autograd.Function is not the roll back", function.node)
    check_messages(ran, [back], group)
    return dataclasses.replace(found, field=dataclasses.replace(found.field, differentiable=True))


def _without_gradient(loop: LoopFound, written: list[fx.Node]) -> None:
    """What the loop leaves must carry no gradient. What it reads may: eager's messages pass none on, and then neither
    does the roll, which reads detached rows."""
    left = written + [node for collect in loop.collects for node in collect.args[:2] if isinstance(node, fx.Node)]
    for node in loop.nodes:
        if written_inputs(node):
            left += [node, *node.all_input_nodes]
    for node in left:
        if isinstance(example(node), torch.Tensor) and example(node).requires_grad:
            raise Refused("message-gradient", GRADIENT, node)


def _conclude(
    graph: fx.Graph,
    loop: LoopFound,
    group: Group,
    counts: tuple[int, int],
    outcome: _Outcome,
    hoisted: tuple[fx.Node, ...],
) -> Decided:
    """What does not depend on messages is checked, and rewritten, as for any other loop over documents."""
    if not all(field.differentiable for field in outcome.fields):
        _without_gradient(loop, [node for (node, _), _ in outcome.written])
    scale, zigzag = counts[0], counts[1] == 2
    cu, k = outcome.boundaries
    intern = segments.Interner()
    machine = segments.Machine(intern, loop.nodes, {})
    machine.boundaries = (Boundaries(cu), k)
    terms: dict[Field, ShardsRoll] = {}
    for field in outcome.fields:
        row = intern(Row(field.node, (), field.dim))
        fill = 0 if field.fill is None else field.fill.value
        place = (group.name, group.size, group.rank, zigzag)
        ends = (fill, field.fill is None)
        roll = ShardsRoll(row, cu, scale == 1, field.shift, *ends, place, field.dim, field.differentiable)
        terms[field] = intern(roll)
    for (node, dim), field in outcome.written:
        segment = machine.outer_segment(node, (), dim, FULL, example(node).dim())
        store = segment.store
        store.term = intern(Assign(store.term, FULL, terms[field], dim))
        store.version = 1
    appended: dict[fx.Node, Any] = {
        collect: machine.fresh(terms[field], example(field.node).dim()) for collect, field, _ in outcome.appended
    }
    boundaries = all_documents(machine, loop)
    decided = conclude(graph, loop, machine, appended, boundaries, hoisted)
    if separate_inputs(graph, decided):
        raise Refused("aliasing", SHARED)
    # A rank that only sends, or only receives, does not see in which order its neighbour asks for the messages. They
    # pair up in that order, whatever tensors they are of, and so must the exchanges.
    decided = dataclasses.replace(decided, ordered=tuple(terms[field] for field in outcome.fields))
    return Decided(decided, cu, scale == 1, group, zigzag, outcome.fields)
