"""The rule of every call that has none of its own: `tokens.keep`, and what is picked where that finds tokens picked."""

from __future__ import annotations

from torch import fx

from packpass.semantics import argument, call_of, example, op_of
from packpass.semantics.pointwise import COPIES
from passes.eliminate_padding.machine import Machine, rule
from passes.eliminate_padding.rules_picked import picked
from passes.eliminate_padding.rules_scores import on_scores
from passes.eliminate_padding.tokens import Across, keep, refusal
from passes.eliminate_padding.values import Packed, Value
from passes.eliminate_padding.writes import lent_by
from passes.refused import Refused


@rule("*")
def general(m: Machine, node: fx.Node) -> Value:
    """Any call on packed values, on attention scores, or on a tuple of these."""
    base = node.args[0] if node.args else None
    if op_of(node) == "getitem" and isinstance(base, fx.Node) and (items := m.values[base].items) is not None:
        index = node.args[1]
        if type(index) is not int:
            raise Refused("no-rule", "part of a tuple that is no constant", node)
        return items[index]
    if any(m.scores(n) is not None for n in node.all_input_nodes):
        return _cast_like_scores(m, node) or on_scores(m, node)
    found = keep(m, node)
    if not isinstance(found, Across):
        return found
    call = call_of(node)
    assert call is not None
    value = picked(m, node, call, found)
    if value is None:
        raise refusal(call, node, found)
    return value


@rule("size")
def _size(m: Machine, node: fx.Node) -> Value:
    """Of the padded value, under dynamic shapes."""
    dims = m.require(argument(node, 0, "input"), node).dims
    dim = argument(node, 1, "dim")
    if dim is None:
        return Value(items=tuple(Value(m.extent(parts)) for parts in dims))
    return Value(m.extent(dims[dim]))


def _cast_like_scores(m: Machine, node: fx.Node) -> Value | None:
    """``mask.type_as(scores)``: the dtype and the device are known, the scores need not be."""
    x, lent = node.args[0], lent_by(node)
    if op_of(node) not in COPIES or any(m.scores(n) is not None for n in node.all_input_nodes if n not in lent):
        return None
    assert isinstance(x, fx.Node)
    out, value = example(node), m.values[x]
    whole = None if value.whole is None else m.call("to", value.whole, out.device, out.dtype)
    packed = m.packed(x)
    if packed is not None:
        packed = Packed(m.call("to", packed.node, out.device, out.dtype), packed.dims)
    return Value(whole, packed)
