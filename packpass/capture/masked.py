"""The tokens of a padded row that a mask picks: ``row[mask]``, ``rows[i, mask[i]]``, and what is written there.

How many there are is data, of which torch makes a size that nothing else has. In a loop over documents marker ops stand
in; what they pick is a document as long as the mask's sum says.
"""

from __future__ import annotations

from typing import Any

import torch

from packpass import markers
from packpass.capture.dynamo import TensorVariable, TupleVariable, constant, emit, example
from packpass.capture.state import active
from packpass.capture.watch import is_unknown, watch_mask


def subscript(tx: Any, tensor: Any, name: str, args: Any) -> Any:
    """``tensor[key]`` and ``tensor[key] = value`` through a marker; None if the key is not, or does not end with, the
    mask of a row."""
    entries = _picking(tensor, args[0].realize())
    if not active.regions or entries is None:
        return None
    mask = entries[-1]
    row = tensor if len(entries) == 1 else tensor.call_method(tx, "select", [constant(0), entries[0]], {})
    fake = example(row)
    if not isinstance(fake, torch.Tensor) or not fake.dim() or is_unknown(fake.shape[0]):
        return None
    proxies = (row.as_proxy(), mask.as_proxy())
    if name == "__getitem__":
        return emit(tx, markers.MASKED, *proxies, None, None)
    value = args[1].realize()
    if not isinstance(value, TensorVariable) or not isinstance(example(value), torch.Tensor) or not example(value).dim():
        return None  # one value for all: no size is asked for
    tx.output.create_proxy("call_function", markers.MASKED_PUT, (*proxies, value.as_proxy(), None, None), {})
    return constant(None)


def watch(tx: Any, tensor: Any, key: Any) -> None:
    """Before a loop is looked for: does the program pick from rows by masks?"""
    entries = _picking(tensor, key.realize())
    if entries is not None:
        watch_mask(tx, entries[-1])


def _picking(tensor: Any, key: Any) -> list[Any] | None:
    """The entries of a key that is, or ends with, the mask of a row."""
    entries = [entry.realize() for entry in key.items] if isinstance(key, TupleVariable) else [key]
    known = 1 <= len(entries) <= 2 and _is_mask(entries[-1]) and isinstance(example(tensor), torch.Tensor)
    return entries if known else None


def _is_mask(value: Any) -> bool:
    fake = example(value) if isinstance(value, TensorVariable) else None
    is_row = isinstance(fake, torch.Tensor) and fake.dtype is torch.bool and fake.dim() == 1
    return is_row and not is_unknown(fake.shape[0])
