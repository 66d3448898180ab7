"""Losses over the tokens of the batch, where the labels of padding are ignored."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from packpass.semantics import argument, call_of, example, op_of
from packpass.semantics.losses import OF_CLASSES, reduction_of
from passes.eliminate_padding.machine import Machine, rule
from passes.eliminate_padding.tile import Dims, named
from passes.eliminate_padding.values import Condition, Fill, Packed, Value
from passes.refused import Refused


@rule(*OF_CLASSES)
def _cross_entropy(m: Machine, node: fx.Node) -> Value:
    """``[B*S, V]`` and ``[B*S]``, or ``[B, V, S]`` and ``[B, S]``.

    Before each call the host checks that labels of padding are ignored: then padding adds nothing to a mean or a sum.
    """
    name, call = op_of(node), call_of(node)
    scores, target = argument(node, 0, "input"), argument(node, 1, "target")
    packed = m.require(scores, node)
    labels = example(target)
    ignore = call.get("ignore_index") if call is not None else None
    reduction = reduction_of(call)
    if reduction not in ("mean", "sum", "none") or type(ignore) is not int:
        raise Refused("no-rule", f"{name} with size_average, reduce or an ignore_index that is no constant", node)
    if labels.dtype is not torch.int64 or labels.dim() != len(packed.dims) - 1:
        raise Refused("no-rule", f"{name} with targets that are no labels", node)
    if named(packed.dims[1]):
        raise Refused("cross-token", f"{name} takes the tokens of a row for classes", node)
    dims: Dims = (packed.dims[0], *packed.dims[2:])
    parts = tuple(part for slots in dims for part in slots)
    if not all(isinstance(part, (str, int)) for part in parts):
        raise Refused("no-rule", f"{name} over features of a size that is no constant", node)
    ignored = Condition("ignored", ignore, target, parts)
    whole = m.whole_of(target)
    if whole is None:
        raise Refused("no-rule", f"{name} with labels that are computed from packed tokens", node)
    x = packed.node
    if len(packed.dims) == 3:
        if packed.dims[0] != ("B",) or packed.dims[2] != ("S",):
            raise Refused("no-rule", f"{name} of scores that are not [B, V, S]", node)
        x = m.call("transpose", x, 0, 1)
    elif len(packed.dims) != 2:
        raise Refused("no-rule", f"{name} of {len(packed.dims)}-D scores", node)
    chosen = m.packed(target)
    rows = chosen if chosen is not None and chosen.dims == dims else m.pack(target, dims)
    changed: dict[fx.Node, Any] = {scores: x, target: rows.node}
    for n in node.all_input_nodes:
        if n not in changed:
            changed[n] = m.plain(n, node)
    if reduction == "none":
        return m.repeated(node, dims, changed, Fill(0, ignored))
    value = m.repeated(node, dims, changed)
    m.demand(ignored)
    assert isinstance(value.packed, Packed)
    return Value(value.packed.node)
