"""Rules for losses inside a document: one number per document.

A loss with ``reduction="mean"`` or ``"sum"`` over a document is the same loss without a reduction on the whole row
(`rules_lookups`), then a segment reduction.

Does not handle: means with class weights or soft targets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, call_of, example
from packpass.semantics.binding import parameters_of
from packpass.semantics.losses import OF_CLASSES, PAIRED, reduction_of
from passes.document_loops.machine import Machine, Segment
from passes.document_loops.op_names import label, name_of
from passes.document_loops.rules import TOKENWISE, outside_call, rule
from passes.document_loops.rules_reductions import Over, exact_type, mean
from passes.document_loops.rules_tokenwise import only_outside
from passes.document_loops.terms import Apply, Term
from passes.refused import Refused


@rule(*PAIRED, *OF_CLASSES)
def _loss(machine: Machine, node: fx.Node) -> Any:
    """``reduction="mean"`` and ``"sum"`` over all slots of a document."""
    if only_outside(machine, node):
        return outside_call(machine, node)
    reduction = reduction_of(call_of(node))
    scores, target = argument(node, 0, "input"), argument(node, 1, "target")
    if reduction not in ("mean", "sum") or not node.args or not isinstance(target, fx.Node):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    classes = name_of(node) in OF_CLASSES
    if not classes and tuple(example(scores).shape) != tuple(example(target).shape):
        raise Refused("no-rule", f"{label(node)} of different shapes has no rule", node)
    if classes and example(target).is_floating_point():
        raise Refused("no-rule", f"{label(node)} with soft targets and a {reduction} has no rule", node)
    if classes and reduction == "mean" and argument(node, 2, "weight") is not None:
        raise Refused("no-rule", f"the mean of {label(node)} with weights has no rule", node)
    losses = _without_reduction(machine, node, target if classes else scores)
    found = Over(
        machine,
        node,
        losses,
        machine.read(losses, node),
        example(scores).dtype,
        tuple(d for d in range(-losses.rank, 0) if d != losses.dim),
        False,
    ).to(exact_type(example(scores).dtype))
    if reduction == "sum":
        return found.done(found.reduce("sum"), found.dtype)
    if not classes:
        return found.done(mean(found), found.dtype)
    return found.done(_mean_of_counted(machine, node, found, target), found.dtype)


def _without_reduction(machine: Machine, node: fx.Node, like: Any) -> Segment:
    """What the rule for ``reduction="none"`` gives: asked with a copy of the call that belongs to no graph."""
    place = parameters_of(None, node.target).index("reduction")
    args, kwargs = node.args[:place] + node.args[place + 1 :], {**node.kwargs, "reduction": "none"}
    if len(node.args) > place + 1:
        raise Refused("no-rule", f"{label(node)} with that many positional arguments has no rule", node)
    call = fx.Graph().create_node(node.op, node.target, args, kwargs)
    try:
        scores = example(argument(node, 0, "input"))
        fake = scores.new_empty(example(like).shape)
        call.meta = {**node.meta, "example_value": fake.requires_grad_(example(node).requires_grad)}
        value = TOKENWISE[name_of(node)](machine, call)
    finally:
        call.graph.erase_node(call)
    if not isinstance(value, Segment):
        raise Refused("no-rule", f"this {label(node)} has no rule", node)
    return value


def _mean_of_counted(machine: Machine, node: fx.Node, losses: Over, target: fx.Node) -> Term:
    """The sum over the targets that are not ignored (their losses are 0), over their number."""
    wanted = machine.value(target)
    term = machine.aligned(wanted, losses.segment.window, node)
    counted = machine.intern(Apply(torch.ne, False, (term, argument(node, 4, "ignore_index", -100)), (), wanted.dim))
    count = losses.of(counted, torch.bool).to(losses.dtype).reduce("sum")
    return losses.apply(torch.div, losses.reduce("sum"), count, dim_of_term=0)
