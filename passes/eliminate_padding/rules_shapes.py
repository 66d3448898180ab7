"""Rules of ops that move values around: views, permutations, indices, splits and joins of features."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx

from packpass.layout.names import argument, example, op_name
from packpass.layout.shape_rules import permutation
from passes.eliminate_padding.machine import Machine, feature, physical, physical_dim, rule
from passes.eliminate_padding.rules_picked import looked_up
from passes.eliminate_padding.rules_scores import on_scores
from passes.eliminate_padding.tile import (
    EXPANDS,
    PERMUTES,
    VIEWS,
    Dims,
    at,
    entries_of,
    expanded,
    indexed,
    is_whole,
    merged,
    named,
)
from passes.eliminate_padding.values import Condition, Packed, Value
from passes.refused import Refused


@rule(*sorted(VIEWS))
def _view(m: Machine, node: fx.Node) -> Value:
    x = argument(node, 0, "input")
    if m.scores(x) is not None:
        return on_scores(m, node)
    packed = m.require(x, node)
    return Value(packed=m.viewed(packed, m.regrouped(node, packed.dims), node))


@rule(*sorted(PERMUTES))
def _permute(m: Machine, node: fx.Node) -> Value:
    x = argument(node, 0, "input")
    packed = m.require(x, node)
    order = permutation(node)
    if order is None:
        raise Refused("no-rule", f"{op_name(node)} with arguments that are no constants", node)
    dims = tuple(packed.dims[d] if d >= 0 else () for d in order)
    new = packed.node
    dropped = [d for d in range(len(packed.dims)) if d not in order]
    for d in reversed(dropped):
        new = m.call("squeeze", new, physical_dim(packed.dims, d))
    left = [d for d in range(len(packed.dims)) if d not in dropped and packed.dims[d] != ("B",)]
    new = m.permuted(new, [left.index(d) for d in order if d in left])
    for place, d in enumerate(order):
        if d < 0:
            new = m.call("unsqueeze", new, physical_dim(dims, place))
    return Value(packed=dataclasses.replace(packed, node=new, dims=dims))


@rule(*sorted(EXPANDS))
def _expand(m: Machine, node: fx.Node) -> Value:
    packed = m.require(argument(node, 0, "input"), node)
    dims = expanded(packed.dims, example(node).shape)
    _constant_features(dims, node)
    new = m.call("expand", packed.node, physical(dims))
    return Value(packed=dataclasses.replace(packed, node=new, dims=dims))


@rule("size")
def _size(m: Machine, node: fx.Node) -> Value:
    """Of the padded value, under dynamic shapes."""
    dims = m.require(argument(node, 0, "input"), node).dims
    dim = argument(node, 1, "dim")
    if dim is None:
        return Value(items=tuple(Value(m.extent(parts)) for parts in dims))
    return Value(m.extent(dims[dim]))


@rule("repeat_interleave")
def _repeat_interleave(m: Machine, node: fx.Node) -> Value:
    """Of features, by a number: how keys of grouped queries are written out."""
    x = argument(node, 0, "input")
    packed = m.require(x, node)
    repeats, dim = argument(node, 1, "repeats"), argument(node, 2, "dim")
    if type(repeats) is not int or type(dim) is not int or named(packed.dims[dim % len(packed.dims)]):
        raise Refused("cross-token", "repeat_interleave of the tokens of a row", node)
    dim %= len(packed.dims)
    dims = (*packed.dims[:dim], feature(example(node).shape[dim], node), *packed.dims[dim + 1 :])
    new = m.graph.call_function(torch.repeat_interleave, (packed.node, repeats, physical_dim(packed.dims, dim)))
    return Value(packed=Packed(new, dims, packed.fill))


def _constant_features(dims: Dims, node: fx.Node) -> None:
    for parts in dims:
        for part in parts:
            if not isinstance(part, (str, int)):
                feature(part, node)


@rule("getitem")
def _getitem(m: Machine, node: fx.Node) -> Value:
    base, index = node.args
    assert isinstance(base, fx.Node)
    items = m.values[base].items
    if items is not None:
        if type(index) is not int:
            raise Refused("no-rule", "part of a tuple that is no constant", node)
        return items[index]
    packed = m.require(base, node)
    rank = len(packed.dims)
    entries = entries_of(index, rank)
    if entries is None:
        return looked_up(m, node, packed)
    dims = indexed(m.tile, node, packed.dims)
    if dims is None:
        return _picked(m, node, packed, entries)
    _constant_features(dims, node)
    own: list[Any] = []
    d = 0
    for entry in entries:
        if entry is None:
            own.append(None)
            continue
        if packed.dims[d] != ("B",):
            own.append(slice(None) if named(packed.dims[d]) else m.whole_index(entry))
        d += 1
    new = m.graph.call_function(operator.getitem, (packed.node, tuple(own)))
    return Value(packed=dataclasses.replace(packed, node=new, dims=dims))


def _picked(m: Machine, node: fx.Node, packed: Packed, entries: list[Any]) -> Value:
    """``x[:, 0]`` or ``x[:, -1]``, where that token of every row is real."""
    shape = example(node.args[0]).shape
    if None in entries or m.values[node.args[0]].whole is not None:  # type: ignore[index]
        raise Refused("cross-token", "an index that cuts the tokens of a row", node)
    s = at(packed.dims, "S")
    others = [d for d in range(len(entries)) if d != s]
    if (
        entries[s] not in (0, -1)
        or packed.dims[s] != ("S",)
        or packed.dims[at(packed.dims, "B")] != ("B",)
        or any(not isinstance(entries[d], slice) or not is_whole(entries[d], shape[d]) for d in others)
    ):
        raise Refused("cross-token", "an index that cuts the tokens of a row, other than x[:, 0] and x[:, -1]", node)
    m.demand(Condition("column", entries[s]))
    cu = m.plan["cu_seqlens"]
    cut = slice(None, -1) if entries[s] == 0 else slice(1, None)
    index = m.graph.call_function(operator.getitem, (cu, cut))
    if entries[s] == -1:
        index = m.graph.call_function(operator.sub, (index, 1))
    t = physical_dim(packed.dims, s)
    new = m.graph.call_function(torch.index_select, (packed.node, t, index))
    rank = len(physical(packed.dims))
    b = sum(d < at(packed.dims, "B") for d in others)  # its place among the dimensions that are left
    rest = [d for d in range(rank) if d != t]
    return Value(m.permuted(new, [*rest[:b], t, *rest[b:]]))


@rule("select")
def _select(m: Machine, node: fx.Node) -> Value:
    packed = m.require(argument(node, 0, "input"), node)
    dim, index = argument(node, 1, "dim"), argument(node, 2, "index")
    if type(dim) is not int or type(index) is not int:
        raise Refused("no-rule", "select by an index that is no constant", node)
    dim %= len(packed.dims)
    if named(packed.dims[dim]):
        entries = [slice(None)] * len(packed.dims)
        entries[dim] = index  # type: ignore[call-overload]
        return _picked(m, node, packed, entries)
    new = m.call("select", packed.node, physical_dim(packed.dims, dim), index)
    dims = packed.dims[:dim] + packed.dims[dim + 1 :]
    return Value(packed=dataclasses.replace(packed, node=new, dims=dims))


@rule("chunk", "split", "tensor_split", "unbind", "unsafe_split", "unsafe_chunk")
def _split(m: Machine, node: fx.Node) -> Value:
    """Parts of the features."""
    x = argument(node, 0, "input")
    packed = m.require(x, node)
    position = 1 if op_name(node) == "unbind" else 2
    dim = argument(node, position, "dim", 0)
    if type(dim) is not int or named(packed.dims[dim % len(packed.dims)]):
        raise Refused("cross-token", f"{op_name(node)} cuts the tokens of a row", node)
    dim %= len(packed.dims)
    new = m.repeated(node, (), {x: packed.node}).packed
    assert isinstance(new, Packed)
    own = physical_dim(packed.dims, dim)
    if len(new.node.args) > position:
        new.node.args = (*new.node.args[:position], own)
    else:
        new.node.kwargs = {**new.node.kwargs, "dim": own}
    items = []
    for i, part in enumerate(example(node)):
        parts = () if op_name(node) == "unbind" else (feature(part.shape[dim], node),)
        item = m.graph.call_function(operator.getitem, (new.node, i))
        items.append(Value(packed=Packed(item, (*packed.dims[:dim], *parts, *packed.dims[dim + 1 :]), packed.fill)))
    return Value(items=tuple(items))


@rule("cat", "stack")
def _cat(m: Machine, node: fx.Node) -> Value:
    """Joins features."""
    tensors = argument(node, 0, "tensors")
    dim = argument(node, 1, "dim", node.kwargs.get("axis", 0))
    value = example(node)
    if not isinstance(tensors, (tuple, list)) or type(dim) is not int:
        raise Refused("no-rule", f"{op_name(node)} with arguments that are no constants", node)
    dim %= value.dim()
    stacks = op_name(node) == "stack"
    known = [p.dims for t in tensors if (p := m.packed(t)) is not None]
    if not known:
        raise Refused("no-rule", f"{op_name(node)} of attention scores", node)
    if not stacks and any(named(dims[dim]) for dims in known):
        raise Refused("cross-token", "cat joins tokens to a row", node)
    around = [dims if stacks else (*dims[:dim], (), *dims[dim + 1 :]) for dims in known]
    base = merged(around, value.dim() - stacks, node)
    parts = []
    for t in tensors:
        packed, own = m.packed(t), example(t)
        dims = base if stacks else (*base[:dim], feature(own.shape[dim], node), *base[dim + 1 :])
        if packed is None:
            if m.values[t].whole is None:
                raise Refused("not-tokens", f"{op_name(node)} joins tokens with other values", node)
            packed = m.pack(t, dims)
        parts.append(packed.node)
    out: Dims = (*base[:dim], (len(parts),), *base[dim:]) if stacks else base
    if not stacks:
        out = (*base[:dim], feature(value.shape[dim], node), *base[dim + 1 :])
    function: Any = torch.stack if stacks else torch.cat
    return Value(packed=Packed(m.graph.call_function(function, (parts, physical_dim(out, dim))), out))
