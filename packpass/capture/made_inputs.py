"""Inputs of a graph that are made from a list at every call: a tensor of its numbers, one row of its tensors.

Dynamo does that for floats. Its guards would compare the tensors that they make for themselves, which are gone after
it; here the list is looked at instead, and of what is made of it only the sizes are.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from packpass.capture.dynamo import (
    AttrSource,
    FloatTensorSource,
    VariableTracker,
    dynamic_sources,
    example,
    install_guard,
)


def problem() -> str | None:
    """Why this torch makes no inputs of lists; None if it does."""
    if AttrSource is None or not hasattr(FloatTensorSource, "_name_template"):
        return "no source for a tensor that is made of a number of Python"
    return None


class Made(FloatTensorSource):  # type: ignore[misc, unused-ignore]
    """Where an input comes from that ``module.function(list)`` is."""

    module: ClassVar[str]
    function: ClassVar[str]
    shape: ClassVar[str]
    """Python for its sizes, where the list is ``{0}``."""

    @classmethod
    def name_at(cls, place: str) -> str:
        """The name of the input that is made of the list at ``place``: Python for a tensor as large."""
        return f"torch.empty({cls.shape}, device='meta')".format(place)

    @property
    def _name_template(self) -> str:
        return self.name_at("{0}")

    @classmethod
    def shape_of(cls, value: Any) -> tuple[int, ...]:
        """The sizes of what is made of a list."""
        sizes: tuple[int, ...] = eval(_compiled(cls.shape), {"torch": torch}, {"given": value})
        return sizes

    @classmethod
    def make(cls, value: Any) -> torch.Tensor:
        made: torch.Tensor = getattr(importlib.import_module(cls.module), cls.function)(value)
        return made

    def reconstruct(self, codegen: Any) -> None:
        codegen.add_push_null(lambda: codegen.load_import_from(self.module, self.function))
        codegen(self.base)
        codegen.call_function(1, False)


@functools.cache
def _compiled(shape: str) -> types.CodeType:
    return compile(shape.format("given"), "<sizes of an input>", "eval")


def made(tx: Any, source: Made, value: Any) -> Any:
    """The input that is made of ``value``, as a tensor of the traced program; `guard` first of what kind it is."""
    tensor = source.make(value)
    variable = VariableTracker.build(tx, tensor, source).realize()
    variable.as_proxy().node.meta["grapharg"].example_strong_ref = tensor
    _unguard(tx, source)
    known = [size if isinstance(size, int) else None for size in example(variable).shape]
    guard(source.base, functools.partial(_has_shape, source=source, shape=known))
    return variable


class Number(FloatTensorSource):  # type: ignore[misc, unused-ignore]
    """Where an input comes from that is the number in a tensor of one integer."""

    @property
    def _name_template(self) -> str:
        return "{0}.item()"

    def reconstruct(self, codegen: Any) -> None:
        codegen(self.base)
        codegen.load_method("item")
        codegen.call_method(0)


def number(tx: Any, source: Any, tensor: torch.Tensor) -> Any:
    """The input that the number in an input ``tensor`` is. Inductor would not know of a number that is read from one in
    the graph and that Dynamo knows already."""
    own = Number(source)
    name = own.name if isinstance(own.name, str) else own.name()
    with dynamic_sources({name}):
        variable = VariableTracker.build(tx, tensor.item(), own).realize()
    _unguard(tx, own)  # of what kind the tensor is, is guarded
    return variable


def _unguard(tx: Any, source: Any) -> None:
    """Take out what Dynamo would ask of an input that is made at every call."""
    guards = tx.output.guards.inner
    for own in [own for own in guards if own.originating_source == source]:
        guards.remove(own)


def held(source: Any, arguments: Mapping[str, Any]) -> Any:
    """What a source that begins with an argument was when the frame began; None for any other."""
    if not hasattr(source, "base"):
        return arguments.get(getattr(source, "local_name", ""))
    within = held(source.base, arguments)
    if type(source) is AttrSource:
        return getattr(within, source.member, None)
    return within[source.index] if type(within) is dict and source.index in within else None


# === Guards ==================================================================================================


def guard(source: Any, holds: Callable[[Any], bool]) -> None:
    """The graph is good for lists of which that holds."""
    install_guard(source.make_guard(functools.partial(_check, holds=holds)))


def _has_shape(value: Any, source: Made, shape: list[int | None]) -> bool:
    """Has what is made of a list those sizes that torch takes for constants?"""
    return all(size in (None, own) for size, own in zip(shape, source.shape_of(value), strict=True))


def guard_equal_lengths(source: Any, other: Any) -> None:
    """It is good for lists that have the same lengths as those of another list."""
    install_guard(source.make_guard(functools.partial(_check_both, sources=(source, other))))


def lengths_of(value: Any) -> tuple[int, ...]:
    """The lengths of documents that a list gives, or of tensors in it."""
    return tuple(len(entry) if isinstance(entry, torch.Tensor) else entry for entry in value)


def _check(self: Any, own: Any, holds: Callable[[Any], bool]) -> None:
    said = [f"packpass: {self.arg_ref(own)} is like the list that was compiled for"]
    self.get_guard_manager(own).add_lambda_guard(holds, said, own.user_stack)


def _check_both(self: Any, own: Any, sources: tuple[Any, Any]) -> None:
    def are_equal(arguments: Any) -> bool:
        first, second = (held(source, arguments) for source in sources)
        return lengths_of(first) == lengths_of(second)

    said = ["packpass: " + " and ".join(source.name for source in sources) + " have the same lengths"]
    self.guard_manager.root.add_lambda_guard(are_equal, said, own.user_stack)
