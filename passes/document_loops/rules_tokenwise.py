"""Rules for ops that leave the packed dimension alone: reductions, scans, orders and norms over *other* dimensions.

Such an op does to every slot what it does to every slot of a document, so its whole-row form is the same call on whole
rows. What a slot that nobody asked for holds must not matter: `operand` puts numbers there that cannot raise and that
have harmless gradients. Lookups and losses are in `rules_lookups`, views in `rules_splits`.

Does not handle, on purpose: ops whose result for one slot depends on other slots (over the packed dimension itself,
group, instance and batch norm), random numbers (dropout in training), ``embedding(max_norm=...)``, which writes.
Where torch leaves open which of several equal values `topk` and `sort` name, it stays open.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from packpass import markers
from packpass.semantics import argument, call_of, example, family_of, meaning_of
from packpass.semantics.call import op_of_name
from packpass.semantics.names import name_of_target
from packpass.semantics.registry import FAMILIES, reorders
from passes.document_loops.by_meaning import by_meaning
from passes.document_loops.machine import Machine, Segment, Store, frozen_args
from passes.document_loops.op_names import label, unshadowed
from passes.document_loops.operands import differentiated, operand
from passes.document_loops.rules import TOKENWISE, outside_call, tokenwise
from passes.document_loops.terms import Apply, Outside, map_args
from passes.refused import Refused

# === The whole-row form of a call ============================================================================


def segments(machine: Machine, node: fx.Node) -> list[Segment]:
    """The segments among the inputs of a node."""
    return [v for v in (machine.value(arg) for arg in node.all_input_nodes) if isinstance(v, Segment)]


def only_outside(machine: Machine, node: fx.Node) -> bool:
    """Does the node work on outside tensors alone?"""
    return all(isinstance(machine.value(arg), Outside) for arg in node.all_input_nodes)


def known_keywords(node: fx.Node, *names: str) -> None:
    """Refuse keywords that a rule has not thought of (``out=`` above all)."""
    unknown = sorted(set(node.kwargs) - set(names))
    if unknown:
        raise Refused("no-rule", f"{label(node)} with {', '.join(unknown)} has no rule", node)


def whole_row(
    machine: Machine,
    node: fx.Node,
    like: Segment,
    dim: int,
    *,
    linear: bool = False,
    fill: int | None = None,
    indices: Collection[Any] = (),
    alias: bool = False,
) -> Any:
    """The node's call on whole rows, its result packed along ``dim`` (negative) on the slots of ``like``.

    ``linear``: the gradient of a slot that nobody reads is 0 whatever the slot holds. ``fill``: slots that nobody
    asked for must hold this even without a gradient, or the op raises. ``indices``: arguments that hold indices.
    """
    if fill is None and not linear and differentiated(node):
        fill = 1

    def leaf(arg: Any) -> Any:
        return operand(machine, arg, like.window, node, 0 if arg in indices else fill)

    args = frozen_args(map_args(node.args, leaf))
    kwargs = tuple(sorted((k, frozen_args(map_args(v, leaf))) for k, v in node.kwargs.items()))
    term = Apply(_target(node), node.op == "call_method", args, kwargs, dim)
    return made(machine, node, term, like, alias)


def _target(node: fx.Node) -> Any:
    """What to call: torch's own op where capture has put one of the same signature in its place."""
    return markers.SHADOWS.get(node.target, node.target)


def made(machine: Machine, node: fx.Node, term: Apply, like: Segment, alias: bool = False) -> Any:
    """The value of a node computed as ``term``: one segment, or one per result."""
    fake = example(node)
    if not isinstance(fake, (tuple, list)):
        return _segment(machine, term, fake.dim(), like, alias)
    several = machine.intern(term)
    parts = (Apply(operator.getitem, False, (several, i), (), term.dim) for i in range(len(fake)))
    return tuple(_segment(machine, part, t.dim(), like, alias) for part, t in zip(parts, fake, strict=True))


def _segment(machine: Machine, term: Apply, rank: int, like: Segment, alias: bool) -> Segment:
    if alias:
        return machine.view(term, rank, like)
    return machine.fresh(term, rank, like.window, least=like.store.least)


def unwritable(machine: Machine, term: Apply, rank: int) -> Segment:
    """A segment made of outside tensors whose slots may share memory: writes to it are refused."""
    base = Store(machine.intern(term))
    return Segment(Store(base.term, parent=(base, 0)), base.domain, rank)


def adds_up(term: Apply) -> bool:
    """Is this an op whose last bits depend on the number of slots, or one of which that is not known?"""
    return reorders(op_of_name(name_of_target(term.target)))


# === Ops along dimensions that they name =====================================================================


def _along(machine: Machine, node: fx.Node) -> Any:
    """Reductions, scans, orders and products over other dimensions than the packed one, by what they mean."""
    if only_outside(machine, node):
        return outside_call(machine, node)
    if family_of(node) == "pointwise":
        return _binary(machine, node)
    with unshadowed(node) as call:
        return by_meaning(machine, call)


def _binary(machine: Machine, node: fx.Node) -> Any:
    """``torch.max(a, b)``: elementwise."""
    return slot_by_slot(machine, node) if segments(machine, node) else NotImplemented


def slot_by_slot(
    machine: Machine, node: fx.Node, fill: int | None = None, indices: Collection[Any] = (), linear: bool = False
) -> Any:
    """An op that treats every slot alike and broadcasts its operands."""
    found = segments(machine, node)
    if not found:
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    first = found[0]
    for arg in node.all_input_nodes:
        value = machine.value(arg)
        if isinstance(value, Segment) and value.dim != first.dim:
            raise Refused("dim-mismatch", f"{label(node)} combines segments along different dimensions", node)
        if isinstance(value, Outside):
            machine.broadcasts(value, first.dim, node)
    result = whole_row(machine, node, first, first.dim, fill=fill, indices=indices, linear=linear)
    return exactly(result, found)


def exactly(result: Segment, found: list[Segment]) -> Segment:
    """A result is as long as the document only if all its operands are."""
    result.store.least = max(s.store.least for s in found)
    return result


# === Normalisation over trailing dimensions ==================================================================


@tokenwise("layer_norm", "rms_norm")
def _layer_norm(machine: Machine, node: fx.Node) -> Any:
    shape = argument(node, 1, "normalized_shape")
    value = machine.value(argument(node, 0, "input"))
    if not isinstance(value, Segment) or not isinstance(shape, (tuple, list)):
        return outside_call(machine, node) if only_outside(machine, node) else NotImplemented
    known_keywords(node, "input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    if -value.dim <= len(shape):
        raise Refused("no-rule", f"{label(node)} over the document's own dimension has no rule", node)
    if len(segments(machine, node)) > 1:
        raise Refused("no-rule", f"{label(node)} with weights of its own for every slot has no rule", node)
    means = meaning_of(call_of(node))
    if differentiated(node) and (means is None or means.traits.singular):  # slots that nobody asked for are all ones
        raise Refused("no-rule", f"the gradient of {label(node)} with eps <= 0 has no rule", node)
    return whole_row(machine, node, value, value.dim)


@tokenwise("diff")
def _diff(machine: Machine, node: fx.Node) -> Any:
    """No difference at all is a copy."""
    value, n = machine.value(node.args[0]) if node.args else None, argument(node, 1, "n", 1)
    others = [a for a in node.all_input_nodes if a is not node.args[0]]
    if n != 0 or type(n) is not int or others or not isinstance(value, Segment):
        raise Refused("no-rule", f"{label(node)}: it combines neighbouring slots", node)
    return exactly(
        machine.fresh(Apply(torch.clone, False, (machine.read(value, node),), (), value.dim), value.rank, value.window),
        [value],
    )


# === Attention within a slot =================================================================================


@tokenwise("scaled_dot_product_attention")
def _attention(machine: Machine, node: fx.Node) -> Any:
    """Attention among a slot's own heads or patches: the packed dimension is a batch dimension of q, k and v."""
    found = segments(machine, node)
    if len(node.args) < 3 or not all(isinstance(machine.value(a), Segment) for a in node.args[:3]):
        return NotImplemented
    known_keywords(node, "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    first = found[0]
    mask, dropout = argument(node, 3, "attn_mask"), argument(node, 4, "dropout_p", 0.0)
    if first.dim > -3 or any(s.dim != first.dim for s in found) or dropout != 0.0:
        return NotImplemented
    if isinstance(mask, fx.Node) and isinstance(machine.value(mask), Outside):
        machine.broadcasts(machine.value(mask), first.dim, node)
    if argument(node, 7, "enable_gqa", False) and first.dim == -3:
        raise Refused("no-rule", f"{label(node)} with grouped heads along the packed dimension has no rule", node)
    return exactly(whole_row(machine, node, first, first.dim), found)


for _name in {**FAMILIES["reductions"], **FAMILIES["products"]}.keys() - TOKENWISE.keys():
    tokenwise(_name)(_along)
