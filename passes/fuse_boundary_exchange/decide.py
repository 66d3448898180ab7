"""Decide whether a captured loop with messages is a roll of shards. Nothing here changes the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass._compat import process_group_of
from packpass.ops._cp_packed_roll import LONGEST
from packpass.semantics import example
from packpass.semantics.effects import written_inputs
from passes.document_loops import machine as segments
from passes.document_loops.aliasing import separate_inputs
from passes.document_loops.find import Decided as LoopDecided
from passes.document_loops.find import all_documents, conclude
from passes.document_loops.integers import FULL, Affine, Bound, Boundaries, Check, Reach
from passes.document_loops.op_names import name_of
from passes.document_loops.terms import Assign
from passes.fuse_boundary_exchange import (  # noqa: F401  (fill the rule table)
    rules,
    rules_messages,
    rules_parts,
    rules_writes,
)
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
from passes.fuse_boundary_exchange.lengths import too_short
from passes.fuse_boundary_exchange.machine import Machine
from passes.fuse_boundary_exchange.terms import ShardsRoll, roll_of
from passes.fuse_boundary_exchange.values import UNKNOWN, ZERO, Form, Needs, View
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
    form: Form
    fields: tuple[Field, ...]
    """In the order of their messages."""
    needs: Needs


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """What one iteration leaves behind; equal for two iterations that do the same."""

    boundaries: tuple[fx.Node, int]
    written: tuple[tuple[tuple[fx.Node, int], Field], ...]
    appended: tuple[tuple[fx.Node, Field, int], ...]
    fields: tuple[Field, ...]
    needs: Needs


_Reading = tuple[Group, int, Form, _Outcome]


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
    found: dict[tuple[int, ...], _Reading] = {}
    refused: list[Refused] = []
    for forms in (SHARDS, wider(loop)):
        if found:
            break
        for group, scale, form in readings(loop, groups, forms):
            try:
                outcome = _outcome(loop, group, scale, form)
            except Refused as reason:
                refused.append(reason)
            else:
                found.setdefault(group.ranks, (group, scale, form, outcome))
    if not found:
        raise _best(refused)
    if len(found) > 1:
        raise Refused("message-group", "the messages are those of a roll over more than one process group")
    (reading,) = found.values()
    return _conclude(graph, loop, reading, hoisted)


def readings(loop: LoopFound, groups: Sequence[str], forms: Iterable[Form]) -> Iterator[tuple[Group, int, Form]]:
    """What the messages of a loop may be between: a group, its size where boundaries are those of the row and 1 where
    they are those of shards, and the form of these."""
    return ((group, scale, form) for group in candidates(loop, groups) for scale in (group.size, 1) for form in forms)


def wider(loop: LoopFound) -> list[Form]:
    """Shards of which more slots than one may go to a neighbour: as many as a message is received in, or as slices of
    the body say. By width, for what fits several is what the narrowest makes of it."""
    widths = set[int]()
    for node in loop.nodes:
        if node.target is markers.RECV:
            widths |= {size for size in example(node.args[0]).shape if type(size) is int}
        elif name_of(node) in ("getitem", "narrow"):
            widths |= _numbers(node.args[1:])
    return [Form(shards.chunks, width) for width in sorted(widths) if 1 < width <= LONGEST for shards in SHARDS]


def _numbers(arg: Any) -> set[int]:
    """The constants in an index, without their signs."""
    if isinstance(arg, (slice, tuple, list)):
        entries = (arg.start, arg.stop) if isinstance(arg, slice) else arg
        return {number for entry in entries for number in _numbers(entry)}
    return {abs(arg)} if type(arg) is int else set()


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


def _outcome(loop: LoopFound, group: Group, scale: int, form: Form) -> _Outcome:
    first, second = (_iteration(loop, which, group, scale, form) for which in (0, 1))
    if first != second:
        raise Refused("not-generic", "two iterations of the loop do different things")
    return first


def _iteration(loop: LoopFound, which: int, group: Group, scale: int, form: Form) -> _Outcome:
    """Run one traced iteration and prove that it rolls its document."""
    begin, body, _ = loop.iterations[which]
    machine = Machine(loop.nodes, begin, loop.iterations[0][0], scale, form)
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
        machine.needs,
    )


def _matched(machine: Machine, view: View, group: Group, node: fx.Node) -> Matched:
    """The roll that a document is. One that is returned by a function passes gradients on, if the function does."""
    found = match(machine.read(view, node), group, machine.form, node)
    function = view.memory.function if view.whole else None
    if not machine.calls_functions:
        return found
    if function is None and passes_gradients(machine, found, group):
        return dataclasses.replace(found, field=dataclasses.replace(found.field, differentiable=True))
    if function is None:
        raise Refused("message-gradient", "what an autograd.Function has rolled is changed before it is put away", node)
    ran, given, grad = gradient(machine, function, view)
    back = match(ran.read(grad, node), group, machine.form, function.node)
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


def _long_enough(machine: segments.Machine, form: Form, scale: int) -> Check:
    """Has every document with slots as many on each rank as go to a neighbour?"""
    of, k = machine.boundaries or (None, 0)
    assert of is not None
    length = Affine.of(Bound(of, k + 1)).plus(Affine.of(Bound(of, k)), -1)
    least = form.chunks * form.width
    return Check(length, "ge", Affine.of(least * scale), too_short(form.width, least), Reach(1))


def _conclude(
    graph: fx.Graph,
    loop: LoopFound,
    reading: _Reading,
    hoisted: tuple[fx.Node, ...],
) -> Decided:
    """What does not depend on messages is checked, and rewritten, as for any other loop over documents."""
    group, scale, form, outcome = reading
    if not all(field.differentiable for field in outcome.fields):
        _without_gradient(loop, [node for (node, _), _ in outcome.written])
    cu, k = outcome.boundaries
    intern = segments.Interner()
    machine = segments.Machine(intern, loop.nodes, {})
    machine.boundaries = (Boundaries(cu), k)
    if form.width > 1:
        machine.checks.append(_long_enough(machine, form, scale))
    terms: dict[Field, ShardsRoll] = {}
    for field in outcome.fields:
        roll = roll_of(field, cu, scale == 1, group, form)
        terms[field] = intern(dataclasses.replace(roll, of=intern(roll.of)))
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
    return Decided(decided, cu, scale == 1, group, form, outcome.fields, outcome.needs)
