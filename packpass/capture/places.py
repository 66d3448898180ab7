"""Entries of dicts and lists, attributes of objects and variables of closures that a loop over documents changes: as
much locals as locals.

::

    found = {"loss": 0.0, "tokens": 0}
    for s, e in spans:
        found["loss"] = found["loss"] + f(x[s:e])
        found["tokens"] += e - s

Only of dicts, lists and objects that the frame has made, and that a local holds. As soon as a body stores such an
entry, its value moves into the locals of the frame, under a name that no program can have, where
`packpass.capture.region` watches it and `packpass.capture.carried` learns how it grows. Whoever looks at the dict in
another way finds a `Poison` there; after the loop the entry holds its value again.

A variable that a closure shares (``start`` of ``torch.stack([x[start + k] for k in range(2)])``, before Python 3.12)
is such an entry of its cell, where the body reads it before it stores it.
"""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any

from packpass.capture.defaults import dict_of
from packpass.capture.dynamo import (
    AttributeMutationNew,
    CellVariable,
    ConstantVariable,
    ConstDictVariable,
    ListVariable,
    UserDefinedObjectVariable,
    ValueMutationNew,
    is_side_effect_safe,
)
from packpass.capture.state import active
from packpass.capture.watched import Poison

if TYPE_CHECKING:
    from packpass.capture.region import Region


Entries = MutableMapping[Any, Any] | MutableSequence[Any]


CELL = "cell_contents"
"""What Dynamo calls the variable in a cell."""


class Place(str):
    """The name of an entry among the locals of a frame: ``found['loss']``, ``state.loss``."""

    holder: str
    key: Any

    def __new__(cls, holder: str, key: Any, text: str) -> Place:
        made = super().__new__(cls, text)
        made.holder, made.key = holder, key
        return made


class Adopted:
    """An entry while its value is among the locals: where it belongs, and who finds a stand-in there."""

    def __init__(self, entries: Entries, key: Any, frame: Any, place: Place, stand_in: Any) -> None:
        self.entries, self.key, self.frame, self.place = entries, key, frame, place
        self.before = entries[key]
        entries[key] = stand_in

    def put_back(self) -> None:
        """The loop is over."""
        value = dict.pop(self.frame.symbolic_locals, self.place)
        self.entries[self.key] = value.made() if isinstance(value, Poison) and value.make is not None else value


def _entries(tx: Any, holder: Any, key: Any) -> tuple[Entries, Any] | None:
    """Where Dynamo keeps an entry of a dict, list or object that was made in this frame: ``(entries, key)``."""
    if holder.source is not None:
        return None
    if isinstance(holder, CellVariable):
        attributes = tx.output.side_effects.store_attr_mutations.get(holder, {})
        own = key == CELL and holder.pre_existing_contents is None and key in attributes
        return (attributes, key) if own else None
    filled = dict_of(holder)
    if filled is None and type(holder) is ConstDictVariable and isinstance(holder.mutation_type, ValueMutationNew):
        filled = holder
    if filled is not None:
        found = [own for own in dict.__iter__(filled.items) if _constant(own.vt) == (type(key), key)]
        return (filled.items, found[0]) if found else None
    if type(holder) is ListVariable and isinstance(holder.mutation_type, ValueMutationNew):
        inside = type(holder.items) is list and type(key) is int and 0 <= key < len(holder.items)
        return (holder.items, key) if inside else None
    if type(holder) is UserDefinedObjectVariable and isinstance(holder.mutation_type, AttributeMutationNew):
        attributes = tx.output.side_effects.store_attr_mutations.get(holder, {})
        plain = holder.python_type().__setattr__ is object.__setattr__ and key in attributes
        return (attributes, key) if plain else None
    return None


def _constant(value: Any) -> Any:
    """``(type, number or string)`` of a key."""
    known = value.as_python_constant() if isinstance(value, ConstantVariable) else None
    return (type(known), known) if type(known) in (int, str) else None


def _key(holder: Any, key: Any) -> Any:
    """The key of an entry or the name of an attribute, if it is one that stays the same for all documents."""
    if isinstance(holder, CellVariable):
        return key
    if type(holder) is UserDefinedObjectVariable:
        return key if isinstance(key, str) else None
    subscript = type(holder) in (ConstDictVariable, ListVariable) or dict_of(holder) is not None
    known = _constant(key.realize()) if subscript and not isinstance(key, str) else None
    return None if known is None else known[1]


def _region() -> Region | None:
    return active.regions[0] if active.frame is not None and len(active.regions) == 1 else None


def contents(tx: Any, held: Any) -> Any:
    """What a local holds, by way of its cell where a closure shares it."""
    if not isinstance(held, CellVariable):
        return held
    return tx.output.side_effects.store_attr_mutations.get(held, {}).get("cell_contents")


def adopt_place(region: Region, index: int, place: Place) -> bool:
    """Move the value of an entry into the locals of the frame ``index`` that holds its dict or object."""
    frame, _, held_before = region.frame(index)
    held = dict.get(frame.symbolic_locals, place.holder)
    held = held if place.key == CELL else contents(region.tx, held)
    found = _entries(region.tx, held.realize(), place.key) if held is not None else None
    if found is None:
        return False
    made = Adopted(*found, frame, place, Poison(place, region.location))
    region.adopted.append(made)
    for held_then in held_before:  # nobody has stored anything there until now
        held_then[place] = made.before
    dict.__setitem__(frame.symbolic_locals, place, made.before)
    return True


def _found(holder: Any, key: Any) -> Adopted | None:
    """The adopted entry that a subscript or attribute means."""
    region = _region()
    known = _key(holder, key) if region is not None and region.adopted else None
    if region is None or known is None:
        return None
    found = _entries(region.tx, holder, known)
    mine = (made for made in region.adopted if found and made.entries is found[0] and made.key == found[1])
    return next(mine, None)


def load(holder: Any, key: Any) -> Any:
    """The value of ``holder[key]`` or ``holder.key`` (``key`` a string then), or of a closure's variable, if it is
    among the locals; else None."""
    made = _found(holder, key)
    return None if made is None else made.frame.symbolic_locals[made.place]


def _adopted(region: Region, index: int, name: str, key: Any, text: str) -> Adopted | None:
    """An entry of what the local ``name`` of the frame ``index`` holds, moved into the locals as it is stored; None if
    that cannot be."""
    place = Place(name, key, text)
    if not adopt_place(region, index, place):
        return None
    region.frame(index)[1].read(place)  # it may have been, before anybody looked
    return region.adopted[-1]


def store(holder: Any, key: Any, value: Any) -> bool:
    """``holder[key] = value`` or ``holder.key = value`` in the body of a loop over documents, if it becomes a local."""
    region = _region()
    known = _key(holder, key) if region is not None else None
    if region is None or known is None:
        return False
    made = _found(holder, key)
    if made is None:
        at = region.place_of(holder) or region.place_of(holder, in_cell=True)
        own = dict_of(holder)
        if at is None or is_side_effect_safe((holder if own is None else own).mutation_type):
            return False
        attribute = type(holder) is UserDefinedObjectVariable
        made = _adopted(region, *at, known, f"{at[1]}.{known}" if attribute else f"{at[1]}[{known!r}]")
        if made is None:
            return False
    made.frame.symbolic_locals[made.place] = value
    return True


def store_shared(cell: Any, value: Any) -> bool:
    """A closure's variable is stored in the body of a loop over documents: does it become a local? Only if it has been
    read before; others begin anew with every document."""
    region = _region()
    if region is None:
        return False
    made = _found(cell, CELL)
    if made is None:
        at = region.place_of(cell) if region.cells.has_read_first(cell) else None
        made = None if at is None else _adopted(region, *at, CELL, f"{at[1]} of a closure")
        if made is None:
            return False
    made.frame.symbolic_locals[made.place] = value
    return True
