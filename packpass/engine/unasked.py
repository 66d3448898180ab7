"""``logsumexp`` and ``logsigmoid`` of rows of unknown length, without the question whether there is a slot.

Torch's definition of the one, and of the gradient of the other, asks that first, which fails where only the data says
how many rows there are. Over features, of which there is one at least, the answer makes no difference to the former:
the largest is taken from all, and what is left are sums of powers. The latter is ``-softplus(-x)``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import fx

from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.semantics import Call, call_of, example, op_name
from packpass.semantics.build import Builder, NotBuilt


def without_questions(graph: fx.Graph) -> None:
    """Every such call in the words of others."""
    for node in list(graph.nodes):
        call = call_of(node) if op_name(node) in _MADE else None
        if call is None or not free_unbacked_symbols(call.operands[0].value):
            continue
        build = Builder(graph, before=node, like=call.operands[0].node)
        try:
            made = _MADE[op_name(node)](build, call)
        except NotBuilt:
            build.undo()
            continue
        if made is None:
            continue
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _features(call: Call) -> tuple[int, ...] | None:
    """The dimensions that are summed over, if they have one slot at least and others are unknown."""
    x, dim = call.operands[0].value, call.get("dim")
    dims = (dim,) if type(dim) is int else dim
    if call.results[0].dtype != x.dtype or not isinstance(dims, (tuple, list)):
        return None
    known = all(type(d) is int and statically_known_true(x.shape[d] >= 1) for d in dims)
    return tuple(dims) if dims and known else None


def _log_of_powers(build: Builder, of: Call) -> fx.Node | None:
    dims, call, x = _features(of), build.call, of.operands[0].node
    if dims is None:
        return None
    keepdim = bool(of.get("keepdim", default=False))
    highest = call(torch.amax, call("detach", x, method=True), dims, True)
    highest = call(torch.where, call(torch.isfinite, highest), highest, 0.0)
    total = call(torch.sum, call(torch.exp, call(torch.sub, x, highest)), dims, keepdim)
    left = highest if keepdim else call(torch.squeeze, highest, dims)
    out = call(torch.add, call(torch.log, total), left)
    return out if example(out).dtype == example(x).dtype else call("to", out, example(x).dtype, method=True)


_EXACT = 80
"""Above it, softplus is what it was given: its powers would soon be infinite."""


def _log_sigmoid(build: Builder, of: Call) -> fx.Node:
    return build.call(torch.neg, build.call(F.softplus, build.call(torch.neg, of.operands[0].node), 1, _EXACT))


_MADE: dict[str, Callable[[Builder, Call], fx.Node | None]] = {
    "logsumexp": _log_of_powers,
    "logsigmoid": _log_sigmoid,
    "log_sigmoid": _log_sigmoid,
}
