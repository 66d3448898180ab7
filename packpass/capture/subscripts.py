"""Subscripts of tensors by numbers that are data: one row, one slot, rows picked by a mask."""

from __future__ import annotations

from typing import Any

import torch

from packpass import markers
from packpass.capture import edges, layers, masked, place_ends
from packpass.capture.dynamo import (
    ConstantVariable,
    NumpyNdarrayVariable,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    call,
    emit,
    example,
)
from packpass.capture.single_rows import single_row
from packpass.capture.state import active, current_frame
from packpass.capture.watch import is_scalar, is_unknown, watch_items, watch_row


def watch(tx: Any, base: Any, key: Any) -> None:
    """A subscript of a tensor, before a loop is looked for: what it reads from tensors."""
    masked.watch(tx, base, key)
    index = key.realize()
    watch_items(tx, list(index.items) if isinstance(index, TupleVariable) else [index])


def index_by_number(tx: Any, self: Any, name: str, args: Any) -> Any:
    """``x[:, e - 1]`` and ``x[:, e - 1] = v`` with a data-dependent ``e``: torch's indexing takes such an integer only
    alone, so go through ``select``, which returns the same view."""
    key = args[0].realize()
    if isinstance(self, NumpyNdarrayVariable):
        return _entry_of_array(tx, self, key) if name == "__getitem__" else None
    watch_row(tx, self, key.items[0].realize() if isinstance(key, TupleVariable) and key.items else key)
    other = edges.neighbour(tx, self, key) if name == "__getitem__" else None
    if other is not None:
        return other
    masked_part = masked.subscript(tx, self, name, args)
    if masked_part is not None:
        return masked_part
    fake = example(self)
    if not isinstance(fake, torch.Tensor):
        return None
    shared = layers.picked_first(tx, self, key) if name == "__getitem__" else None
    if shared is not None:
        return shared
    kept = single_row(tx, self, key) if name == "__getitem__" else None
    if kept is not None:
        return kept
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else [key]
    last = _last_slot(tx, self, fake, entries) if name == "__getitem__" else None
    if last is not None:
        return last
    # An integer tensor of no dimensions indexes like the integer it holds.
    scalars = [i for i, entry in enumerate(entries) if isinstance(entry, TensorVariable) and is_scalar(entry)]
    unknown = [i for i, e in enumerate(entries) if isinstance(e, SymNodeVariable) and is_unknown(e.sym_num)] + scalars
    if (row := _row_first(entries, unknown, scalars)) is not None:
        return _slot_of_row(tx, self, name, fake, entries, row, *args[1:])
    if len(unknown) != 1 or (name == "__getitem__" and not isinstance(key, TupleVariable) and not scalars):
        return None
    if scalars:
        entries[scalars[0]] = place_ends.number_in(tx, entries[scalars[0]]).call_method(tx, "item", [], {})
    rest = [entry for i, entry in enumerate(entries) if i != unknown[0]]
    # To ask a slice or a number that is data whether it is a constant is to make it one.
    known = {i: e.as_python_constant() for i, e in enumerate(entries) if _is_constant(e)}
    ellipsis = [i for i, value in known.items() if value is Ellipsis]
    integers = [i for i, value in known.items() if type(value) is int]
    new = [i for i, value in known.items() if value is None]
    understood = {*unknown, *ellipsis, *integers, *new}
    if not all(i in understood or isinstance(e, SliceVariable) for i, e in enumerate(entries)):
        return None
    dim = unknown[0] - sum(i < unknown[0] for i in integers)
    if ellipsis and ellipsis[0] < unknown[0]:
        dim += fake.dim() - (len(entries) - len(new) - 1) - 1
    if any(isinstance(e, SliceVariable) and not _is_constant_slice(e) for e in rest):
        # The document's own row first, and then its slots.
        at = unknown[0] - sum(i < unknown[0] for i in new)
        at += fake.dim() - (len(entries) - len(new)) if ellipsis and ellipsis[0] < unknown[0] else 0
        row = self.call_method(tx, "select", [ConstantVariable.create(at), entries[unknown[0]]], {})
        index = TupleVariable(rest)
        if name == "__getitem__":
            return row.call_method(tx, "__getitem__", [index], {})
        return row.call_method(tx, "__setitem__", [index, args[1]], {})
    slot = _slot_of_view(tx, self, entries, unknown[0], dim)
    if name == "__getitem__":
        return slot
    return slot.call_method(tx, "__setitem__", [ConstantVariable.create(Ellipsis), args[1]], {})


def _slot_of_view(tx: Any, self: Any, entries: list[Any], at: int, dim: int) -> Any:
    """What the other entries of an index leave, and of that one slot along a dimension."""
    full = SliceVariable([ConstantVariable.create(None)] * 3, tx)
    index = TupleVariable([full if i == at else entry for i, entry in enumerate(entries)])
    view = self
    if not all(_is_full_slice(entry) for i, entry in enumerate(entries) if i != at):
        view = self.call_method(tx, "__getitem__", [index], {})
    return view.call_method(tx, "select", [ConstantVariable.create(dim), entries[at]], {})


def _is_own_number(entry: Any) -> bool:
    """Is it the number of the open loop's document?"""
    if not active.regions or not isinstance(entry, SymNodeVariable):
        return False
    return bool(entry.sym_num.node.expr == active.regions[-1].index.sym_num.node.expr)


def _row_first(entries: list[Any], unknown: list[int], scalars: list[int]) -> int | None:
    """Which number in a subscript takes a row that the others look into; None if none does."""
    if len(unknown) == 2 and _is_own_number(entries[min(unknown)]):
        return min(unknown)
    picked = unknown == [0] and not scalars and any(map(_is_vector, entries)) and _is_picked_from(entries)
    return 0 if picked else None


def _is_vector(entry: Any) -> bool:
    return isinstance(entry, TensorVariable) and not is_scalar(entry)


def _is_picked_from(entries: list[Any]) -> bool:
    """``table[i, places]``, ``table[i, places, :]``: is what is picked from a row known by vectors right behind the
    number, so that the row may be taken first?"""
    kinds = [_is_vector(entry) for entry in entries[1:]]
    return kinds == sorted(kinds, reverse=True) and all(
        kind or _is_full_slice(entry) for kind, entry in zip(kinds, entries[1:], strict=True)
    )


def _slot_of_row(tx: Any, self: Any, name: str, fake: torch.Tensor, entries: list[Any], row: int, *value: Any) -> Any:
    """``h[i, n - 1]``, also written: the document's own row first, and then what the rest of the index takes of it."""
    before, behind = entries[:row], entries[row + 1 :]
    ellipsis = any(_is_constant(entry) and entry.as_python_constant() is Ellipsis for entry in before)
    if not all(_is_full_slice(entry) for entry in before):
        return None
    at = row + (fake.dim() - len(entries) if ellipsis else 0)
    own = self.call_method(tx, "select", [ConstantVariable.create(at), entries[row]], {})
    rest = TupleVariable([*before, *behind])
    found = index_by_number(tx, own, name, [rest, *value])
    return own.call_method(tx, name, [rest, *value], {}) if found is None else found


def _entry_of_array(tx: Any, array: Any, key: Any) -> Any:
    """``bounds[i]`` of an array of numpy in a loop over documents: the number, as that of its ``tolist()``; None for
    other arrays and indices. Numbers of 32 bits would stay such in what is made of them."""
    fake = example(array)
    if not active.regions or not isinstance(fake, torch.Tensor) or fake.dim() != 1 or fake.dtype is not torch.int64:
        return None
    if not isinstance(key, SymNodeVariable) or not is_unknown(key.sym_num):
        return None
    region, node = active.regions[0], array.as_proxy().node
    if node > region.indices[0]:
        return None
    numbers = region.in_front(node, lambda: call(tx, torch.from_numpy, array))
    return numbers.call_method(tx, "__getitem__", [key], {}).call_method(tx, "item", [], {})


def _last_slot(tx: Any, self: Any, fake: torch.Tensor, entries: list[Any]) -> Any:
    """``x[..., -1:]`` behind a branch. How many slots that are, one or none, is what such a branch asks for; a pass
    that knows the answer may take it for one, and no other may use the loop."""
    region = active.regions[-1] if active.regions else None
    if region is None or region.iteration not in region.ways.asked:
        return None
    at = [i for i, entry in enumerate(entries) if not _is_full_slice(entry)]
    if len(at) != 1 or not isinstance(entries[at[0]], SliceVariable) or not _is_constant_slice(entries[at[0]]):
        return None
    if [v.as_python_constant() for v in entries[at[0]].items] not in ([-1, None, None], [-1, None, 1]):
        return None
    ellipsis = [i for i, entry in enumerate(entries) if not isinstance(entry, SliceVariable)]
    dim = at[0] + (fake.dim() - len(entries) if ellipsis and ellipsis[0] < at[0] else 0)
    if not is_unknown(fake.shape[dim]):
        return None
    frame = current_frame()
    frame.not_replayable = frame.not_replayable or "a document is taken to have a last slot"
    return emit(tx, markers.LAST_SLOT, self.as_proxy(), dim)


def _is_constant(entry: Any) -> bool:
    return not isinstance(entry, (SliceVariable, SymNodeVariable, TensorVariable)) and entry.is_python_constant()


def _is_constant_slice(entry: Any) -> bool:
    return all(isinstance(v, ConstantVariable) for v in entry.items)


def _is_full_slice(entry: Any) -> bool:
    if isinstance(entry, SliceVariable):
        return all(isinstance(v, ConstantVariable) and v.as_python_constant() is None for v in entry.items)
    return _is_constant(entry) and entry.as_python_constant() is Ellipsis


def get_item(tx: Any, self: Any, *args: Any) -> Any:
    return index_by_number(tx, self, "__getitem__", args) if len(args) == 1 else None


def set_item(tx: Any, self: Any, *args: Any) -> Any:
    return index_by_number(tx, self, "__setitem__", args) if len(args) == 2 else None
