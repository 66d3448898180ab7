"""The tokens of a document that a mask picks: ``row[mask]``, ``rows[i, mask[i]]``, and what is written there; and
``x[s:e][mask[s:e]]``.

How many there are is data, of which torch makes a size that nothing else has. In a loop over documents marker ops stand
in; what they pick is a document as long as the mask's sum says.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass import markers
from packpass._compat import hint_of
from packpass.capture import place_ends, row_numbers
from packpass.capture.dynamo import (
    ConstantVariable,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    constant,
    emit,
    example,
)
from packpass.capture.given_numbers import counted_by
from packpass.capture.origins import INDEX_DTYPES, has_integers, needed_for
from packpass.capture.state import active
from packpass.capture.watch import (
    is_scalar,
    is_unknown,
    is_vector,
    loops_are_sought,
    make_dynamic,
    watch_data_size,
    watch_mask,
)
from packpass.semantics import op_name
from packpass.semantics.meaning import same_size
from packpass.semantics.pointwise import slot_by_slot


def subscript(tx: Any, tensor: Any, name: str, args: Any) -> Any:
    """``tensor[key]`` and ``tensor[key] = value`` through a marker; None if the key is not, or does not end with, the
    mask of a row."""
    if not active.regions:
        return None
    key = _without_rest(args[0].realize())
    if (rest := _behind_mask(key)) is not None:
        return _subscript_columns(tx, tensor, name, key.items[0].realize(), TupleVariable([_all(tx), *rest]), args)
    of_row = isinstance(key, TupleVariable) and len(key.items) == 2 and _is_number(key.items[0].realize())
    by_places = chosen(tensor, key.items[1].realize(), dim=1) if of_row else chosen(tensor, key)
    if by_places is not None:
        by_places = TupleVariable([key.items[0], by_places]) if of_row else by_places
        picked = subscript(tx, tensor, name, [by_places, *args[1:]])
        return tensor.call_method(tx, name, [by_places, *args[1:]], {}) if picked is None else picked
    entries = _picking(tensor, key)
    if entries is None:
        return None
    mask = entries[-1]
    row = tensor if len(entries) == 1 else tensor.call_method(tx, "select", [constant(0), entries[0]], {})
    fake = example(row)
    if not isinstance(fake, torch.Tensor) or not fake.dim() or not _as_long(fake.shape[0], example(mask).shape[0]):
        return None
    proxies = (row.as_proxy(), mask.as_proxy())
    if name == "__getitem__":
        return emit(tx, markers.MASKED, *proxies, None, None)
    value = args[1].realize()
    if (
        not isinstance(value, TensorVariable)
        or not isinstance(example(value), torch.Tensor)
        or not example(value).dim()
    ):
        return None  # one value for all: no size is asked for
    tx.output.create_proxy("call_function", markers.MASKED_PUT, (*proxies, value.as_proxy(), None, None), {})
    return constant(None)


def _subscript_columns(tx: Any, tensor: Any, name: str, mask: Any, columns: Any, args: Any) -> Any:
    """``x[mask, 1:3]``, which is ``x[mask][:, 1:3]``, and ``x[mask, 1:3] = value``."""
    if name == "__setitem__":
        view = tensor.call_method(tx, "__getitem__", [columns], {})
        return subscript(tx, view, name, [mask, args[1]]) or view.call_method(tx, name, [mask, args[1]], {})
    picked = subscript(tx, tensor, name, [mask])
    if picked is None:
        return None
    return picked.call_method(tx, "__getitem__", [columns], {}).call_method(tx, "contiguous", [], {})


def selected(tx: Any, tensor: Any, mask: Any = None, **kwargs: Any) -> Any:
    """``torch.masked_select(row, mask)``, which is ``row[mask]`` where both are as long as each other."""
    tensor, mask = tensor.realize(), mask if mask is None else mask.realize()
    fake = example(tensor) if isinstance(tensor, TensorVariable) else None
    if not active.regions or kwargs or not isinstance(fake, torch.Tensor) or not is_mask(mask) or fake.dim() != 1:
        return None
    if not _same_length(fake, example(mask)) and not _cut_alike(tensor, mask):
        return None
    return emit(tx, markers.MASKED, tensor.as_proxy(), mask.as_proxy(), None, None)


# === Places ==================================================================================================


def places(tx: Any, tensor: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``torch.where(mask)``, ``torch.nonzero(mask)`` of a document's mask: the numbers of its slots, which the mask
    picks from; None for any other call."""
    as_tuple = kwargs.pop("as_tuple", None)
    if not active.regions or tensor is None or args or kwargs:
        return None
    mask = tensor.realize()
    fake = example(mask) if isinstance(mask, TensorVariable) else None
    if not isinstance(fake, torch.Tensor) or fake.dim() != 1 or fake.is_complex():
        return None
    if as_tuple is not None and not as_tuple.is_python_constant():
        return None
    if fake.dtype is not torch.bool:
        mask = mask.call_method(tx, "__ne__", [constant(0)], {})
    numbers = _numbers(tx, mask) if is_unknown(fake.shape[0]) else row_numbers.places(tx, mask)
    numbers = _numbers_in_front(tx, mask) if numbers is None else numbers
    if numbers is None:
        return None
    picked = emit(tx, markers.MASKED, numbers.as_proxy(), mask.as_proxy(), None, None)
    active.regions[-1].rows["places", picked.as_proxy().node] = mask
    if as_tuple is not None and as_tuple.as_python_constant():
        return TupleVariable([picked])
    return picked.call_method(tx, "unsqueeze", [constant(-1)], {})


def _numbers(tx: Any, mask: Any) -> Any:
    """The numbers of the slots of a document."""
    size = mask.call_method(tx, "size", [constant(0)], {})
    return row_numbers.numbers_up_to(tx, size.as_proxy(), example(mask).device)


def _numbers_in_front(tx: Any, mask: Any) -> Any:
    """The numbers of the slots of a row that all documents share, ``ids`` where the mask is ``ids == i``; None if there
    is none."""
    region, node = active.regions[-1], mask.as_proxy().node
    while node > region.indices[0]:
        rows = [n for n in node.all_input_nodes if getattr(n.meta.get("example_value"), "ndim", 0)]
        if len(rows) != 1 or not slot_by_slot(node):
            return None
        (node,) = rows
    row = tx.output.current_tracer.proxy(node)

    def numbers() -> Any:
        size = row_numbers.size_along(tx, row, 0)
        return row_numbers.numbers_up_to(tx, size, node.meta["example_value"].device)

    return region.in_front(("numbers", node), numbers) if node.meta["example_value"].dim() == 1 else None


def _same_length(one: torch.Tensor, other: torch.Tensor, dim: int = 0) -> bool:
    """Have two as many slots? Of rows of a batch, which are as long as others now, it is settled by a guard, as adding
    them would."""
    sizes = one.shape[dim], other.shape[0]
    if same_size(*sizes) or any(is_unknown(size) for size in sizes) or hint_of(sizes[0]) != hint_of(sizes[1]):
        return same_size(*sizes)
    return bool(sizes[0] == sizes[1])


def places_by_where(tx: Any, condition: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``torch.where(mask)``, which is ``nonzero`` as a tuple."""
    return None if args or kwargs else places(tx, condition, as_tuple=constant(True))


def chosen(tensor: Any, index: Any, dim: int = 0) -> Any:
    """The mask that made ``index``, where ``tensor[index]`` picks, along a dimension, from what is as long as that
    mask; else None."""
    numbers = example(index) if isinstance(index, TensorVariable) else None
    known = isinstance(numbers, torch.Tensor) and numbers.dim() == 1
    mask = place_ends.mask_of(index.as_proxy().node) if known else None
    fake = example(tensor)
    if mask is None or not isinstance(fake, torch.Tensor) or fake.dim() <= dim:
        return None
    return mask if _same_length(fake, example(mask), dim) or _cut_alike(tensor, mask) else None


def index_selected(tx: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """``x[s:e].index_select(0, torch.where(mask[s:e])[0])``."""
    given = dict(zip(("dim", "index"), args, strict=False)) | kwargs
    if not active.regions or set(given) != {"dim", "index"} or not given["dim"].is_python_constant():
        return None
    tensor = tensor.realize()
    mask = chosen(tensor, given["index"].realize()) if given["dim"].as_python_constant() == 0 else None
    return None if mask is None else subscript(tx, tensor, "__getitem__", [mask])


def _cut_alike(tensor: Any, mask: Any) -> bool:
    """Are both cut from one row by the same bounds? Not every torch gives one size to what is cut twice."""
    cuts = []
    for node in (tensor.as_proxy().node, mask.as_proxy().node):
        while slot_by_slot(node) and len(node.all_input_nodes) == 1:
            (node,) = node.all_input_nodes
        cuts.append(node)
    first, second = cuts
    return op_name(first) == op_name(second) == "getitem" and first.args == second.args


def watch(tx: Any, tensor: Any, key: Any) -> None:
    """Before a loop is looked for: does the program pick from rows by masks?"""
    key = _without_rest(key.realize())
    entries = [key.items[0].realize()] if _behind_mask(key) else _picking(tensor, key)
    if entries is not None:
        watch_picked(tx, entries[-1])
        row = example(tensor)
        if is_vector(tensor) or (len(entries) > 1 and row.dim() == 2 and row.dtype in INDEX_DTYPES):
            watch_data_size(tx)  # of lengths, perhaps, of which some stand for no document, or of places of one row


def watch_picked(tx: Any, mask: Any) -> None:
    """What a mask picks is data. In ``x[ids == i]``, in a loop over ``range(n)`` where ``n`` is a number that is given
    to the model, ``n`` is how many documents there are, of which every slot carries the number: the frame is traced
    again with ``n`` as a variable. Else it may be the mask of a row."""
    names = counted_by(tx) if loops_are_sought() else set[str]()
    values = (here.meta.get("example_value") for here in (needed_for([mask.as_proxy().node]) if names else ()))
    if any(has_integers(value, 1) for value in values):
        make_dynamic(names)
    watch_mask(tx, mask)


def _without_rest(key: Any) -> Any:
    """``mask, :`` and ``mask, ...`` pick as ``mask`` does."""
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else []
    while len(entries) > 1 and _is_rest(entries[-1]):
        entries.pop()
    if not entries or len(entries) == len(key.items) or not isinstance(entries[-1], TensorVariable):
        return key
    return entries[0] if len(entries) == 1 else TupleVariable(entries)


def _behind_mask(key: Any) -> list[Any] | None:
    """What stands behind the mask of a row in a key, if it is the same for all slots."""
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else []
    known = len(entries) > 1 and is_mask(entries[0]) and all(map(_is_fixed, entries[1:]))
    return entries[1:] if known else None


def _is_fixed(entry: Any) -> bool:
    if isinstance(entry, SliceVariable):
        return all(part.realize().is_python_constant() for part in entry.items)
    return isinstance(entry, ConstantVariable) and (type(entry.value) is int or entry.value is Ellipsis)


def _all(tx: Any) -> Any:
    return SliceVariable([constant(None)] * 3, tx)


def _is_rest(entry: Any) -> bool:
    if isinstance(entry, SliceVariable):
        return all(part.realize().is_python_constant() for part in entry.items) and entry.as_python_constant() == slice(
            None
        )
    return isinstance(entry, ConstantVariable) and entry.value is Ellipsis


def _picking(tensor: Any, key: Any) -> list[Any] | None:
    """The entries of a key that is, or ends with, the mask of a row."""
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else [key]
    known = len(entries) == 1 or (len(entries) == 2 and _is_number(entries[0]))
    return entries if known and is_mask(entries[-1]) and isinstance(example(tensor), torch.Tensor) else None


def _is_number(entry: Any) -> bool:
    """Does an entry of a key take one row?"""
    if isinstance(entry, SymNodeVariable) or (isinstance(entry, TensorVariable) and is_scalar(entry)):
        return True
    return isinstance(entry, ConstantVariable) and type(entry.value) is int


def _as_long(row: Any, mask: Any) -> bool:
    """May a row have a slot for every entry of a mask? Of parts of documents torch may not know that they are of one
    length; if they are not, the call says so."""
    return is_unknown(row) == is_unknown(mask)


def is_mask(value: Any) -> bool:
    fake: Any = example(value) if isinstance(value, TensorVariable) else None
    return isinstance(fake, torch.Tensor) and fake.dtype is torch.bool and fake.dim() == 1
