"""``logsumexp``, ``logsigmoid``, ``var`` and ``std`` of rows of unknown length, without the question whether there is a
slot.

Torch's definition of the first, and of the gradient of the others, asks that, which fails where only the data says how
many rows there are. Over features, of which there is one at least, the answer makes no difference to the first: the
largest is taken from all, and what is left are sums of powers. The second is ``-softplus(-x)``. The variance is made of
the squares of what differs from the mean; its gradient by way of the mean adds up to 0.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import fx

from packpass._compat import free_unbacked_symbols, statically_known_true
from packpass._registry import registrar
from packpass.semantics import Call, call_of, example, op_name
from packpass.semantics.build import Builder, NotBuilt

Form = Callable[[Builder, Call], "fx.Node | None"]
_MADE: dict[str, Form] = {}
"""Op name -> the other form of a call; None if this call has none."""


form = registrar(_MADE)
"""Registers an op under its plain names."""


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


@form("logsumexp")
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


@form("logsigmoid", "log_sigmoid")
def _log_sigmoid(build: Builder, of: Call) -> fx.Node:
    return build.call(torch.neg, build.call(F.softplus, build.call(torch.neg, of.operands[0].node), 1, _EXACT))


@form("var", "std")
def _variance(build: Builder, of: Call) -> fx.Node | None:
    call, x, value = build.call, of.operands[0].node, of.operands[0].value
    if of.get("dim", default=None) not in (None, [], ()) or len(of.operands) != 1 or not value.is_floating_point():
        return None
    unbiased, correction = of.get("unbiased", default=None), of.get("correction", default=None)
    less = int(unbiased) if isinstance(unbiased, bool) else 1 if correction is None else correction
    if value.dtype.itemsize < 4:
        x = call("to", x, torch.float32, method=True)
    dims = tuple(range(value.dim()))
    left = call(torch.sub, x, call("detach", call(torch.mean, x, dims, True), method=True))
    squares = call(torch.sum, call(torch.mul, left, left), dims, bool(of.get("keepdim", default=False)))
    sizes = [call(torch.ops.aten.sym_size.int, x, d) for d in dims]
    degrees = call(torch.scalar_tensor, functools.reduce(functools.partial(call, operator.mul), sizes))
    degrees = call("to", degrees, example(squares).device, example(squares).dtype, method=True)
    out = call(torch.div, squares, call(torch.clamp, call(torch.sub, degrees, less), min=0))
    if of.op == "std":  # whose gradient at 0 is 0
        some = call(torch.gt, out, 0)
        out = call(torch.where, some, call(torch.sqrt, call(torch.where, some, out, 1)), out)
    return out if example(out).dtype == value.dtype else call("to", out, value.dtype, method=True)
