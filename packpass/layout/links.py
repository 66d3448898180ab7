"""Links from meanings: which axes of a call's operands and results hold the same tokens.

Slots of two axes that run along one loop, each by itself, belong together. A roll moves tokens, but boundaries cut its
result at the same places; rows that a loss compares belong together although they are gone afterwards; and keys go with
values.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

from torch import fx

from packpass.layout.axes import Axes, Axis
from packpass.semantics import Call, Relation, call_of, meaning_of
from packpass.semantics.meaning import KEPT, Addressed, Meaning, Mixed, Reduced, Rolled

_UNLINKED = frozenset({"creation"})
"""What is made from numbers holds no tokens yet; a rule of its own says when it is taken for the row's."""


def link(axes: Axes, node: fx.Node) -> bool:
    """Link what a call keeps together; False if its meaning is not known."""
    call = call_of(node)
    meaning = meaning_of(call) if call is not None else None
    if call is None or meaning is None or meaning.family in _UNLINKED:
        return False
    for item, relation in enumerate(meaning.relations):
        for group in _groups(call, meaning, relation, item):
            for a, b in itertools.combinations(group, 2):
                axes.link(a, b)
    return True


def _groups(call: Call, meaning: Meaning, relation: Relation, item: int) -> list[list[Axis]]:
    """Axes along one loop, for every loop that is whole axes."""
    found: dict[int, dict[Axis, None]] = defaultdict(dict)
    for operand, axes in zip(call.operands, relation.operands, strict=True):
        if operand.argument in call.unread:
            continue  # it gives its shape; its tokens are its own
        for dim, axis in enumerate(axes or ()):
            if len(axis.loops) == 1 and (axis.how == KEPT or isinstance(axis.how, Rolled)):
                found[axis.loops[0]][Axis(operand.node, dim)] = None
    for dim, loops in enumerate(relation.result):
        if len(loops) == 1:
            found[loops[0]][Axis(call.node, dim, item if call.several else None)] = None
    return [list(group) for loop, group in found.items() if _together(call, meaning, relation, loop)]


def _together(call: Call, meaning: Meaning, relation: Relation, loop: int) -> bool:
    """Do slots at the same place of this loop belong to one token?"""
    role = relation.roles.get(loop)
    if role is None or isinstance(role, Addressed):
        return True
    if isinstance(role, Reduced):
        return meaning.family == "losses"
    return isinstance(role, Mixed) and call.op == "scaled_dot_product_attention"
