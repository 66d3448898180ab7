"""Lists that a loop over documents fills with rows of numbers: ``shapes.append((h, w))``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from packpass.capture import plain
from packpass.capture.dynamo import (
    ListVariable,
    TensorVariable,
    ValueMutationNew,
    attribute,
    call,
    constant,
    variable,
)
from packpass.capture.tallies import columns_made

if TYPE_CHECKING:
    from packpass.capture.region import Region

_KINDS = {list: plain.row, slice: plain.part}
"""How a row of numbers is made again where it is asked for; a tuple, if not so."""


def columns(region: Region, made: list[Any], rows: list[Any]) -> list[Any] | None:
    """Each column is a list of numbers, or a number that all documents share; None if they are not."""
    return None if len({row.python_type() for row in made}) > 1 else columns_made(region, rows)


def as_numbers(region: Region, columns: list[Any], kind: type) -> Any:
    """The sequence over documents of such rows."""
    entries = ListVariable(columns, mutation_type=ValueMutationNew())
    return call(region.tx, plain.of_columns, region.length, entries, variable(region.tx, _KINDS.get(kind, tuple)))


def as_tensor(region: Region, columns: list[Any] | None, numbers: Any) -> Any:
    """All numbers as a tensor, the entries of rows along its second dimension; None if there are none."""
    tx = region.tx
    if columns is None:
        known = [] if numbers is None else [attribute(tx, numbers, name) for name in ("origin", "floats")]
        return next((origin for origin in known if isinstance(origin, TensorVariable)), None)
    origin = next((column for column in columns if isinstance(column, TensorVariable)), None)
    if origin is None:
        return None
    whole = [c if isinstance(c, TensorVariable) else call(tx, torch.full_like, origin, c) for c in columns]
    return call(tx, torch.stack, ListVariable(whole, mutation_type=ValueMutationNew()), constant(1))
