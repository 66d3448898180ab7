"""What collectives do to blocks, and functions with a backward of their own that call some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from packpass.semantics import argument, example, op_name
from packpass.semantics.collectives import collective_name
from passes.fuse_all_to_all import blocks as B
from passes.fuse_all_to_all.blocks import Blocks, NotMovement, Size
from passes.fuse_all_to_all.held import Buffer
from passes.fuse_all_to_all.integers import UNKNOWN
from passes.fuse_all_to_all.straight_find import EXCHANGE, GATHER, SUMS, group_of
from passes.nodes import needed_for

if TYPE_CHECKING:
    from passes.fuse_all_to_all.body import Body


def collective(body: Body, node: fx.Node) -> Any:
    name = collective_name(node.target)
    if name == "wait_tensor":
        return body.blocks(node.args[0])
    if name == GATHER:
        return _gathered(body, node)
    if name in SUMS and body.summed is not None and argument(node, 1, "") == "sum":
        _in_group(body, group_of(node))
        value = B.all_reduce(body.blocks(node.args[0]), body.summed)
        return B.own_part(value) if name == SUMS[1] else value
    if name != EXCHANGE:
        return UNKNOWN
    x, outputs, inputs, group = (argument(node, i, "") for i in range(4))
    value = body.blocks(x)
    sizes = {body.size(s) for s in (*outputs, *inputs)}
    if len(sizes) != 1 or len(outputs) != body.cp or len(inputs) != body.cp:
        raise NotMovement("uneven splits")
    if sizes.pop().times(Size(body.cp)) != B.size_of(value.dims[0]):
        raise NotMovement("splits that are not the parts of the first dimension")
    _in_group(body, group)
    return B.all_to_all(value)


def _gathered(body: Body, node: fx.Node) -> Blocks:
    x, size, group = (argument(node, i, "") for i in range(3))
    if size != body.cp:
        raise NotMovement("another group")
    _in_group(body, group)
    if not body.functions:
        # Whether a plain all-gather passes gradients on, as an all-to-all does, depends on the release of torch.
        body.ways_back.add("sum" if example(node).requires_grad or not example(x).requires_grad else "none")
    return B.all_gather(body.blocks(x))


def _in_group(body: Body, group: Any) -> None:
    if not isinstance(group, str) or body.group not in (None, group):
        raise NotMovement("two groups")
    body.group = group


def function(body: Body, node: fx.Node) -> Any:
    """An autograd.Function that moves blocks, if its backward is the gradient of its forward."""
    forward, backward, *args = node.args
    special = node.kwargs.get("non_differentiable_idx") or node.kwargs.get("saved_for_backward_idx")
    buffers = {a: body.values[a] for a in args if _for_result(body, a, node)}
    tensors = [a for a in args if isinstance(example(a), torch.Tensor) and a not in buffers]
    if special or len(tensors) != 1 or not all(isinstance(b, fx.Node) for b in (forward, backward)):
        return UNKNOWN
    value = body.blocks(tensors[0])
    trial = B.fresh(value.dims, body.cp)
    rest = [body.scalar(a) if a is not tensors[0] else None for a in args]
    names = [str(b.target) for b in (forward, backward)]  # type: ignore[union-attr]

    first_only = all(_takes_first(user) for user in node.users)

    def once(start: Blocks) -> tuple[list[Any], list[Any]]:
        """The results, of which one tensor is used, and what the backward gets after its gradient: nothing for the
        others that older torch returns, and integers."""
        filled = {a: Buffer() for a in buffers}
        given = [start if a is tensors[0] else filled.get(a, r) for a, r in zip(args, rest, strict=True)]
        results, saved = body.call(names[0], given)
        if any(isinstance(v, Blocks) for v in saved):
            raise NotMovement("a function that keeps tensors for its backward")
        several = list(results) if isinstance(results, (tuple, list)) and first_only else [results]
        return [_single(several[:1]), *several[1:]], [UNKNOWN] * (len(several) - 1) + list(saved)

    (moved, *_), saved = once(trial)
    grad = B.fresh(moved.dims, body.cp)
    body.summed = grad.data[0].size
    try:
        back = B.way_back(moved, _single(body.call(names[1], [grad, *saved])), trial, body.rank())
    finally:
        body.summed = None
    if back is None:
        raise NotMovement("a backward that is not the gradient of the forward")
    if back != "moved":
        body.ways_back.add(back)
        _note_own(body, backward)
    body.exchanged.add(node)
    return tuple(once(value)[0])


def _note_own(body: Body, backward: Any) -> None:
    """What a rank takes of what it gets is its own affair; what the ranks send is not."""
    nodes = list(getattr(body.gm, str(backward.target)).graph.nodes)
    sent = needed_for(n for n in nodes if collective_name(n.target))
    body.own_affair[backward] = [node for node in nodes if node in sent]


def _for_result(body: Body, arg: Any, function: fx.Node) -> bool:
    """Is an argument of an autograd.Function new memory for its result, which nothing else has a look at?

    Read directly, it would hold the same numbers without a gradient.
    """
    if not isinstance(arg, fx.Node) or function.args.count(arg) != 1:
        return False
    buffer = body.values.get(arg)
    if not isinstance(buffer, Buffer) or buffer.content is not None:
        return False
    return not any(user is not function and isinstance(example(user), torch.Tensor) for user in arg.users)


def _takes_first(user: fx.Node) -> bool:
    """The first result of a function, or a number that older torch returns beside it."""
    return op_name(user) == "getitem" and bool(user.args[1] == 0 or not isinstance(example(user), torch.Tensor))


def _single(results: Any) -> Blocks:
    """The one tensor in a structure of results."""
    flat: list[Any] = []

    def visit(value: Any) -> None:
        if isinstance(value, (tuple, list)):
            for v in value:
                visit(v)
        else:
            flat.append(value)

    visit(results)
    found = [v for v in flat if isinstance(v, Blocks)]
    if len(found) != 1 or any(v is not None for v in flat if v is not found[0]):
        raise NotMovement("a function with more than one result")
    return found[0]
