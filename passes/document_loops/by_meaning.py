"""Calls that leave the packed dimension alone, by what they mean (`packpass.semantics`): the same call on whole rows.

Asked where no rule knows a call. The slots of the document must be one axis of every operand that is a segment and of
every result, each treated by itself, and no other axis may be told apart by them.

Does not handle: calls that draw random numbers or write, results that may be views of several operands, indices and
divisors that may raise in slots that nobody asked for.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass.semantics import Call, call_of, example
from packpass.semantics.effects import effects_of
from packpass.semantics.meaning import (
    KEPT,
    UNKNOWN,
    Addressed,
    Contracted,
    Meaning,
    Mixed,
    Reduced,
    Relation,
    Role,
    Scanned,
)
from packpass.semantics.memory import aliases_of, writes_of
from packpass.semantics.registry import meaning_of
from passes.document_loops.integers import Window
from passes.document_loops.machine import Machine, Segment, Store, frozen_args
from passes.document_loops.operands import differentiated, operand
from passes.document_loops.terms import Apply, Outside, Term, map_args
from passes.refused import Refused


def by_meaning(machine: Machine, node: fx.Node) -> Any:
    """The value of a call that treats slots alike; NotImplemented for any other."""
    call = call_of(node)
    means = meaning_of(call)
    if call is None or means is None or means.traits.random or call.in_place or writes_of(call):
        return NotImplemented
    values = [machine.value(operand.node) for operand in call.operands]
    segments = [v for v in values if isinstance(v, Segment)]
    if not segments or not all(isinstance(v, (Segment, Outside)) for v in values):
        return NotImplemented
    packed = {o.argument for o, v in zip(call.operands, values, strict=True) if isinstance(v, Segment)}
    fills = _fills(call, means)
    if fills is None or (means.traits.singular and any(r.requires_grad for r in call.results)):
        return NotImplemented
    dims = [_dim(relation, values) for relation in means.relations]
    if None in dims:
        return NotImplemented
    memory = _memory(call, values)
    if memory is None:
        return NotImplemented
    try:
        term = _whole(machine, node, segments[0], packed <= means.traits.zero_gradient, int(dims[0] or 0), fills)
    except Refused:  # an argument is a number of the document
        return NotImplemented
    least = max(s.store.least for s in segments)
    made = []
    for at, (dim, shared) in enumerate(zip(dims, memory, strict=True)):
        part: Any = term
        if call.several:
            part = machine.intern(Apply(operator.getitem, False, (term, at), (), dim))  # type: ignore[arg-type]
        rank = call.results[at].dim()
        if shared is None:
            made.append(machine.fresh(part, rank, segments[0].window, least=least))
        else:
            store = Store(part, segments[0].window, parent=(shared.store, shared.store.version), least=least)
            made.append(Segment(store, segments[0].window, rank))
    return tuple(made) if call.several else made[0]


def why_not(machine: Machine, node: fx.Node) -> str:
    """What speaks against the same call on whole rows, as far as effects and meaning say; "" if they say nothing."""
    effects = effects_of(node)
    if effects.random:
        return "it draws random numbers"
    if effects.host:
        return "its result depends on values that the host would have to read"
    call = call_of(node)
    means = meaning_of(call)
    for relation in means.relations if call is not None and means is not None else ():
        for k, given in enumerate(call.operands):  # type: ignore[union-attr]
            value = machine.value(given.node)
            if isinstance(value, Segment) and relation.operands[k] is not None:
                fate = relation.fate(k, value.rank + value.dim)
                if isinstance(fate, Role):
                    return _ALONG.get(type(fate), "")
    return ""


_ALONG = {
    Reduced: "it puts the slots of a document together",
    Contracted: "it sums over the slots of a document",
    Scanned: "a slot of its result depends on those before",
    Mixed: "it mixes the slots of a document",
    Addressed: "it tells the slots of a document apart by their places",
}


def _fills(call: Call, means: Meaning) -> dict[fx.Node, Any] | None:
    """What operands hold in slots that nobody asked for, so that the call does not raise there; None if that is not
    known."""
    fills: dict[fx.Node, Any] = {}
    for given in call.operands:
        if given.argument not in means.traits.raises:
            continue
        if means.family == "matrices":
            fills[given.node] = IDENTITY
        elif given.argument in ("index", "indices") and not given.value.is_floating_point():
            fills[given.node] = 0
        else:
            return None
    return fills


IDENTITY = object()
"""A fill: the identity matrix."""


@dataclasses.dataclass(frozen=True, eq=False)
class Matrices(Term):
    """``of`` on the slots of ``window``, identity matrices elsewhere: they have an inverse, and roots."""

    of: Term
    window: Window
    dim: int

    def emit(self, emitter: Any) -> fx.Node:
        """The node."""
        inner = emitter.node(self.of)
        value = example(inner)
        identity = emitter.call(torch.eye, *value.shape[-2:], dtype=value.dtype, device=value.device)
        made: fx.Node = emitter.choose(self.window, inner, identity, self.dim)
        return made


def _dim(relation: Relation, values: list[Any]) -> int | None:
    """The packed dimension (negative) of a result; None if slots are not treated one by one."""
    found: set[int] = set()
    for axes, value in zip(relation.operands, values, strict=True):
        if not isinstance(value, Segment) or axes is None:
            continue
        packed = axes[value.rank + value.dim]
        if packed.how != KEPT or len(packed.loops) != 1:
            return None
        found.add(packed.loops[0])
    if len(found) != 1 or found & relation.roles.keys():
        return None
    (slots,) = found
    for axes, value in zip(relation.operands, values, strict=True):
        for d, axis in enumerate(axes or ()):
            own = isinstance(value, Segment) and d == value.rank + value.dim
            if not own and (slots in axis.loops or axis.how == UNKNOWN):
                return None  # it is paired with slots, or may be
    at = [j for j, loops in enumerate(relation.result) if slots in loops]
    if len(at) != 1 or relation.result[at[0]] != (slots,):
        return None
    return at[0] - len(relation.result)


def _memory(call: Call, values: list[Any]) -> list[Segment | None] | None:
    """For every result the segment that it may be a view of; None if that may be several."""
    found: list[Segment | None] = []
    for shared in aliases_of(call):
        segments = {values[k] for k in shared if isinstance(values[k], Segment)}
        if len(segments) > 1:
            return None
        found.append(next(iter(segments), None))
    return found


def _whole(machine: Machine, node: fx.Node, like: Segment, linear: bool, dim: int, fills: dict[fx.Node, Any]) -> Any:
    """The call on whole rows."""
    fill = 1 if differentiated(node) and not linear else None

    def leaf(arg: Any) -> Any:
        if (
            not isinstance(arg, fx.Node)
            or fills.get(arg) is not IDENTITY
            or not isinstance(machine.value(arg), Segment)
        ):
            return operand(machine, arg, like.window, node, fills.get(arg, fill) if isinstance(arg, fx.Node) else fill)
        term = machine.aligned(machine.value(arg), like.window, node)
        if term.dim > -3:
            raise Refused("no-rule", "the slots of a document are rows of a matrix", node)
        return machine.intern(Matrices(term, like.window, term.dim))

    args = frozen_args(map_args(node.args, leaf))
    kwargs = tuple(sorted((k, frozen_args(map_args(v, leaf))) for k, v in node.kwargs.items()))
    return machine.intern(Apply(node.target, node.op == "call_method", args, kwargs, dim))
