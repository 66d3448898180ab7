"""Which axes of a call's operands and results hold the same tokens.

The meaning of a call (`packpass.semantics`) says so: slots of two axes that run along one loop, each by itself, belong
together. A roll moves tokens, but boundaries cut its result at the same places; rows that a loss compares belong
together although they are gone afterwards; and keys go with values. What has no meaning links nothing: the layout is
lost there, never guessed. The few rules here are about calls that torch knows nothing of, and about graphs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import fx

from packpass._registry import registrar
from packpass.layout.attention import attention
from packpass.layout.axes import Axes, Axis, value_of
from packpass.semantics import Call, Relation, call_of, example, meaning_of, op_name
from packpass.semantics.meaning import KEPT, Addressed, Meaning, Mixed, Reduced, Rolled

LayoutRule = Callable[[Axes, fx.Node], None]
RULES: dict[str, LayoutRule] = {}
rule = registrar(RULES)
"""Registers a rule under plain op names."""


def apply(axes: Axes, node: fx.Node) -> None:
    """Link what the op of ``node`` keeps together."""
    call = call_of(node)
    meaning = meaning_of(call)
    if call is None or meaning is None:
        RULES.get(op_name(node), _varlen_attention)(axes, node)
        return
    # Memory of a row's form is the row's if nothing else is put there; what is, says whose it is.
    form = meaning.family == "creation" and node in axes.blank
    for item, relation in enumerate(meaning.relations):
        for group in _groups(call, meaning, relation, item, form):
            axes.link_all(group)


def _groups(call: Call, meaning: Meaning, relation: Relation, item: int, form: bool) -> list[list[Axis]]:
    """Axes along one loop, for every loop that is whole axes. ``form``: also those of what gives its shape only."""
    found: dict[int, dict[Axis, None]] = defaultdict(dict)
    shift = _is_shift(relation)
    for operand, axes in zip(call.operands, relation.operands, strict=True):
        if operand.argument in call.unread and not form:
            continue  # it gives its shape; its tokens are its own
        for dim, axis in enumerate(axes or ()):
            if len(axis.loops) == 1 and (axis.how == KEPT or (shift and isinstance(axis.how, Rolled))):
                found[axis.loops[0]][Axis(operand.node, dim)] = None
    for dim, loops in enumerate(relation.result):
        if len(loops) == 1:
            found[loops[0]][Axis(call.node, dim, item if call.several else None)] = None
    return [list(group) for loop, group in found.items() if _together(meaning, relation, loop)]


def _is_shift(relation: Relation) -> bool:
    """Is a roll along one axis, by a number that is known? Shifts are looked at together with what follows. Any other
    roll stays, so that its result lies at other places than the boundaries say."""
    rolled = [axis.how for axes in relation.operands for axis in axes or () if isinstance(axis.how, Rolled)]
    return len(rolled) == 1 and isinstance(rolled[0].shift, int)


def _together(meaning: Meaning, relation: Relation, loop: int) -> bool:
    """Do slots at the same place of this loop belong to one token?"""
    role = relation.roles.get(loop)
    if role is None or isinstance(role, Addressed):
        return True
    if isinstance(role, Reduced):
        return meaning.family == "losses"
    return isinstance(role, Mixed) and role.together


def outputs(node: fx.Node) -> list[int | None]:
    """The items of a node's value: [None] for a tensor."""
    value = example(node)
    return list(range(len(value))) if isinstance(value, (tuple, list)) else [None]


def _same_axes(axes: Axes, a: fx.Node, b: fx.Node) -> None:
    """Two tensors of one rank whose slots are at the same places."""
    if isinstance(example(a), torch.Tensor) and isinstance(example(b), torch.Tensor):
        for d in range(example(b).dim()):
            axes.same(a, d, b, d)


@rule("getitem")
def _item(axes: Axes, node: fx.Node) -> None:
    """An item of the results of a call."""
    base, index = node.args
    if isinstance(base, fx.Node) and isinstance(example(base), (tuple, list)) and isinstance(index, int):
        if isinstance(example(node), torch.Tensor):
            for d in range(example(node).dim()):
                axes.link(Axis(base, d, index % len(example(base))), Axis(node, d))


@rule("packpass::packed", "packpass::packed_roll", "packpass::packed_flip", "packpass::snapshot")
def _packed(axes: Axes, node: fx.Node) -> None:
    """Tokens move inside their documents."""
    if isinstance(node.args[0], fx.Node):
        _same_axes(axes, node.args[0], node)


@rule("higher_order::flex_attention")
def _flex_attention(axes: Axes, node: fx.Node) -> None:
    """``[B, H, T, D]`` and, as a second result, ``[B, H, T]``."""
    q, k, v = node.args[:3]
    if not (isinstance(q, fx.Node) and isinstance(k, fx.Node) and isinstance(v, fx.Node)):
        return
    axes.same(k, 2, v, 2)
    for item in outputs(node):
        for d in range(3):
            axes.link(Axis(q, d), Axis(node, d, item))


def _varlen_attention(axes: Axes, node: fx.Node) -> None:
    """Slot p of the result belongs to query p."""
    found = attention(node)
    if found is None:
        return
    for item in outputs(node):
        value = value_of(node, item)
        if isinstance(value, torch.Tensor) and value.dim() == example(found.query).dim():
            for d in range(value.dim() - 1):
                axes.link(Axis(found.query, d), Axis(node, d, item))
