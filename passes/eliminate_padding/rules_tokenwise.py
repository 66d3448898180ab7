"""Rules of ops that work on every token alone: pointwise ops, layers, and reductions over features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from packpass.layout.names import argument, example, op_name, storage
from passes.eliminate_padding.machine import Machine, Packed, Value, feature, physical, physical_dim, rule
from passes.eliminate_padding.op_sets import CASTS, INPLACE_FLAG, POINTWISE
from passes.eliminate_padding.rules_scores import on_scores
from passes.eliminate_padding.tile import Dims, merged, named
from passes.refused import Refused


@rule(*sorted(POINTWISE))
def _pointwise(m: Machine, node: fx.Node) -> Value:
    name = op_name(node)
    operands = [n for n in node.all_input_nodes if isinstance(example(n), Tensor)]
    if any(m.scores(n) is not None for n in operands):
        return on_scores(m, node)
    _check_inplace(m, node, name)
    if node.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refused("no-rule", f"{name} into a memory format of its own", node)
    found = {n: p for n in operands if (p := m.packed(n)) is not None}
    like = name in ("to", "type_as", "type")  # other operands give a dtype and a device, not slots
    dims = merged([p.dims for p in found.values()], example(node).dim(), node)
    first = m.packed(node.args[0])
    if like and (first is None or first.dims != dims):
        raise Refused("no-rule", f"{name} of a value without tokens", node)
    changed: dict[fx.Node, Any] = {}
    for n in operands:
        packed = found.get(n)
        if packed is not None:
            changed[n] = packed.node
        else:
            changed[n] = m.values[n].whole if like else m.aligned(n, dims)
        if changed[n] is None:
            raise Refused("attention-weights", f"{name} combines tokens with attention scores", node)
    # Features of an operand without tokens that the tokens' own are broadcast to.
    dims = tuple(parts or feature(n, node) for parts, n in zip(dims, example(node).shape, strict=True))
    return m.repeated(node, dims, changed, _is_zero_at_padding(m, node, name, found, dims))


def _check_inplace(m: Machine, node: fx.Node, name: str) -> None:
    """``F.relu(x, inplace=True)`` is allowed where nobody can see that x is written."""
    if name not in INPLACE_FLAG:
        return
    flag = node.kwargs.get("inplace", node.args[-1] if len(node.args) > 1 and node.args[-1] is True else False)
    if name == "dropout" and "inplace" not in node.kwargs:
        flag = len(node.args) > 3 and node.args[3]
    if flag is not True:
        return
    x = node.args[0]
    assert isinstance(x, fx.Node)
    shared = [n for n in m.values if n is not x and storage(n) == storage(x)]
    if shared or len(x.users) > 1 or m.values[x].whole is not None:
        raise Refused("in-place", f"{name} writes into a value that is used elsewhere", node)


def _is_zero_at_padding(m: Machine, node: fx.Node, name: str, found: dict[fx.Node, Packed], dims: Dims) -> bool:
    """Is the padded result known to be 0 at padding?"""
    if name in CASTS or name in ("neg", "dropout"):
        return all(p.zero for p in found.values())
    values = list(node.args)
    if name in ("mul", "div") and len(values) == 2:
        a, b = values
        if any(isinstance(x, fx.Node) and x in found and found[x].zero for x in (a, b) if name == "mul" or x is a):
            others = [x for x in (a, b) if not (isinstance(x, fx.Node) and x in found)]
            if all(not isinstance(x, fx.Node) for x in others) and len(found) == 1:
                return True
        return name == "mul" and any(_hides(m, x, dims, False) for x in (a, b))
    if name == "masked_fill" and len(values) == 3 and type(values[2]) in (int, float) and values[2] == 0:
        return _hides(m, values[1], dims, True)
    if name == "where" and len(values) == 3 and type(values[2]) in (int, float) and values[2] == 0:
        return _hides(m, values[0], dims, False)
    return False


def _hides(m: Machine, node: Any, dims: Dims, value: bool) -> bool:
    """Is a mask, aligned with a result of ``dims``, known to be ``value`` (as bool) at all padding?"""
    table = m.table(node)
    if table is None or table.tokens != 1:
        return False
    for back in range(1, len(table.dims) + 1):
        if named(table.dims[-back]) and table.dims[-back] != dims[-back]:
            return False
    return bool(table.cells[0] == (1 if value else 0))


@rule("linear")
def _linear(m: Machine, node: fx.Node) -> Value:
    x = argument(node, 0, "input")
    weight, bias = argument(node, 1, "weight"), argument(node, 2, "bias")
    return _product(m, node, x, weight, bias)


@rule("addmm")
def _addmm(m: Machine, node: fx.Node) -> Value:
    bias, x, weight = node.args[:3]
    if isinstance(bias, fx.Node) and example(bias).dim() > 1:
        raise Refused("no-rule", "addmm with a bias per token", node)
    return _product(m, node, x, weight, bias)


def _product(m: Machine, node: fx.Node, x: Any, weight: Any, bias: Any) -> Value:
    """Tokens' features times a matrix."""
    packed = m.require(x, node)
    if named(packed.dims[-1]):
        raise Refused("cross-token", f"{op_name(node)} mixes the tokens of a row", node)
    changed: dict[fx.Node, Any] = {x: packed.node}
    for parameter in (weight, bias):
        if isinstance(parameter, fx.Node):
            changed[parameter] = m.plain(parameter, node)
    if example(weight).dim() != 2:
        raise Refused("no-rule", f"{op_name(node)} with a weight of {example(weight).dim()} dimensions", node)
    return m.repeated(node, (*packed.dims[:-1], feature(example(node).shape[-1], node)), changed)


def times_matrix(m: Machine, node: fx.Node, x: fx.Node, weight: fx.Node) -> Value:
    """``x @ W`` of tokens."""
    return _product(m, node, x, weight, None)


@rule("embedding")
def _embedding(m: Machine, node: fx.Node) -> Value:
    ids, weight = argument(node, 0, "input"), argument(node, 1, "weight")
    packed = m.require(ids, node)
    if argument(node, 3, "max_norm") is not None:
        raise Refused("in-place", "an embedding with max_norm writes its weights", node)
    scaled = argument(node, 5, "scale_grad_by_freq", False)
    if scaled is not False:
        raise Refused("no-rule", "an embedding whose gradients depend on how often ids occur, padding included", node)
    changed = {ids: packed.node, weight: m.plain(weight, node)}
    return m.repeated(node, (*packed.dims, feature(example(node).shape[-1], node)), changed)


@rule("layer_norm", "rms_norm")
def _normalised(m: Machine, node: fx.Node) -> Value:
    x, shape = argument(node, 0, "input"), argument(node, 1, "normalized_shape")
    packed = m.require(x, node)
    if any(named(parts) for parts in packed.dims[-len(shape) :]):
        raise Refused("cross-token", f"{op_name(node)} normalises over the tokens of a row", node)
    changed: dict[fx.Node, Any] = {x: packed.node}
    for n in node.all_input_nodes:
        if n is not x:
            changed[n] = m.plain(n, node)
    return m.repeated(node, packed.dims, changed)


_ALONG = {"glu": (1, "dim", -1), "normalize": (2, "dim", 1)}


@rule("softmax", "log_softmax", "softmin", "logcumsumexp", "cumsum", "cumprod", "normalize", "glu", "argsort")
def _along(m: Machine, node: fx.Node) -> Value:
    """Ops that mix along one dimension: of features only."""
    x = argument(node, 0, "input")
    if m.scores(x) is not None:
        return on_scores(m, node)
    position, name, default = _ALONG.get(op_name(node), (1, "dim", None))
    packed = m.require(x, node)
    if op_name(node) == "glu" and named(packed.dims[-1]):
        raise Refused("cross-token", "glu over the tokens of a row", node)
    return _along_features(m, node, packed, argument(node, position, name, default), position, name)


@rule("sum", "mean", "amax", "amin", "argmax", "argmin", "var", "std", "logsumexp", "any", "all", "prod")
def _reduced(m: Machine, node: fx.Node) -> Value:
    packed = m.require(argument(node, 0, "input"), node)
    name = "axis" if "axis" in node.kwargs else "dim"
    return _along_features(m, node, packed, argument(node, 1, name), 1, name)


def _along_features(m: Machine, node: fx.Node, packed: Packed, given: Any, position: int, name: str) -> Value:
    """The same op along the same features, wherever these are in the packed form."""
    x = argument(node, 0, "input")
    dims = list(given) if isinstance(given, (tuple, list)) else [given]
    rank, own = len(packed.dims), len(physical(packed.dims))
    for d in dims:
        if type(d) is not int:
            raise Refused("cross-token", f"{op_name(node)} over the whole batch would count padding", node)
        if named(packed.dims[d % rank]):
            raise Refused("cross-token", f"{op_name(node)} over the tokens of a row would see padding", node)
    places = [physical_dim(packed.dims, d % rank) - own for d in dims]
    shape = example(node).shape
    gone = {d % rank for d in dims}
    kept = [(d, parts) for d, parts in enumerate(packed.dims) if d not in gone or len(shape) == rank]
    out = tuple(parts if d not in gone else feature(n, node) for (d, parts), n in zip(kept, shape, strict=True))
    value = m.repeated(node, out, {x: packed.node})
    assert isinstance(value.packed, Packed)
    new, moved_dims = value.packed.node, places if isinstance(given, (tuple, list)) else places[0]
    if len(new.args) > position:
        new.args = (*new.args[:position], moved_dims, *new.args[position + 1 :])
    else:
        new.kwargs = {**new.kwargs, name: moved_dims}
    return value
