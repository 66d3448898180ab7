"""Vectors of integers that are longer than what they are made from: the lengths of two parts of every document, or of
as many windows as there fit into each.

::

    halves = lengths.repeat_interleave(2) // 2
    parts = x.split(halves.tolist())

    windows = torch.full((torch.ceil(lengths / 16).long().sum(),), 16)
"""

from __future__ import annotations

from typing import Any

from packpass._compat import free_unbacked_symbols
from packpass.capture import watch
from packpass.capture.dynamo import example
from packpass.capture.frame import Mode
from packpass.capture.origins import is_made_from_numbers, made_from
from packpass.capture.state import current_frame

_MOST = 8
"""Entries for each of those that a vector is made from."""


def enter_for_several(vector: Any, size: int) -> None:
    """A vector with several entries for every one of the vector of integers that it is made from: two parts of each
    document, say. How long that is, is no constant."""
    frame, given = current_frame(), made_from(vector.as_proxy().node) if watch.is_vector(vector) else None
    argument = None if given is None else given.meta.get("grapharg")
    known = given.meta["example_value"].shape[0] if given is not None else None
    if argument is None or argument.source is None or type(known) is not int or not watch.loops_are_sought():
        return
    several = {k * n + last for k in range(2, _MOST + 1) for n in (known, known - 1) if n > 1 for last in (0, 1)}
    if size in several and frame.mode in (Mode.PROBE, Mode.SYMBOLIC):
        watch.make_dynamic({watch.source_name(argument.source)})


def is_as_data_says(vector: Any) -> bool:
    """Has a vector of integers as many entries as numbers say from which it is made itself: one for every window of the
    documents, say?"""
    if current_frame().mode is not Mode.SYMBOLIC or not watch.is_vector(vector):
        return False
    node = vector.as_proxy().node
    data = free_unbacked_symbols(example(vector).shape[0])
    return bool(data) and is_made_from_numbers(node)
