"""Entries that a loop over documents makes in a ``defaultdict`` of the frame: they are there before the loop.

::

    metrics = defaultdict(list)
    for s, e in spans:
        metrics["loss"].append(f(x[s:e]))      # as if metrics["loss"] = [] stood in front of the loop

The first document makes an entry, and all others find it, which would be state. Where there is a document, and every
document gets that far, it makes no difference who makes the entry: the frame is traced again, and the loop begins with
it. Then it is an entry like those of other dicts (`packpass.capture.places`), or a list like other lists.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from packpass._compat import statically_known_true
from packpass.capture.dynamo import (
    AttributeMutationNew,
    ConstantVariable,
    ConstDictVariable,
    DefaultDictVariable,
    ValueMutationNew,
    constant,
    is_side_effect_safe,
    size_of,
)
from packpass.capture.state import active, caller_of, refuse, restart

if TYPE_CHECKING:
    from packpass.capture.region import Region


def dict_of(holder: Any) -> Any:
    """The dict in which Dynamo keeps the entries of a ``defaultdict`` that the frame has made; None of others."""
    plain = isinstance(holder, DefaultDictVariable) and holder.python_type() is defaultdict  # and no subclass of it
    if not plain or holder.source is not None:
        return None
    own = getattr(holder, "_base_vt", holder)  # of torch 2.13 and 2.14; before and after, it is a dict itself
    made = ValueMutationNew, AttributeMutationNew
    known = isinstance(own, ConstDictVariable) and isinstance(own.mutation_type, made)
    return own if known else None


class Filling(dict[Any, Any]):
    """The entries of such a dict while the loop is open: the first document has not found all of them there, so that a
    body which counts them, or asks for one, could tell."""

    location = ""

    def _ask(self, *args: Any) -> Any:
        reason = "the loop body looks at a defaultdict to which it adds entries"
        raise refuse("outer-mutation", reason, self.location)

    __contains__ = __iter__ = __len__ = __eq__ = __reversed__ = __delitem__ = _ask
    keys = values = items = get = pop = popitem = copy = setdefault = update = clear = _ask  # type: ignore[assignment]

    def found(self, key: Any) -> Any:
        """``(key as Dynamo has it, value)`` of an entry; None if there is none."""
        known = (own for own in dict.__iter__(self) if own.vt.is_python_constant())
        alike = (own for own in known if (type(own.vt.as_python_constant()), own.vt.as_python_constant()) == key)
        own = next(alike, None)
        return None if own is None else (own, dict.__getitem__(self, own))


def load(holder: Any, key: Any) -> Any:
    """``holder[key]`` in the body of a loop that fills it; None of other dicts, and of an entry that is not there yet,
    with which the frame is traced again."""
    if not active.regions:
        return None
    holder, key = holder.realize(), key.realize()
    frame, own = active.frame, dict_of(holder)
    known = key.as_python_constant() if isinstance(key, ConstantVariable) else None
    if frame is None or own is None or type(known) not in (int, str):
        return None
    filling = isinstance(own.items, Filling)
    found = own.items.found((type(known), known)) if filling else None
    if found is not None or (not filling and key in own):
        return None if found is None else found[1]
    region = active.regions[0]
    if len(active.regions) > 1 or is_side_effect_safe(own.mutation_type) or region.skips or region.ways:
        return None
    at = region.place_of(holder) or region.place_of(holder, in_cell=True)
    length = size_of(region.length)
    wanted = frame.defaults.setdefault(region.key, [])
    if at is None or (*at, known) in wanted or not statically_known_true(length >= 1):
        return None
    wanted.append((*at, known))
    raise restart(f"{at[1]}[{known!r}] is there before the loop")


def make(region: Region, contents: Any) -> list[tuple[Any, Any]]:
    """In front of a loop, the entries that its body asks for. ``contents(tx, held)``: what a local holds. Returns the
    dicts, and their entries, for `done`."""
    made: dict[int, Any] = {}
    frames, tx = [], region.tx
    while tx is not None:
        frames.append(tx)
        tx = caller_of(tx)
    for at, name, key in active.frame.defaults.get(region.key, ()) if active.frame is not None else ():
        held = contents(region.tx, dict.get(frames[at].symbolic_locals, name)) if at < len(frames) else None
        holder = None if held is None else held.realize()
        own = dict_of(holder)
        if own is not None and not isinstance(own.items, Filling):
            holder.call_method(region.tx, "__getitem__", [constant(key)], {})
            made[id(own)] = own
    before = [(own, own.items) for own in made.values()]
    for own, items in before:
        own.items = Filling(items)
        own.items.location = region.location
    return before


def done(before: list[tuple[Any, Any]]) -> None:
    """The loop is over."""
    for own, items in before:
        filled = dict.items(own.items)
        items.clear()
        items.update(filled)
        own.items = items
