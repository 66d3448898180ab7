"""Loops that write to a tensor of which several slots may lie in one place: ``torch.zeros(1, d).expand(t, d)``.

What one document writes is then another one's as well, whichever slots both have by their numbers. Torch itself refuses
most such writes, but not those of one slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from packpass._compat import statically_known_true
from packpass.semantics import example, op_name, storage
from packpass.semantics.effects import written_inputs
from packpass.semantics.memory import is_new, shared_inputs
from packpass.semantics.views import EXPANDING
from passes.loops import LoopFound
from passes.refused import Refused

_OVERLAPPING = EXPANDING | {"as_strided", "unfold"}


def check_apart(loop: LoopFound) -> None:
    """Refuse a loop that writes to such a tensor from in front of it."""
    for node in loop.nodes:
        memory = {storage(given) for given in written_inputs(node)} - {None}
        for given in node.all_input_nodes if memory else ():
            outer = _from_outside(given, loop)
            if outer is not None and storage(outer) in memory and not _has_places_of_their_own(outer):
                what = "the loop writes to a tensor of which several slots may lie in one place, as of an expanded one"
                raise Refused("aliasing", f"{what}; write to a copy of it: x.clone()", node)


def _from_outside(view: fx.Node, loop: LoopFound) -> fx.Node | None:
    """The tensor from in front of the loop of which this is a view, or itself."""
    while view in loop.nodes:
        given = shared_inputs(view)
        if not given:
            return None
        view = given[0]
    return view


def _has_places_of_their_own(tensor: fx.Node) -> bool:
    """Is each slot of a tensor known to lie in another place?"""
    value = example(tensor)
    if is_apart(list(zip(value.stride(), value.shape, strict=True))):
        return True
    if is_new(tensor):
        return "strided" not in op_name(tensor)
    given = shared_inputs(tensor)
    return bool(given) and op_name(tensor) not in _OVERLAPPING and all(_has_places_of_their_own(n) for n in given)


def is_apart(dims: Sequence[tuple[Any, Any]], covered: Any = 1) -> bool:
    """Is there an order of the dimensions, ``(stride, size)`` each, in which every one steps over all before it?
    ``covered``: so many places are those of the dimensions that were taken."""
    left = [dim for dim in dims if not statically_known_true(dim[1] == 1)]
    return not left or any(
        is_apart([*left[:i], *left[i + 1 :]], covered + (size - 1) * stride)
        for i, (stride, size) in enumerate(left)
        if statically_known_true(stride >= covered)
    )
