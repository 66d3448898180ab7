"""Numbers that the program puts in front of or behind a list of numbers that a tensor holds.

::

    bounds = starts.tolist()
    bounds.append(len(x))

    ends = cu_seqlens[1:].tolist()
    for s, e in zip([0] + ends[:-1], ends):
    starts = (position_ids == 0).nonzero().flatten().tolist()
    for s, e in zip(starts, starts[1:] + [len(x)]):
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from packpass.capture import plain, plain_numbers
from packpass.capture.dynamo import (
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    ValueMutationNew,
    attribute,
    call,
    constant,
)
from packpass.capture.lists import is_documents, numbers_of
from packpass.capture.sequences import is_once, number_of, refuse_use, take
from packpass.capture.state import active

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase as Translator

_MOST = 4
"""Numbers that are put there."""


def plus(tx: Translator, one: Any, other: Any) -> Any:
    """``[0] + numbers``, ``[0, *numbers]``, ``numbers + [total]`` as a list of numbers; None if it is something
    else."""
    for front, more, numbers in ((True, one, other), (False, other, one)):
        numbers = numbers_of(numbers) or numbers
        if not _are_numbers(more) or not is_documents(numbers) or not _is_of_tensor(tx, numbers):
            continue
        if is_once(numbers):
            if not front:
                return None
            take(tx, numbers)
        return call(tx, plain_numbers.in_front if front else plain_numbers.behind, numbers, more)
    return None


def _are_numbers(more: Any) -> bool:
    """Is it a list of the program's own, of integers?"""
    if type(more) is not ListVariable or type(more.items) is not list or not 0 < len(more.items) <= _MOST:
        return False
    return all(_is_integer(entry.realize()) for entry in more.items)


def _is_integer(entry: Any) -> bool:
    if isinstance(entry, SymNodeVariable):
        return isinstance(entry.sym_num, torch.SymInt)
    return number_of(entry) is not None


def _is_of_tensor(tx: Translator, numbers: Any) -> bool:
    """Is it the ``tolist()`` of a tensor, or a slice of one?"""
    cut = attribute(tx, numbers, "cut")
    known = isinstance(attribute(tx, numbers, "origin"), TensorVariable)
    return known or not (cut.is_python_constant() and cut.as_python_constant() is None)


def grow(tx: Translator, documents: Any, more: Any, front: Any) -> Any:
    """`plain.grow`: ``bounds.append(total)``, ``bounds.insert(0, 0)``."""
    documents, more = documents.realize(), more.realize()
    ahead = front.as_python_constant()
    joined = None
    if not active.regions and documents not in active.trace.lent and not is_once(documents):
        joined = plus(tx, *((more, documents) if ahead else (documents, more)))
    if joined is None:
        raise refuse_use(tx, "an entry that is added")
    call(tx, attribute(tx, documents, "become"), joined)
    return constant(None)


def with_entry(tx: Translator, numbers: Any, value: Any) -> Any:
    """``[*numbers, value]``."""
    joined = None if active.regions else plus(tx, numbers, ListVariable([value], mutation_type=ValueMutationNew()))
    if joined is None:
        raise refuse_use(tx, "an entry that is added")
    return joined


QUESTIONS: dict[Any, Any] = {plain.grow: grow}
