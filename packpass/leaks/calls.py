"""One call of the model as it is looked at while it runs: its name, the user's line, its tensors."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from packpass.decisions.location import is_library, shorten
from packpass.semantics.mixing_by_name import writes_an_item
from packpass.semantics.names import is_in_place, name_of_target


@dataclasses.dataclass(frozen=True)
class Site:
    """An operation in the user's code."""

    operation: str
    location: str


@functools.lru_cache(maxsize=4096)
def _name(func: Any) -> str:
    qualified = getattr(func, "__qualname__", "")
    plain: str = getattr(func, "__name__", "")
    if plain in ("__get__", "__set__"):
        return f"{getattr(getattr(func, '__self__', None), '__name__', '')}.{plain}"
    if qualified.startswith(("Tensor.", "TensorBase.")):
        return name_of_target(plain) or plain
    return name_of_target(func) or plain


def operation_name(func: Any) -> str:
    """The name of what is called, as `packpass.semantics` has it where torch knows it."""
    try:
        return _name(func)
    except TypeError:  # not hashable
        return str(getattr(func, "__name__", func))


def reads_attribute(func: Any) -> bool:
    """Is this a read of an attribute of a tensor, or a write of one?"""
    return getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__")


def writes_first(name: str, kwargs: dict[str, Any]) -> bool:
    """Does a call write its first operand, or what it is told to write to?"""
    return is_in_place(name) or writes_an_item(name) or kwargs.get("out") is not None


def user_location() -> str:
    """``file.py:12`` of the innermost frame that is neither torch's nor packpass's."""
    frame = sys._getframe(1)
    last = ""
    while frame is not None:
        file = frame.f_code.co_filename
        here = __name__.rpartition(".")[0]
        if not frame.f_globals.get("__name__", "").startswith(here) and not file.startswith("<"):
            last = last or shorten(file, frame.f_lineno)
            if not is_library(file):
                return shorten(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return last or "<unknown>"


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Tensors in the arguments or results of a call: in lists, tuples, dicts and slices."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)
    elif isinstance(tree, slice):
        yield from tensors_in((tree.start, tree.stop, tree.step))


def with_tensors(tree: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The same arguments with ``function(tensor)`` for every tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, slice):
        return slice(*(with_tensors(part, function) for part in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(with_tensors(item, function) for item in tree))
    if isinstance(tree, (list, tuple)):  # a graph has lists of its own kind
        return (list if isinstance(tree, list) else tuple)(with_tensors(item, function) for item in tree)
    if isinstance(tree, dict):
        return {key: with_tensors(item, function) for key, item in tree.items()}
    return tree
