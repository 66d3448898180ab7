"""Prove that an ``autograd.Function`` is an all-to-all forward, and the all-to-all of the gradient backward.

Dynamo keeps the two bodies of such a function as graphs. Both are read as what they do to the elements of their one
tensor, taken in row-major order: views that keep this order, copies and casts to nothing are nothing, an equal-split
all-to-all exchanges parts of this order, a buffer is what was copied into it. Whatever else a body does ends the proof.

    fwd(x): x = x.contiguous(); out = empty_like(x); out.copy_(wait(all_to_all_single(x))); return out
    bwd(g): the same                                                    -> one all-to-all, its own backward

Does not handle: permutations inside the function, several tensors, saved tensors, scaled gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from packpass._compat import is_collective, statically_known_true
from packpass.semantics import AUTOGRAD_FUNCTION, argument, blank, example, keeps_order, op_name
from packpass.semantics.collectives import collective_name
from packpass.semantics.effects import changes_grad_mode
from passes.fuse_all_to_all.straight_copies import is_row_major
from passes.fuse_all_to_all.straight_effects import body_of, is_pure
from passes.fuse_all_to_all.straight_find import EXCHANGE, Member, equal_parts, group_of, is_wait, member, same_shape
from passes.refused import Refused


@dataclasses.dataclass(frozen=True)
class Elements:
    """The elements of a body's tensor input, in row-major order, exchanged or not."""

    source: fx.Node
    exchanged: tuple[str, int] | None = None
    """Group and its size."""
    rows: Any = dataclasses.field(default=None, compare=False)
    """First dimension of what was exchanged."""


class Blank:
    """A buffer that nothing was copied into."""


class Number:
    """A size, or something computed from sizes."""


def find_function(node: fx.Node) -> Member | None:
    """The member that a call of an autograd.Function is; None if it has no collective. Raises Refused."""
    if op_name(node) != AUTOGRAD_FUNCTION:
        return None
    bodies = [body_of(n) if isinstance(n, fx.Node) else None for n in node.args[:2]]
    forward, backward = bodies if len(bodies) == 2 else (None, None)
    if forward is None or backward is None or not any(is_collective(n.target) for n in forward.graph.nodes):
        return None
    try:
        return _proven(node, forward, backward)
    except Refused as refused:
        raise Refused(refused.code, refused.reason, node) from None


def _proven(node: fx.Node, forward: fx.GraphModule, backward: fx.GraphModule) -> Member:
    arguments = list(node.args[2:])
    buffers = [i for i, a in enumerate(arguments) if _for_result(a, node)]
    tensors = [a for i, a in enumerate(arguments) if isinstance(example(a), torch.Tensor) and i not in buffers]
    users = list(node.users)
    if len(tensors) != 1 or not isinstance(tensors[0], fx.Node):
        raise Refused("function-not-exchange", "the autograd.Function takes more than one tensor")
    if len(users) != 1 or op_name(users[0]) != "getitem" or users[0].args[1] != 0:
        raise Refused("function-not-exchange", "the autograd.Function returns more than one tensor")
    if node.kwargs.get("non_differentiable_idx"):
        raise Refused("function-not-exchange", "the autograd.Function's result is not differentiable")
    source, result = tensors[0], users[0]
    place = arguments.index(source)

    outputs, saved = _outputs(forward)
    inputs = forward.graph.find_nodes(op="placeholder")
    values = _run(forward, {inputs[i] for i in buffers})
    # Nobody uses other outputs; older torch also returns what a function computes on its way.
    sent = values.get(outputs[0]) if outputs else None
    if not isinstance(sent, Elements) or sent.exchanged is None or sent.source is not inputs[place]:
        raise Refused("function-not-exchange", "the autograd.Function does more than one all-to-all of its input")
    if any(isinstance(example(s), torch.Tensor) for s in saved):
        raise Refused("function-not-exchange", "the autograd.Function saves tensors for its backward")
    if not (same_shape(example(source), example(result)) and is_row_major(example(result))):
        raise Refused("function-not-exchange", "the autograd.Function's result has another shape than its input")

    gradients = list(backward.graph.find_nodes(op="output")[0].args[0])
    grad = _run(backward).get(gradients[place]) if len(gradients) == len(arguments) else None
    incoming = backward.graph.find_nodes(op="placeholder")[0]
    if grad != Elements(incoming, sent.exchanged) or not same_shape(example(gradients[place]), example(source)):
        raise Refused("function-not-exchange", "the backward is not just the all-to-all of the gradient")
    group, group_size = sent.exchanged
    rows = example(source).shape[0] if example(source).dim() else 1
    if not statically_known_true(rows == sent.rows) and not statically_known_true(rows % group_size == 0):
        raise Refused("function-not-exchange", "the rows of its input do not divide by the group's size")
    return member(EXCHANGE, (node, result), (source,), group, group_size)


def _outputs(forward: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """What the function returns, and what it saves for its backward."""
    found: Any = forward.graph.find_nodes(op="output")[0].args[0]
    if len(found) != 2 or not all(isinstance(part, (tuple, list)) for part in found):
        raise Refused("function-not-exchange", "the autograd.Function has a form that is not understood")
    return list(found[0]), list(found[1])


def _for_result(argument: Any, function: fx.Node) -> bool:
    """Is an argument new memory that nobody but the function sees?"""
    return isinstance(argument, fx.Node) and blank(argument) and list(argument.users) == [function]


def _run(body: fx.GraphModule, buffers: Collection[fx.Node] = ()) -> dict[Any, Any]:
    """What every node of a body is. ``buffers``: inputs that hold nothing yet. Raises Refused at the first that is not
    understood."""
    values: dict[Any, Any] = dict.fromkeys(buffers, Blank())
    for node in body.graph.nodes:
        if node.op == "output" or changes_grad_mode(node) or node in values:
            continue
        values[node] = _value(node, values)
    return values


def _value(node: fx.Node, values: dict[Any, Any]) -> Any:
    shown = example(node)
    if node.op == "placeholder":
        return Elements(node) if isinstance(shown, torch.Tensor) else Number()
    name = op_name(node)
    first = node.args[0] if node.args else None
    given = values.get(first)
    if collective_name(node.target) == EXCHANGE:
        splits, received = argument(node, 2, "input_split_sizes"), argument(node, 1, "output_split_sizes")
        group = group_of(node)
        if isinstance(given, Elements) and given.exchanged is None and group is not None:
            assert isinstance(first, fx.Node)
            if isinstance(splits, (list, tuple)) and equal_parts(first, splits, received):
                return Elements(given.source, (group, len(splits)), example(first).shape[0])
        raise Refused("function-not-exchange", "the autograd.Function exchanges unequal parts, or twice")
    if is_wait(node):
        return given
    if name == "copy_":
        return _copied(node, values)
    if blank(node):
        return Blank()
    if keeps_order(node) and isinstance(given, Elements):
        if (shown.dtype, shown.device) == (example(first).dtype, example(first).device):
            return given
    # What has no tensor for a result may still write one: ``x[0] = 0``.
    if not isinstance(shown, torch.Tensor) and is_pure(node):
        if not any(isinstance(values.get(n), Blank) for n in node.all_input_nodes):
            return Number()
    raise Refused("function-not-exchange", f"the autograd.Function also calls {name or node.target}")


def _copied(node: fx.Node, values: dict[Any, Any]) -> Any:
    """``buffer.copy_(value)``: the buffer, which nobody else has seen, is the value from here on."""
    buffer, given = node.args[0], values.get(node.args[1])
    if (
        not isinstance(values.get(buffer), Blank)
        or not isinstance(given, Elements)
        or not isinstance(buffer, fx.Node)
        or not same_shape(example(buffer), example(node.args[1]))
        or not is_row_major(example(buffer))
    ):
        raise Refused("function-not-exchange", "the autograd.Function copies into a tensor that is not a new buffer")
    values[buffer] = given
    return given
