"""Aten's spelling of a call as users write it: one spelling for everybody who reads a graph.

======================================  =================================================
aten                                    in a Dynamo graph
======================================  =================================================
``slice.Tensor(x, 1, 0, 4)``            ``x[:, 0:4]``
``index.Tensor(x, [None, i])``          ``x[:, i]``
``view(x, [n, 4])``                     ``x.reshape(n, 4)``
``_to_copy(x, dtype=float32)``          ``x.to(float32)``
``_softmax(x, 1, False)``               ``torch.softmax(x, 1)``
``embedding(weight, ids)``              ``F.embedding(ids, weight)``
``squeeze.dims(x, [1, 2])``             ``x.squeeze(2).squeeze(1)``
======================================  =================================================

Other overloads have the arguments of the torch function of their name, and stay what they are.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from packpass._compat import native_pad

_aten = torch.ops.aten
_UNSAID = frozenset({"layout", "pin_memory", "implicit"})
"""Keywords that aten's nodes spell out with what is the default."""


def respell(graph: fx.Graph) -> None:
    """Rewrite the nodes of a graph of aten operations in place; what nobody uses goes."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            node.kwargs = {k: v for k, v in node.kwargs.items() if k not in _UNSAID}
        writer = _WRITERS.get(node.target)
        if writer is not None:
            writer(node)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not _acts(node):
            graph.erase_node(node)


def _acts(node: fx.Node) -> bool:
    """Does a call do something beside giving a result?"""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and (schema.is_mutable or not schema.returns)


def _get(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _become(node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
    node.op = "call_method" if isinstance(target, str) else "call_function"
    node.target, node.args, node.kwargs = target, args, kwargs or {}


def _rank(node: Any) -> int:
    return int(node.meta["example_value"].dim())


def _slice(node: fx.Node) -> None:
    x, dim, step = node.args[0], int(_get(node, 1, "dim", 0)), _get(node, 4, "step", 1)
    start, end = _get(node, 2, "start"), _get(node, 3, "end")
    end = None if type(end) is int and end >= sys.maxsize else end
    start = None if type(start) is int and start == 0 else start
    cut = slice(start, end, None if type(step) is int and step == 1 else step)
    _become(node, operator.getitem, (x, (*(slice(None),) * (dim % _rank(x)), cut)))


def _index(node: fx.Node) -> None:
    x, entries = node.args[0], node.args[1]
    index = tuple(slice(None) if e is None else e for e in entries)  # type: ignore[union-attr]
    _become(node, operator.getitem, (x, index if len(index) != 1 else index[0]))


def _view(node: fx.Node) -> None:
    x, sizes = node.args[0], node.args[1]
    _become(node, "reshape", (x, *sizes))  # type: ignore[misc]


def _expand(node: fx.Node) -> None:
    x, sizes = node.args[0], node.args[1]
    _become(node, "expand", (x, *sizes))  # type: ignore[misc]


def _to_copy(node: fx.Node) -> None:
    have, made = node.args[0].meta["example_value"], node.meta["example_value"]  # type: ignore[union-attr]
    if have.dtype == made.dtype and have.device == made.device:
        _become(node, "clone", (node.args[0],))
    elif have.device == made.device:
        _become(node, "to", (node.args[0], made.dtype))
    else:
        _become(node, "to", (node.args[0], made.device, made.dtype))


def _softmax(function: Callable[..., Any]) -> Callable[[fx.Node], None]:
    def write(node: fx.Node) -> None:
        wider = bool(_get(node, 2, "half_to_float", False))
        _become(node, function, (node.args[0], node.args[1]), {"dtype": torch.float32} if wider else {})

    return write


def _embedding(node: fx.Node) -> None:
    names = ("padding_idx", "scale_grad_by_freq", "sparse")
    defaults = (-1, False, False)
    given = {n: _get(node, i + 2, n, d) for i, (n, d) in enumerate(zip(names, defaults, strict=True))}
    kept = {n: v for (n, v), d in zip(given.items(), defaults, strict=True) if v != d}
    _become(node, torch.nn.functional.embedding, (node.args[1], node.args[0]), kept)


def _squeeze(node: fx.Node) -> None:
    x, dims = node.args[0], node.args[1]
    rank = _rank(x)
    value = x.meta["example_value"]  # type: ignore[union-attr]
    found = sorted({int(d) % rank for d in dims}, reverse=True)  # type: ignore[union-attr,arg-type]
    last: Any = x
    for at, d in enumerate(found):
        if at == len(found) - 1:
            _become(node, torch.squeeze, (last, d))
            return
        with node.graph.inserting_before(node):
            last = node.graph.call_function(torch.squeeze, (last, d))
        value = torch.squeeze(value, d)
        last.meta["example_value"] = value


def _log_sigmoid(node: fx.Node) -> None:
    """The second result is a buffer for the backward of this kernel."""
    users = [user for user in node.users if user.users]
    if any(user.target is not operator.getitem or user.args[1] != 0 for user in users):
        return
    for user in users:
        _become(user, torch.nn.functional.logsigmoid, (node.args[0],))


def _pad(node: fx.Node) -> None:
    sizes: Any = node.args[1]
    _become(node, native_pad(), (node.args[0], list(sizes), "constant", _get(node, 2, "value", 0)))


def _named(target: Any) -> Callable[[fx.Node], None]:
    return lambda node: _become(node, target, node.args, dict(node.kwargs))


def _table() -> dict[Any, Callable[[fx.Node], None]]:
    writers: dict[str, Callable[[fx.Node], None]] = {
        "slice.Tensor": _slice,
        "index.Tensor": _index,
        "_unsafe_index.Tensor": _index,
        "view.default": _view,
        "_unsafe_view.default": _view,
        "reshape.default": _view,
        "expand.default": _expand,
        "_to_copy.default": _to_copy,
        "_softmax.default": _softmax(torch.softmax),
        "_log_softmax.default": _softmax(torch.log_softmax),
        "embedding.default": _embedding,
        "squeeze.dims": _squeeze,
        "log_sigmoid_forward.default": _log_sigmoid,
        "pad.default": _named(native_pad()),
        "constant_pad_nd.default": _pad,
        "lift_fresh_copy.default": _named(torch.clone),
        "lift_fresh.default": _named(torch.clone),
    }
    found = {}
    for name, writer in writers.items():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(_aten, packet, None), overload, None)
        if op is not None:
            found[op] = writer
    return found


_WRITERS = _table()
