"""The rule table: what each op of a loop body does to abstract values.

A rule is a small function ``rule(machine, node) -> value``, registered under the op's canonical name; adding an op is
adding a rule and its test. What has no rule is refused by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from packpass._registry import registrar
from packpass.semantics import call_of, example, meaning_of
from packpass.semantics.effects import AS_NUMBERS, effects_of
from packpass.semantics.integers import computed
from packpass.semantics.memory import aliases_of
from packpass.semantics.names import base_name
from packpass.semantics.pointwise import EXTREMES, slot_by_slot
from passes.document_loops.boundaries import divided
from passes.document_loops.inequalities import at_most, length_in
from passes.document_loops.integers import Affine, Derived, Index, Window
from passes.document_loops.machine import (
    OPAQUE,
    Machine,
    Rule,
    Segment,
    frozen_args,
)
from passes.document_loops.moved import common_window, meets, together
from passes.document_loops.op_names import label, name_of
from passes.document_loops.terms import Apply, Outside, map_args
from passes.refused import Refused

RULES: dict[str, Rule] = {}
TOKENWISE: dict[str, Rule] = {}
"""Rules, asked first, for ops that leave the packed dimension alone; ``NotImplemented`` where they do not: then the
rule in `RULES` decides. Both tables may know one op: a sum over features is here, one over the document is there."""

DOCUMENTS: dict[str, Rule] = {}
"""Rules for ops on values that documents have one of each (`PER_DOCUMENT`); no other rule sees such a value."""


PAIRS: dict[str, Rule] = {}
"""Rules for ops on values of every two slots of a document; "*" is asked before all others, and may decline."""


rule = registrar(RULES)
"""Registers a rule under canonical op names."""


tokenwise = registrar(TOKENWISE)
"""Registers a rule for ops that leave the packed dimension alone; see `TOKENWISE`."""


documents = registrar(DOCUMENTS)
"""Registers a rule for ops on per-document values; see `DOCUMENTS`."""


pairs = registrar(PAIRS)
"""Registers a rule for ops on values of every two slots; see `PAIRS`."""


def is_elementwise(node: fx.Node) -> bool:
    """Does a call, or the same call in place, treat every slot alike? On a segment it is the same on the whole row."""
    call = call_of(node)
    if not isinstance(example(node), torch.Tensor):
        return slot_by_slot(node) and not isinstance(example(node), (tuple, list))
    meaning = meaning_of(call)
    if call is None or meaning is None or effects_of(node).random:
        return False
    return meaning.family == "pointwise" or call.op.endswith("_like")


def bound_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by the names that torch has for them."""
    call = call_of(node)
    if call is None:
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    return dict(call.arguments)


# === Integers ================================================================================================


def _integer(machine: Machine, node: fx.Node) -> Any:
    """What boundaries, lengths and document numbers are made into; `OPAQUE` for what only assertions look at; None if
    these are not integers the machine knows."""
    fake = example(node)
    if isinstance(fake, torch.Tensor) and (fake.dim() or fake.dtype not in (torch.int32, torch.int64)):
        return None
    found = computed(node, machine.affine, divided)
    if found is None and len(node.args) == 2 and not node.kwargs:
        found = _of_two(name_of(node), [machine.affine(arg) for arg in node.args])
    if isinstance(found, Affine):
        return found
    return OPAQUE if all(machine.affine(arg) is not None for arg in node.args) else None


def _of_two(name: str, args: list[Affine | None]) -> Affine | None:
    """The smaller or larger of two numbers of a document; the document's number times a size (``i * width``)."""
    function: Any = EXTREMES.get(name)
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args) or all(arg.is_shared for arg in known):
        return None
    if name == "mul":
        size, number = known if known[0].is_shared else known[::-1]
        counted = size.is_shared and number == Affine.of(Index())
        return Affine.of(Derived(operator.mul, (number, size))) if counted else None
    if function is None:
        return None
    for one, other in (known, known[::-1]):
        length = length_in(one.plus(other))
        if length is None or len(set(length.bounds())) == 1:
            continue  # a number that is given may be less than 0, and then a slice counts from the end
        if at_most(one, other, length):
            return one if function is min else other
    return Affine.of(Derived(function, tuple(known)))


@rule("sym_sum")
def _sym_sum(machine: Machine, node: fx.Node) -> Any:
    found = computed(node, machine.affine, divided)
    return OPAQUE if found is None else found


@rule(*AS_NUMBERS)
def shared_number(machine: Machine, node: fx.Node) -> Any:
    """A boundary, or a number that all documents share, as the host reads it."""
    value, fake = machine.value(node.args[0]), example(node.args[0])
    if isinstance(value, Affine):
        if isinstance(fake, torch.Tensor) and fake.dtype is not torch.int64 and value.is_large:
            raise Refused("index-as-number", "a number that its tensor may have no room for is read on the host", node)
        return value
    if isinstance(value, Outside):
        return OPAQUE
    raise Refused("host-read", "a tensor value is read on the host inside the loop", node)


@rule("_assert_scalar")
def _assert_scalar(machine: Machine, node: fx.Node) -> Any:
    """Dynamo's own bounds and size assertions: what they protect no longer exists after the rewrite."""
    return OPAQUE


@rule("sym_storage_offset", "sym_stride")
def opaque(machine: Machine, node: fx.Node) -> Any:
    if any(isinstance(machine.value(a), Affine) for a in node.all_input_nodes):
        return DOCUMENTS["*"](machine, node)  # a root of the length, say
    return OPAQUE


# === Elementwise =============================================================================================


def _segments(machine: Machine, node: fx.Node) -> list[Segment]:
    found = []
    for arg in node.all_input_nodes:
        value = machine.value(arg)
        if isinstance(value, Segment):
            found.append(value)
    return found


def arguments(
    machine: Machine, node: fx.Node, convert: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """Arguments with every FX node replaced by ``convert(value)``, ready to be interned."""

    def leaf(arg: Any) -> Any:
        return convert(machine.value(arg)) if isinstance(arg, fx.Node) else arg

    args = frozen_args(map_args(node.args, leaf))
    kwargs = tuple(sorted((k, frozen_args(map_args(v, leaf))) for k, v in node.kwargs.items()))
    return args, kwargs


def elementwise(machine: Machine, node: fx.Node) -> Any:
    """An op that treats every slot alike, on segments with the same slots."""
    known_number = any(isinstance(machine.value(a), Affine) for a in node.all_input_nodes)
    integer = _integer(machine, node) if known_number else None
    if isinstance(integer, Affine) or (integer is OPAQUE and isinstance(example(node), torch.SymBool)):
        return integer
    if not isinstance(example(node), torch.Tensor):
        return DOCUMENTS["*"](machine, node) if known_number else OPAQUE
    if known_number:
        return DOCUMENTS["*"](machine, node)
    segments = _segments(machine, node)
    if not segments:
        return outside_call(machine, node)
    call = call_of(node)
    alias = call is not None and bool(aliases_of(call)[0])
    return _apply(machine, node, segments, node.target, node.op == "call_method", alias)


def unfit(value: Any, node: fx.Node) -> Refused:
    """What a call on whole rows cannot take."""
    if value is OPAQUE or isinstance(value, Affine):
        reason = f"{label(node)} uses a boundary, a length or the document's number as a value"
        return Refused("index-as-number", reason, node)
    return Refused("no-rule", f"{label(node)} of a document that has become longer or shorter has no rule", node)


def outside_call(machine: Machine, node: fx.Node) -> Any:
    """An op on outside tensors only: the same for every document."""

    def convert(value: Any) -> Any:
        if isinstance(value, Outside):
            return value
        raise unfit(value, node)

    only_documented(node)
    args, kwargs = arguments(machine, node, convert)
    return machine.computed((node.target, node.op == "call_method", args, kwargs), example(node))


def only_documented(node: fx.Node) -> None:
    """Refuse a call with keywords that torch has no schema of (``out=`` above all), or that writes its operand."""
    call = call_of(node)
    if (call is None and node.kwargs) or (call is not None and call.arguments.get("inplace")):
        raise Refused(
            "no-rule", f"{label(node)} with {', '.join(sorted(node.kwargs)) or 'inplace=True'} has no rule", node
        )


def minds_unread(node: fx.Node) -> bool:
    """May a slot that nobody reads matter for what it holds: does the call raise, or have a gradient that is not 0?"""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        return bool(example(node).requires_grad)
    differentiated = {o.argument for o in call.operands if o.value.requires_grad} - call.unread
    linear = differentiated <= meaning.traits.zero_gradient
    return bool(meaning.traits.raises) or (example(node).requires_grad and not linear)


def _apply(
    machine: Machine,
    node: fx.Node,
    segments: list[Segment],
    target: Any,
    method: bool,
    alias: bool = False,
    window: Window | None = None,
) -> Segment:
    only_documented(node)
    first = segments[0]
    for other in segments[1:]:
        if other.dim != first.dim:
            raise Refused("dim-mismatch", f"{label(node)} combines segments along different dimensions", node)

    guarded = minds_unread(node)
    window = common_window(machine, segments) if window is None else window

    def convert(value: Any) -> Any:
        if isinstance(value, Segment):
            term = machine.aligned(value, window, node, broadcast=True)
            return machine.guard(term, window, term.dim) if guarded else term
        if isinstance(value, Outside):
            machine.broadcasts(value, first.dim, node)
            return value
        raise unfit(value, node)

    args, kwargs = arguments(machine, node, convert)
    term = Apply(target, method, args, kwargs, first.dim)
    rank = example(node).dim()
    if alias and len(segments) == 1:
        source = next(a for a in node.all_input_nodes if isinstance(machine.value(a), Segment))
        if example(source).dtype == example(node).dtype:
            return machine.view(term, rank, first)
    return machine.fresh(term, rank, window, least=together(segments))


def in_place(machine: Machine, node: fx.Node) -> Any:
    """``x.op_(...)`` and ``x op= y``: the functional op, then an assignment to what ``x`` views."""
    name = base_name(name_of(node))
    target = machine.value(node.args[0])
    if not isinstance(target, Segment):
        if isinstance(target, Affine) or target is OPAQUE:
            integer = _integer(machine, node)
            if integer is not None and not isinstance(example(node), torch.Tensor):
                return integer
        raise Refused("outer-tensor-write", f"{label(node)} changes a tensor from outside the loop", node)
    if any(isinstance(machine.value(a), Affine) for a in node.all_input_nodes):
        return DOCUMENTS["*"](machine, node)
    fn: Any = getattr(torch, name, None) or getattr(F, name, None)
    segments = _segments(machine, node)
    window = target.window if meets(machine, segments) else None
    value = _apply(machine, node, segments, fn or name, method=fn is None, window=window)
    if value.window != target.window:
        raise Refused("length-mismatch", f"{label(node)} combines parts of a document that do not match", node)
    machine.write(target, target.window, value, node)
    return target
