"""``logsumexp`` of rows of unknown length, without the question whether there is a slot.

Torch's definition of it asks that first, which fails where only the data says how many rows there are. Over features,
of which there is one at least, the answer makes no difference: the largest is taken from all, and what is left are
sums of powers.
"""

from __future__ import annotations

import torch
from torch import fx

from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass.semantics import Call, call_of, example, op_name
from packpass.semantics.build import Builder, NotBuilt


def without_questions(graph: fx.Graph) -> None:
    """Every such call in the words of others."""
    for node in list(graph.nodes):
        call = call_of(node) if op_name(node) == "logsumexp" else None
        dims = None if call is None else _features(call)
        if call is None or dims is None:
            continue
        build = Builder(graph, before=node, like=call.operands[0].node)
        try:
            made = _log_of_powers(build, call.operands[0].node, dims, bool(call.get("keepdim", default=False)))
        except NotBuilt:
            build.undo()
            continue
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _features(call: Call) -> tuple[int, ...] | None:
    """The dimensions that are summed over, if they have one slot at least and others are unknown."""
    x, dim = call.operands[0].value, call.get("dim")
    dims = (dim,) if type(dim) is int else dim
    if call.results[0].dtype != x.dtype or not isinstance(dims, (tuple, list)) or not free_unbacked_symbols(x):
        return None
    known = all(type(d) is int and statically_known_true(x.shape[d] >= 1) for d in dims)
    return tuple(dims) if dims and known else None


def _log_of_powers(build: Builder, x: fx.Node, dims: tuple[int, ...], keepdim: bool) -> fx.Node:
    call = build.call
    highest = call(torch.amax, call("detach", x, method=True), dims, True)
    highest = call(torch.where, call(torch.isfinite, highest), highest, 0.0)
    total = call(torch.sum, call(torch.exp, call(torch.sub, x, highest)), dims, keepdim)
    left = highest if keepdim else call(torch.squeeze, highest, dims)
    out = call(torch.add, call(torch.log, total), left)
    return out if example(out).dtype == example(x).dtype else call("to", out, example(x).dtype, method=True)
