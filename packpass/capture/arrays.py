"""Loops over the entries of an array of numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from packpass._compat import hint_of
from packpass.capture import plain, watch
from packpass.capture.dynamo import call, example
from packpass.capture.origins import made_from
from packpass.capture.state import location_of, refuse


def entries_of(tx: Any, array: Any, documents_of: Callable[[Any, Any], Any]) -> Any:
    """The entries, which are numbers, as a sequence over documents; None if they are not known to be that. Those of 32
    bits stay such in what is made of them."""
    sure = made_from(array.as_proxy().node) is not None
    if not watch.is_vector(array) or not (sure or watch.batches(tx, {hint_of(example(array).shape[0]) or 0})):
        return None
    tensor = call(tx, torch.from_numpy, array)
    if example(tensor).dtype is torch.int64 and documents_of(tx, tensor) is not None:
        return call(tx, plain.of_tolist, tensor)
    if sure:
        reason = "going over a numpy array of boundaries, not over their tolist(), needs their number to be a constant"
        raise refuse("sequence-use", reason, location_of(tx))
    return None
