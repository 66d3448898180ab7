"""Functions with a backward of their own in the bodies of loops, ``Quantise.apply(x[s:e])``, for the whole row.

::

    class Quantise(torch.autograd.Function):
        def forward(ctx, x): return x.round()
        def backward(ctx, grad): return grad

Both of its graphs are interpreted as the body is. If they treat every slot alike, each by itself, the same function may
be called on the whole row: its gradient need not be that of its forward, but where none comes it must make none, as
eager does not ask it then. What all documents share, a weight, may get a sum over slots. Of what each document has one
of, a function may take whatever counts its dimensions from the end: arithmetic, and collectives that add up or hand on
every element.

Does not handle: functions that write what they are given, or that take a number of the document.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import AUTOGRAD_FUNCTION, example, op_name, storage
from packpass.semantics.collectives import ELEMENTWISE, WAIT, collective_name
from packpass.semantics.effects import writes_given, written_inputs
from packpass.semantics.inner_graphs import places_of
from packpass.semantics.memory import overwritten
from packpass.semantics.zeros import zeros_among
from passes.document_loops.documents import as_term, document
from passes.document_loops.function_graphs import Function, Inner, calls, function_of
from passes.document_loops.integers import FULL
from passes.document_loops.machine import Document, Machine, Segment, Slot
from passes.document_loops.rules import is_elementwise
from passes.document_loops.terms import LENGTH, Apply, Assign, DocGuard, Guard, Outside, Reduce, Term, walk
from passes.refused import Refused

if TYPE_CHECKING:
    from passes.document_loops.emit import Emitter

Step = Callable[[Machine, fx.Node], None]


@dataclasses.dataclass(frozen=True, eq=False)
class OwnBackward(Term):
    """The results of a function with these two graphs on whole rows."""

    target: Any
    forward: Inner
    backward: Inner
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    exchanges: tuple[tuple[str, tuple[str, ...]], ...]
    """Collectives of both graphs: their names and arguments."""
    dim: int

    def emit(self, emitter: Emitter) -> fx.Node:
        """One call for all documents."""
        graphs = (emitter.inner(self.forward.graph), emitter.inner(self.backward.graph))
        kwargs: dict[str, Any] = {name: list(value) for name, value in self.kwargs}
        return emitter.call(self.target, *graphs, *emitter.arguments(self.args), **kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class _Given(Term):
    """An operand of a graph, whatever it holds."""

    number: int
    dim: int


def own_backward(machine: Machine, node: fx.Node, step: Step) -> Any:
    """The values of such a call, one for each result; NotImplemented for any other."""
    function = function_of(node)
    if function is None:
        return NotImplemented
    values = [machine.value(arg) for arg in function.operands]
    per_document = any(isinstance(value, (Document, Slot)) for value in values)
    if not per_document and not any(isinstance(value, Segment) for value in values):
        return NotImplemented
    _check(machine, function)
    return _of_documents(machine, function, values) if per_document else _of_slots(machine, function, values, step)


def _check(machine: Machine, function: Function) -> None:
    """Nothing may be written that others see, and where no gradient comes there must be none."""
    held = {storage(arg) for arg in function.operands} - {None}
    forward, backward = function.forward.graph, function.backward.graph
    if writes_given(forward) or writes_given(backward):
        raise _refused(function, "writes what it is given")
    if any(storage(result) in map(storage, places_of(forward)) for result in function.results[0]):
        held |= {storage(user) for user in function.node.users} - {None}
    others = (n for n in machine.inside if op_name(n) != AUTOGRAD_FUNCTION)
    if held & {storage(target) for n in others for target in written_inputs(n)}:
        raise Refused(
            "aliasing", "what a function with a backward of its own takes is written in the loop", function.node
        )
    zeros = zeros_among(calls(backward), places_of(backward)[: len(function.results[0])])
    if any(isinstance(gradient, fx.Node) and gradient not in zeros for gradient in function.gradients):
        raise _refused(function, "may make gradients where none come")


def _refused(function: Function, why: str) -> Refused:
    return Refused("no-rule", f"a function with a backward of its own {why}", function.node)


# === Of slots ================================================================================================


def _of_slots(machine: Machine, function: Function, values: Sequence[Any], step: Step) -> Any:
    segments = [value for value in values if isinstance(value, Segment)]
    window, dim = segments[0].window, segments[0].dim
    alike = {(segment.dim, segment.store.exact, segment.window.plain) for segment in segments}
    if alike != {(dim, True, True)}:  # of one slot it could see that there is one, and drop the dimension
        raise _refused(function, "takes parts of documents that do not match, or one slot")
    made = _trial(machine, function, values, step)
    guarded = _has_gradient(function)

    def given(value: Any) -> Any:
        if not isinstance(value, Segment):
            return value
        term = machine.aligned(value, window, function.node)
        return machine.guard(term, window, dim) if guarded else term

    whole = machine.intern(_whole(function, tuple(map(given, values)), dim))
    return tuple(
        machine.fresh(Apply(operator.getitem, False, (whole, at), (), result.dim), result.rank, window)
        for at, result in enumerate(made)
    )


def _trial(machine: Machine, function: Function, values: Sequence[Any], step: Step) -> list[Segment]:
    """The results of the forward, if it and the backward treat slots alike."""
    before, outer = machine.state(), machine.values
    machine.values = dict(outer)
    try:
        return _both_ways(machine, function, values, step)
    except Refused as refused:
        raise _refused(function, f"treats slots of a document unlike ({refused.reason})") from refused
    finally:
        machine.values = outer
        machine.restore(before)


def _both_ways(machine: Machine, function: Function, values: Sequence[Any], step: Step) -> list[Segment]:
    forward, backward = function.forward.graph, function.backward.graph
    shared = {value for value in values if isinstance(value, Outside)}
    count = 0

    def fresh(like: Segment) -> Segment:
        nonlocal count
        count += 1
        return machine.fresh(_Given(count, like.dim), like.rank)

    _run(machine, forward, [fresh(v) if isinstance(v, Segment) else v for v in values], step)
    returned, kept = function.results
    results = [_slotwise(machine, function, result, shared) for result in returned]
    _run(machine, backward, [*map(fresh, results), *(_again(machine, k, fresh) for k in kept)], step)
    for arg, value, gradient in zip(function.operands, values, function.gradients, strict=True):
        if gradient is None or not example(arg).requires_grad:
            continue
        if isinstance(value, Outside):
            _check_sum(machine, function, gradient, shared)
            continue
        back = _slotwise(machine, function, gradient, shared)
        if (back.dim, back.rank) != (value.dim, value.rank):
            raise Refused("no-rule", "its gradients are of another form", function.node)
    return results


def _check_sum(machine: Machine, function: Function, gradient: Any, shared: set[Outside]) -> None:
    """What all documents share may get a sum over slots: that over the whole row is the sum over all documents."""
    value = machine.value(gradient)
    term = value.cell.term if isinstance(value, Document) else None
    if not isinstance(term, Reduce) or term.op != "sum" or not _is_slotwise(term.of, shared):
        reason = "a tensor that all documents share gets a gradient that is no sum over slots"
        raise Refused("no-rule", reason, function.node)


def _again(machine: Machine, kept: Any, fresh: Callable[[Segment], Segment]) -> Any:
    """What the forward keeps, as the backward takes it."""
    value = machine.value(kept)
    return fresh(value) if isinstance(value, Segment) else value


def _run(machine: Machine, graph: fx.GraphModule, given: Sequence[Any], step: Step) -> None:
    places = places_of(graph)
    if len(places) != len(given):
        raise Refused("no-rule", "its graphs take something else", places[0] if places else None)
    for place, value in zip(places, given, strict=True):
        if not isinstance(value, (Segment, Outside)):
            raise Refused("no-rule", "it takes a number of the document", place)
        machine.values[place] = value
    for node in calls(graph):
        step(machine, node)


def _slotwise(machine: Machine, function: Function, node: Any, shared: set[Outside]) -> Segment:
    """The value of a node, if each slot of it is made of that slot alone, by calls that are the same on a row."""
    value = machine.value(node) if isinstance(node, fx.Node) else None
    if not isinstance(value, Segment) or not value.store.exact or value.window != FULL:
        raise Refused("no-rule", "a result is no document's slots", function.node)
    if not _is_slotwise(machine.read(value, node), shared):
        raise Refused("no-rule", "it looks at other slots of the document, or at its length", function.node)
    return value


def _is_slotwise(term: Any, shared: set[Outside]) -> bool:
    return all(_is_alike(part, shared) for part in walk(term))


def _is_alike(part: Any, shared: set[Outside]) -> bool:
    """Is this the same call on a row, or what a call is given?"""
    if isinstance(part, Outside):
        return part in shared or part.call is not None
    if isinstance(part, Apply):
        return not _names_the_length((part.args, part.kwargs))
    if isinstance(part, Assign):
        return part.window == FULL
    return isinstance(part, _Given) or (isinstance(part, Guard) and part.fill == 1)


def _names_the_length(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_names_the_length, value))
    return value is LENGTH


# === Of what documents have one of each =====================================================================


def _of_documents(machine: Machine, function: Function, values: Sequence[Any]) -> Any:
    node = function.node
    if not all(isinstance(value, (Document, Slot, Outside)) for value in values):
        raise _refused(function, "takes slots, or numbers, beside a value of the whole document")
    ranks = {example(arg).dim() for arg, value in zip(function.operands, values, strict=True)}
    done = function.calls()
    inside = {example(call).dim() for call in done if isinstance(example(call), torch.Tensor)}
    if len(ranks) != 1 or not inside <= ranks or not all(map(_counts_from_the_end, done)):
        raise _refused(function, "does more to a value of the whole document than arithmetic")
    guarded = _has_gradient(function)

    def given(arg: Any, value: Any) -> Any:
        if isinstance(value, Outside):
            return value
        term = as_term(machine, arg, node)
        return machine.intern(DocGuard(term, machine.reach)) if guarded else term

    whole = machine.intern(_whole(function, tuple(map(given, function.operands, values)), 0))
    if whole.exchanges:
        machine.sent[node] = whole
    returned, _ = function.results
    return tuple(document(machine, Apply(operator.getitem, False, (whole, at), (), 0)) for at in range(len(returned)))


def _counts_from_the_end(call: fx.Node) -> bool:
    name = collective_name(call.target)
    return name in ELEMENTWISE or name == WAIT or is_elementwise(call) or _is_overwritten(call)


def _is_overwritten(call: fx.Node) -> bool:
    """``x.copy_(y)``, of the whole tensor."""
    written = overwritten(call)
    return written is not None and not written[1]


def _has_gradient(function: Function) -> bool:
    return any(t.requires_grad for t in example(function.node) if isinstance(t, torch.Tensor))


def _whole(function: Function, args: tuple[Any, ...], dim: int) -> OwnBackward:
    sent = ((collective_name(call.target), tuple(map(str, call.args[1:]))) for call in function.calls())
    exchanges = tuple((name, words) for name, words in sent if name in ELEMENTWISE)
    return OwnBackward(function.node.target, function.forward, function.backward, args, function.kwargs, exchanges, dim)
