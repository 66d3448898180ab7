"""Lists that grow by several entries at a time: ``parts.extend(...)``, ``parts += [...]``, ``[*parts]``.

In the body of a loop over documents, they are lists that the loop fills. Outside, what they grow by may be made by such
a loop (a generator, ``map``): a new list then is the list that this loop has filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packpass.capture import running
from packpass.capture.dynamo import (
    ListVariable,
    LocalGeneratorObjectVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    constant,
    is_side_effect_safe,
)
from packpass.capture.frame import LOOP_MODES
from packpass.capture.lists import is_collected, is_documents, items_of
from packpass.capture.python_functions import listed
from packpass.capture.state import active, current_frame

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase as Translator


def extend(tx: Translator, items: Any, more: Any) -> Any:
    """``items.extend(more)``, and ``items += more``; None if it is what it seems."""
    if not isinstance(items, ListVariable) or items.mutation_type is None:
        return None
    if not active.regions:
        return _extend_new(tx, items, more)
    # Dynamo changes a list from outside the loop before it asks whether it may.
    if is_side_effect_safe(items.mutation_type):
        return None
    if not isinstance(more, (ListVariable, TupleVariable)):
        return running.extend(items, more)
    if items_of(more) is not None or not active.regions[-1].adopt_list(items):
        return None
    items.items.extend(more.items)
    return constant(None)


def _extend_new(tx: Translator, items: Any, more: Any) -> Any:
    """A list of tensors, or of nothing, becomes one with what it is extended by; one that a loop over documents has
    filled gets more."""
    if current_frame().mode not in LOOP_MODES:
        return None
    if is_collected(items) and type(more) in (ListVariable, TupleVariable) and items_of(more) is None:
        items.items.extend(more.items)
        return constant(None)
    if is_collected(items) and is_collected(more):
        items.items = items.items + more.items
        return constant(None)
    made = entries_of(tx, more) if _is_new(items) else None
    if made is None:
        return None
    if not is_collected(made):  # what was a generator cannot be gone through again
        return items.call_method(tx, "extend", [made], {})
    items.items = items.items + made.items if items.items else made.items.copied()
    return constant(None)


def _is_new(items: Any) -> bool:
    known = type(items) is ListVariable and type(items.items) is list
    known = known and all(isinstance(entry.realize(), TensorVariable) for entry in items.items)
    return known and items.source is None and isinstance(items.mutation_type, ValueMutationNew)


def entries_of(tx: Translator, more: Any) -> Any:
    """The list of what a loop over documents, or a generator, makes; None if nothing of that kind is gone through."""
    made = is_collected(more) or isinstance(more, LocalGeneratorObjectVariable) or is_documents(more)
    return listed(tx, [more], {}) if made and current_frame().mode in LOOP_MODES else None


def unpacked(tx: Translator, items: Any, more: Any) -> tuple[Any, Any]:
    """``[a, *more]``: the list that takes the place of a new one, None if it is what it seems; and ``more``, as a list
    if it was a generator."""
    made = entries_of(tx, more) if not active.regions and _is_new(items) else None
    if made is None or not items.items:
        return made, more
    return added(items, made), made


def added(one: Any, other: Any) -> Any:
    """The list that two lists are together, if a loop over documents has filled one; else None."""
    sides = [side.realize() for side in (one, other)]
    if not all(type(side) is ListVariable for side in sides) or all(items_of(side) is None for side in sides):
        return None
    joined = ListVariable([], mutation_type=ValueMutationNew())
    joined.items = sides[0].items + sides[1].items
    return joined
