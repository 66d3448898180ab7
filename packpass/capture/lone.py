"""One document, whose number torch takes for a constant: a batch of one row, lengths that are a vector of one entry.

A loop over it is captured with that number, and its graph is one for one document. It may as well be a loop over
something else of which there is one, layers say, or one that is refused as a loop over documents and yet no trouble for
torch, which unrolls it. So what refuses it has the frame traced again, first without those by ``range(1)`` and then
without any (`packpass.capture.state.without_lone_document`).
"""

from __future__ import annotations

from typing import Any

from packpass.capture.frame import Mode
from packpass.capture.state import current_frame, location_of, restart
from packpass.capture.watch import loops_are_sought, vectors


def is_lone(tx: Any, size: Any, sure: bool = True) -> bool:
    """Is this one document, over which a loop is captured as one over a constant number? ``sure``: it is an entry of a
    vector of integers; other values go along with one that is."""
    frame = current_frame()
    if type(size) is not int or size != 1 or frame.lone is None or not loops_are_sought():
        return False
    if sure:
        frame.lone = True
        frame.lone_at.add(location_of(tx))
        if frame.mode is Mode.PROBE:
            frame.mode = Mode.SYMBOLIC
            raise restart("a loop over one document")
    return frame.lone and frame.mode is Mode.SYMBOLIC


def are_boundaries(size: Any) -> bool:
    """Are two entries of a vector the boundaries of one document, in a frame with a loop over it that was captured?"""
    frame = current_frame()
    return type(size) is int and size == 2 and frame.lone is True and frame.mode is Mode.SYMBOLIC


def is_lone_range(tx: Any, n: int) -> bool:
    """The same of ``range(n)``, in a frame with a vector that has one entry."""
    frame = current_frame()
    if frame.lone is False and frame.mode is Mode.SYMBOLIC:
        frame.lone = any(type(size) is int and size == 1 for size in vectors(tx).values())
    if frame.lone_ranges is None or not is_lone(tx, n, sure=False):
        return False
    frame.lone_ranges = True
    return True
