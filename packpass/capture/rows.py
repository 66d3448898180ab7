"""A list of tuples, lists or dicts, one for each document: ``outs.append((q, k))``, ``outs.append({"q": q, "k": k})``.

Each column is a list of its own, as if the loop had appended to several: ``zip(*outs)`` gives them back, and a loop
over the rows goes through all of them at once.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from packpass.capture import plain
from packpass.capture.dynamo import (
    ConstDictVariable,
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    call,
    constant,
    variable,
)

if TYPE_CHECKING:
    from packpass.capture.lists import CollectedItems


@dataclasses.dataclass(frozen=True)
class Rows:
    """Entries of documents that consist of several values.

    Attributes:
        names: the keys of a dict; None for a tuple or a list.
        columns: one list for each value.
    """

    kind: type
    names: tuple[str, ...] | None
    columns: list[CollectedItems]

    def again(self, tx: Any, over: Any) -> Any:
        """The rows as a sequence over documents; ``over(tx, column)`` makes one of a column."""
        columns = ListVariable([over(tx, column) for column in self.columns], mutation_type=ValueMutationNew())
        if self.names is not None:
            return call(tx, plain.of_dicts, constant(self.names), columns)
        return call(tx, plain.of_tuples, variable(tx, plain.row if self.kind is list else tuple), columns)


def parts_of(value: Any) -> tuple[type, tuple[str, ...] | None, list[Any]] | None:
    """Kind, names and values of a row of tensors and numbers; None if it is something else."""
    names: tuple[str, ...] | None = None
    if type(value) is ConstDictVariable and value.python_type() is dict:
        keys = [key.vt for key in value.items]
        if not all(key.is_python_constant() and type(key.as_python_constant()) is str for key in keys):
            return None
        names = tuple(key.as_python_constant() for key in keys)
        parts = [part.realize() for part in value.items.values()]
    elif type(value) in (ListVariable, TupleVariable) and type(value.items) is list:
        parts = [part.realize() for part in value.items]
    else:
        return None
    if not parts or not all(isinstance(part, (TensorVariable, SymNodeVariable)) for part in parts):
        return None
    return value.python_type(), names, parts


def rows_of(items: CollectedItems, values: list[Any]) -> Rows | None:
    """The rows that a list consists of, by the one of each traced iteration; None if they are not alike."""
    made = [parts_of(value) for value in values]
    if None in made or len({(kind, names, len(parts)) for kind, names, parts in made}) > 1:  # type: ignore[misc]
        return None
    kind, names, _ = made[0]  # type: ignore[misc]
    columns = []
    for column in zip(*(parts for _, _, parts in made), strict=True):  # type: ignore[misc]
        own = type(items)(items.region)
        own.values = [[value] for value in column]
        own.close()
        columns.append(own)
    return Rows(kind, names, columns)
