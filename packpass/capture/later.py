"""What code behind a graph makes of the graph's results, where a graph cannot hold what the program has there.

That code is not traced in its turn: it goes through what graphs cannot hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from torch.compiler import disable as untraced

from packpass.capture.dynamo import VariableTracker


@untraced
def numbers(vector: Any) -> list[int]:
    """A list of the numbers in a tensor, which is the list's own."""
    made: list[int] = vector.tolist()
    return made


@untraced
def listed(stacked: Any, present: Any) -> list[Any]:
    """The entries of a list, each with memory of its own; without those of documents that are not ``present``, if that
    is given."""
    return _present([entry.clone() for entry in stacked.unbind(0)], present)


@untraced
def cut(row: Any, boundaries: Any, dim: int, present: Any) -> list[Any]:
    """The same of the documents of a row."""
    lengths = [stop - start for start, stop in itertools.pairwise(boundaries.tolist())]
    return _present([part.clone() for part in row.split(lengths, dim)], present)


def _present(entries: list[Any], present: Any) -> list[Any]:
    return entries if present is None else list(itertools.compress(entries, present.tolist()))


@untraced
def places() -> Any:
    """The documents' numbers."""
    return itertools.count()


@untraced
def views(count: int, first: Any, steps: Any, *columns: Any) -> list[Any]:
    """Views of tensors, one for each of so many documents, made by these calls. ``columns``: a number of each document
    for every ``("number",)`` in the calls, see `packpass.capture.recut`."""
    made = []
    for view, *numbers in itertools.islice(zip(first, *columns, strict=False), count):
        left = iter(numbers)
        for name, *args in steps:
            given = [_read(arg, left) for arg in args]
            if name.startswith("."):
                view = getattr(view, name[1:])
            else:
                view = getattr(view, name)(*given) if name else view[given[0]]
        made.append(view)
    return made


def _read(arg: Any, numbers: Any) -> Any:
    """An argument that was written in constants."""
    what, *parts = arg
    if what == "number":
        return next(numbers)
    if what == "is":
        return parts[0]
    if what == "rest":
        return ...
    return (slice if what == "slice" else lambda *entries: entries)(*(_read(part, numbers) for part in parts))


@untraced
def split(whole: Any, lengths: list[int], dim: int) -> tuple[Any, ...]:
    """The parts of a tensor, as the program splits it."""
    parts: tuple[Any, ...] = whole.split(lengths, dim)
    return parts


@untraced
def together(*lists: list[Any]) -> list[Any]:
    """A list that the program has put entries of its own into, or that several loops fill."""
    return [*itertools.chain(*lists)]


@untraced
def in_turn(*lists: list[Any]) -> list[Any]:
    """A list with several entries of each document, given those of each kind."""
    return [entry for entries in zip(*lists, strict=True) for entry in entries]


@untraced
def same(value: Any) -> Any:
    """What all documents share, as often as it is asked for."""
    return itertools.repeat(value)


@untraced
def rows(kind: type, names: Any, *columns: Any) -> list[Any]:
    """A list of tuples, lists, dicts, or objects that are made of a document's values one by one."""
    entries = zip(*columns, strict=False)
    if names is not None:
        return [dict(zip(names, values, strict=True)) for values in entries]
    return [kind(values) if kind in (tuple, list) else kind(*values) for values in entries]


@untraced
def as_list(entries: tuple[Any, ...]) -> list[Any]:
    """The same as a list."""
    return list(entries)


@untraced
def as_tuple(entries: list[Any]) -> tuple[Any, ...]:
    """The same as a tuple."""
    return tuple(entries)


class Callers(VariableTracker):
    """A list that the program was given, which the code behind the graph has as it is."""

    def __init__(self, origin: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.origin = origin

    def reconstruct(self, codegen: Any) -> None:
        codegen(self.origin)


class Later(VariableTracker):
    """What ``make``, a function of this module, makes of values of the graph and constants."""

    def __init__(self, make: Callable[..., Any], args: list[Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.make, self.args = make, args

    def reconstruct(self, codegen: Any) -> None:
        codegen.add_push_null(lambda: codegen.load_import_from(__name__, self.make.__name__))
        for value in self.args:
            codegen(value)
        codegen.call_function(len(self.args), False)
