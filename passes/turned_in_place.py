"""Axes that are exchanged in place (``pooled.transpose_(0, 1)``) in the bodies of loops, as views, and functions that
are told to write their operand (``F.relu(h, inplace=True)``) as those that do not.

Not a rewrite of its own: runs before the passes that look at loops, and only where nobody else looks at the tensor, so
that which of the two it is makes no difference: memory of its own, with one user. Of others, loops are refused.
"""

from __future__ import annotations

import torch
from torch import fx

from packpass.semantics import call_of, example, storage
from packpass.semantics.binding import parameters_of
from packpass.semantics.effects import effects_of, reshapes_in_place
from packpass.semantics.memory import is_new
from packpass.semantics.names import base_name, is_in_place, op_name
from packpass.semantics.views import TRANSPOSING
from passes.loops import LoopFound, find
from passes.refused import Refused

_SELF_INVERSE = TRANSPOSING - {"permute", "movedim"}
"""What gives back the tensor where it is done twice."""


def with_turned_views(graph: fx.Graph) -> None:
    """Write views, and functions that write nothing, in place of such calls."""
    for loop in find(graph):
        for node in (node for _, body, _ in loop.iterations for node in body):
            given = node.args[0] if node.args else None
            if isinstance(given, fx.Node) and given in loop.nodes and set(given.users) == {node}:
                _turn(node, given)
                _write_nothing(node, given)


def _turn(node: fx.Node, given: fx.Node) -> None:
    name, turned = op_name(node), example(node)
    if node.op != "call_method" or not is_in_place(name) or base_name(name) not in _SELF_INVERSE or node.kwargs:
        return
    if isinstance(turned, torch.Tensor) and _is_its_own(given):
        # Dynamo's own example of what was given was turned as well.
        given.meta["example_value"] = getattr(turned, base_name(name))(*node.args[1:])
        node.target = base_name(name)


def _write_nothing(node: fx.Node, given: fx.Node) -> None:
    call = call_of(node) if node.op == "call_function" else None
    if call is None or call.arguments.get("inplace") is not True or not is_new(given):
        return
    if not isinstance(example(node), torch.Tensor):
        return
    if "inplace" in node.kwargs:
        node.update_kwarg("inplace", False)
    else:
        node.update_arg(parameters_of(None, node.target).index("inplace"), False)
    node.meta["example_value"] = example(node).clone()  # what was given has memory of its own again


def check_turned(loop: LoopFound) -> None:
    """Refuse a loop that looks at a tensor whose shape is changed in place behind it: what torch has noted of the
    tensor is its last shape."""
    end = loop.iterations[-1][2]
    looked_at = {storage(given) for node in loop.nodes for given in (node, *node.all_input_nodes)} - {None}
    for node in end.graph.nodes:
        given = node.args[0] if node > end and node.args else None
        if isinstance(given, fx.Node) and storage(given) in looked_at and reshapes_in_place(op_name(node)):
            raise Refused("aliasing", "a tensor that the loop looks at changes its shape in place behind it", node)


def _is_its_own(node: fx.Node) -> bool:
    """Is what a call returns certainly another tensor than those that it was given? Some hand back an argument
    (``x.contiguous()``, ``x.add_(1)``, ``F.dropout(x, training=False)``), at which somebody else may look."""
    given = [n for n in node.all_input_nodes if isinstance(example(n), torch.Tensor)]
    own = storage(node) not in (None, *map(storage, given)) and effects_of(node).pure
    return own and all(_sizes(n) != _sizes(node) for n in given)


def _sizes(node: fx.Node) -> list[str]:
    """The sizes of a tensor, in whatever order."""
    return sorted(map(str, example(node).shape))
