"""Rules of ops that work on every token alone: pointwise ops, layers, and reductions over features."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import Tensor, fx

from packpass.layout.names import argument, example, op_name
from passes.eliminate_padding.machine import Machine, feature, physical, physical_dim, rule
from passes.eliminate_padding.op_sets import CASTS, POINTWISE, RANDOM, plain, writes
from passes.eliminate_padding.rules_scores import number_of, on_scores
from passes.eliminate_padding.tile import Dims, merged, named
from passes.eliminate_padding.values import ZERO, Fill, Packed, Value
from passes.eliminate_padding.writes import asked, not_asked, unseen
from passes.refused import Refused


@rule(*sorted(POINTWISE))
def _pointwise(m: Machine, node: fx.Node) -> Value:
    name = plain(op_name(node))
    operands = [n for n in node.all_input_nodes if isinstance(example(n), Tensor)]
    if any(m.scores(n) is not None for n in operands):
        return _cast_like_scores(m, node, name) or on_scores(m, node)
    if asked(node) and not unseen(node):
        raise Refused("in-place", f"{name} writes into a value that is used elsewhere", node)
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
    value = m.repeated(node, dims, changed, _fill(m, node, name, found, dims))
    assert isinstance(value.packed, Packed)
    if asked(node):
        not_asked(value.packed.node)
    return value


@rule(*sorted(f"{name}_" for name in POINTWISE - RANDOM if hasattr(Tensor, f"{name}_") and writes(f"{name}_")))
def _written(m: Machine, node: fx.Node) -> Value:
    """``x += y`` where nothing sees that x changes: a new value, in the dtype of x.

    Packed forms share memory where padded ones do not, so that nothing may be written into them.
    """
    if not unseen(node):
        raise Refused("in-place", f"{op_name(node)} writes into a value that is used elsewhere", node)
    value = _pointwise(m, node)
    if not isinstance(value.packed, Packed):
        return value
    new = value.packed.node
    new.op, new.target = "call_method", plain(op_name(node))
    return Value(packed=dataclasses.replace(value.packed, node=m.call("to", new, example(node).dtype)))


def _cast_like_scores(m: Machine, node: fx.Node, name: str) -> Value | None:
    """``mask.type_as(scores)``: the dtype and the device are known, the scores need not be."""
    x = node.args[0]
    if name not in ("to", "type_as") or len(node.args) != 2 or node.kwargs or m.scores(x) is not None:
        return None
    assert isinstance(x, fx.Node)
    out, value = example(node), m.values[x]
    whole = None if value.whole is None else m.call("to", value.whole, out.device, out.dtype)
    packed = m.packed(x)
    if packed is not None:
        packed = Packed(m.call("to", packed.node, out.device, out.dtype), packed.dims)
    return Value(whole, packed)


def _fill(m: Machine, node: fx.Node, name: str, found: dict[fx.Node, Packed], dims: Dims) -> Fill | None:
    """What the padded result is at padding, where that is known."""
    values: list[Any] = list(node.args)
    own = found[values[0]].fill if isinstance(values[0], fx.Node) and values[0] in found else None
    out = example(node).dtype
    if name in CASTS or name in ("neg", "dropout"):
        if own is None or len(found) != 1 or (name == "dropout" and own.value):
            return None
        same_dtype = example(node.args[0]).dtype is out
        value = -own.value if name == "neg" else own.value
        return Fill(value, own.given) if same_dtype or own.value == 0 else None
    if name in ("mul", "div") and len(values) == 2:
        numbers = all(not isinstance(x, fx.Node) or x in found for x in values)
        holder = found[values[1]].fill if own is None and name == "mul" and values[1] in found else own
        if holder is not None and not holder.value and numbers and len(found) == 1:
            return holder
        return ZERO if name == "mul" and any(_hides(m, x, dims, False) for x in values) else None
    if name in ("logical_and", "bitwise_and", "and_") and len(values) == 2:
        return ZERO if any(_hides(m, x, dims, False) for x in values) else None
    if name == "masked_fill" and len(values) == 3:
        return _number(m, values[2], out) if _hides(m, values[1], dims, True) else None
    if name == "where" and len(values) == 3:
        if _hides(m, values[0], dims, False):
            return _number(m, values[2], out)
        return _number(m, values[1], out) if _hides(m, values[0], dims, True) else None
    return None


def _number(m: Machine, x: Any, dtype: torch.dtype) -> Fill | None:
    """A constant as a value of a dtype."""
    number = number_of(m, x)
    if number is None:
        return None
    value = torch.tensor(number, dtype=torch.float64).to(dtype).item()
    return Fill(value) if dtype.is_floating_point or value == number else None


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


_ALONG = {"glu": (1, "dim", -1), "normalize": (2, "dim", 1), "argsort": (1, "dim", -1)}


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


@rule("topk", "sort", "max", "min")
def _with_indices(m: Machine, node: fx.Node) -> Value:
    """Values and their indices, along features."""
    packed = m.require(argument(node, 0, "input"), node)
    position = 2 if op_name(node) == "topk" else 1
    dim = argument(node, position, "dim", None if op_name(node) in ("max", "min") else -1)
    if not isinstance(example(node), tuple):  # torch.max(x), torch.max(x, y)
        dim = None
    return _along_features(m, node, packed, dim, position, "dim")


def _along_features(m: Machine, node: fx.Node, packed: Packed, given: Any, position: int, name: str) -> Value:
    """The same op along the same features, wherever these are in the packed form."""
    x = argument(node, 0, "input")
    dims = list(given) if isinstance(given, (tuple, list)) else [given]
    rank, own = len(packed.dims), len(physical(packed.dims))
    for d in dims or [None]:
        if type(d) is not int:
            raise Refused("cross-token", f"{op_name(node)} over the whole batch would count padding", node)
        if named(packed.dims[d % rank]):
            raise Refused("cross-token", f"{op_name(node)} over the tokens of a row would see padding", node)
    places = [physical_dim(packed.dims, d % rank) - own for d in dims]
    results = example(node)
    shape = results[0].shape if isinstance(results, tuple) else results.shape
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
    if isinstance(results, tuple):
        parts = [m.graph.call_function(operator.getitem, (new, i)) for i in range(len(results))]
        return Value(items=tuple(Value(packed=Packed(part, out)) for part in parts))
    return value
