"""Boundaries among the arguments of a function, by their well-known names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packpass.layout.sources import BOUNDARY_NAMES, PADDED_NAMES

_NAMES = frozenset((*BOUNDARY_NAMES, *PADDED_NAMES))


@dataclasses.dataclass(frozen=True)
class Step:
    """From a container to one of its values: item or attribute ``name``."""

    name: str
    attribute: bool


@dataclasses.dataclass(frozen=True)
class Argument:
    """A tensor among the arguments of the frame: ``L[local]``, or what ``steps`` lead to from there."""

    local: str
    steps: tuple[Step, ...]
    value: torch.Tensor

    @property
    def name(self) -> str:
        return self.steps[-1].name if self.steps else self.local


def boundary_arguments(values: Mapping[str, Any]) -> Iterator[Argument]:
    """Every argument with a well-known name for boundaries, also inside dicts, dataclasses, named tuples and
    ``packed_seq_params`` objects."""
    for local, value in values.items():
        if isinstance(value, torch.Tensor):
            if local in _NAMES:
                yield Argument(local, (), value)
        elif local != "self":
            for steps, item in _inside(value, local, 2):
                yield Argument(local, steps, item)


def _inside(value: Any, name: str, depth: int) -> Iterator[tuple[tuple[Step, ...], torch.Tensor]]:
    """The boundaries in a container, with the way to them."""
    for step, item in _values(value, name):
        if isinstance(item, torch.Tensor):
            if step.name in _NAMES:
                yield (step,), item
        elif depth > 1:
            for steps, tensor in _inside(item, step.name, depth - 1):
                yield (step, *steps), tensor


def _values(value: Any, name: str) -> Iterator[tuple[Step, Any]]:
    if type(value) is dict:
        yield from ((Step(key, False), item) for key, item in value.items() if isinstance(key, str))
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        names = list(value._fields)
    elif value is not None and name.endswith("seq_params"):
        names = list(_NAMES)
    else:
        return
    missing = object()
    for key in names:
        item = getattr(value, key, missing)
        if item is not missing:
            yield Step(key, True), item
