"""Lengths of documents that are given as numbers of Python: what to say where they cost a graph for every batch.

Dynamo compares the numbers of a list with those that it compiled for, and how many they are, so that a function that is
given the lengths of documents as a list is compiled again for other batches, and runs eagerly after eight of them.
Where the list is no input of the graph (`packpass.capture.number_lists`), it is said when the function is compiled a
second time, for another list that fits a tensor beside it as the first one did; nothing is of a list that never changes
(of widths). A list of tensors, one for each document, is the same: it is said where there are more or fewer of them
than before.
"""

from __future__ import annotations

import logging
import math
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from packpass.capture import number_lists
from packpass.capture.frame import FrameState, Mode
from packpass.capture.state import resumes
from packpass.capture.watch import loops_are_sought
from packpass.decisions.location import shorten
from packpass.decisions.records import Refusal
from packpass.engine.skipped import tell

log = logging.getLogger("packpass.capture")

_seen: weakref.WeakKeyDictionary[types.CodeType, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Code -> name of an argument -> the lengths or boundaries that it had where the code was compiled last."""


def note(tx: Any, frame: FrameState) -> None:
    """A frame was traced, or failed."""
    if resumes(tx) or not loops_are_sought(frame):
        return
    known = frame.dynamic_sources if frame.mode is Mode.SYMBOLIC else set()
    for text in _changed(tx, known):
        reason = f"{text}; loops by it are then one operation for any number of documents"
        location = shorten(tx.f_code.co_filename, tx.f_code.co_firstlineno)
        tell(frame, Refusal(rule="capture", code="python-lengths", reason=reason, location=location))


def _changed(tx: Any, known: set[str]) -> list[str]:
    """What to say of the arguments that hold other documents than those that the code was compiled for."""
    try:
        return list(_compared(tx, known))
    except Exception as error:  # arguments may be anything, and a frame must not fail because they are looked at
        log.debug("lengths are not looked for: %s: %s", type(error).__name__, error)
        return []


def _compared(tx: Any, known: set[str]) -> Iterator[str]:
    values = list(number_lists.values_of(tx.f_locals))
    tensors = [value for _, _, value in values if isinstance(value, torch.Tensor) and not value.is_nested]
    sizes = {int(size) for value in tensors for size in value.shape}
    before = _seen.setdefault(tx.f_code, {})
    for name, source, value in values:
        again = f"for which torch compiles {tx.f_code.co_name} again and again"
        count = None if name == number_lists.name_of_arguments(tx.f_code) else _tensors(value)
        if count is not None:
            if before.get(name, count) != count and not _is_known(tx.f_code, value, source, known):
                yield f"'{name}' is a list of a tensor for each document, {again}: give it one row and its boundaries"
            before[name] = count
            continue
        numbers = number_lists.numbers_of(value)
        fits = numbers is not None and (number_lists.fits(numbers, sizes) or number_lists.are_rows(numbers, tensors))
        if numbers is None or not (fits or (type(value[0]) is not int and _are_pixels(numbers, tensors))):
            continue
        if before.get(name, numbers) != numbers and not _is_known(tx.f_code, value, source, known):
            yield (
                f"'{name}' gives lengths or boundaries of documents as numbers of Python, {again}: give it a tensor, "
                f"and read that where numbers are needed ({name}.tolist())"
            )
        before[name] = numbers


def _is_known(code: types.CodeType, value: Any, source: str, known: set[str]) -> bool:
    """Is a list an input of the graph, as it is for any number of documents?"""
    return not known.isdisjoint(number_lists.names_of(code, value, source) or ())


def _tensors(value: Any) -> int | None:
    """How many tensors of one rank a list holds; None if it is another."""
    if type(value) not in (list, tuple) or not value or not all(isinstance(entry, torch.Tensor) for entry in value):
        return None
    ranks = {entry.dim() for entry in value}
    return len(value) if len(ranks) == 1 and ranks != {0} else None


def _are_pixels(products: tuple[int, ...], tensors: list[torch.Tensor]) -> bool:
    """May they be sizes of images in pixels, of which a row has one slot for every square patch?"""
    pixels, sizes = sum(products), {int(size) for value in tensors for size in value.shape[:-1]}
    patches = {pixels // size for size in sizes if size > 1 and pixels % size == 0}
    return min(products) > 0 and any(math.isqrt(area) ** 2 == area for area in patches)
