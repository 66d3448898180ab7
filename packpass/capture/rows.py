"""A list of tuples, lists, dicts, named tuples or dataclasses, one for each document: ``outs.append((q, k))``,
``outs.append({"q": q, "k": k})``, ``outs.append(Doc(q, k))``.

Each column is a list of its own, as if the loop had appended to several: ``zip(*outs)`` gives them back, and a loop
over the rows goes through all of them at once.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from packpass.capture import message_lists, nothing, plain
from packpass.capture.dynamo import (
    ConstDictVariable,
    FunctoolsPartialVariable,
    ListVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    UserDefinedObjectVariable,
    ValueMutationNew,
    VariableTracker,
    attribute,
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
        names: the keys of a dict, or of attributes; None for a tuple or a list.
        columns: one list for each value, or a constant that all documents share.
    """

    kind: type
    names: tuple[str, ...] | None
    columns: list[CollectedItems | Any]
    source: Any = None
    """Where the program has the class from."""

    def again(self, tx: Any, over: Any, length: Any) -> Any:
        """The rows as a sequence over documents; ``over(tx, column)`` makes one of a column."""
        columns = ListVariable(self.entries(tx, over, length), mutation_type=ValueMutationNew())
        if self.names is not None and self.kind is not dict:
            return call(tx, plain.of_objects, VariableTracker.build(tx, self.kind, self.source), columns)
        if self.names is not None:
            return call(tx, plain.of_dicts, constant(self.names), columns)
        return call(tx, plain.of_tuples, variable(tx, plain.row if self.kind is list else tuple), columns)

    def entries(self, tx: Any, over: Any, length: Any) -> list[Any]:
        """The columns as sequences over documents."""
        return [over(tx, c) if isinstance(c, list) else call(tx, plain.of_same, length, c) for c in self.columns]


def is_function(value: Any) -> bool:
    """Is this a function that the traced program has made, with values that it keeps?"""
    # Of what Dynamo knows, only a function that traced code has made may wrap another; nothing is asked of the value.
    return isinstance(value, FunctoolsPartialVariable) or "wrapped_fn" in vars(value)


def parts_of(tx: Any, value: Any) -> tuple[type, tuple[str, ...] | None, list[Any]] | None:
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
    elif isinstance(value, VariableTracker) and (names := _attributes(value)) is not None:
        parts = [attribute(tx, value, name) for name in names]
    else:
        return None
    parts = [message_lists.completed(tx, part) for part in parts]
    known = [_differs(tx, part) for part in parts]
    if not any(known) or not all(one or _is_constant(part) for one, part in zip(known, parts, strict=True)):
        return None
    return value.python_type(), names, parts


def _differs(tx: Any, part: Any) -> bool:
    """May every document have one of its own in a row: a tensor, a number, a row of such?"""
    return isinstance(part, (TensorVariable, SymNodeVariable)) or is_function(part) or parts_of(tx, part) is not None


def _attributes(value: Any) -> tuple[str, ...] | None:
    """The attributes that make up an object, in the order in which its class takes them: those of a named tuple, or of
    a dataclass that does nothing but keep them."""
    if not isinstance(value, UserDefinedObjectVariable) and not issubclass(type(value), TupleVariable):
        return None
    kind: Any = value.python_type()
    fields = getattr(kind, "_fields", None)
    if issubclass(kind, tuple):
        plain_tuple = isinstance(fields, tuple) and _is_generated(kind.__new__) and kind.__init__ is object.__init__
        return fields if plain_tuple else None
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "__post_init__") or "__new__" in vars(kind):
        return None
    known = dataclasses.fields(kind)
    taken = tuple(inspect.signature(value.python_type()).parameters)
    plain_fields = all(f.init and not f.kw_only for f in known) and taken == tuple(f.name for f in known)
    return taken if plain_fields and _is_generated(vars(kind).get("__init__")) else None


def _is_generated(function: Any) -> bool:
    """Has Python written this ``__init__`` or ``__new__``, so that it does nothing but to keep what it is given?"""
    return isinstance(function, types.FunctionType) and function.__code__.co_filename == "<string>"


def _is_constant(value: Any) -> bool:
    """Is this a constant that nobody can change, so that all documents may share it?"""
    if nothing.is_done(value) or nothing.are_done(value) or nothing.is_wait(value):
        return True
    known = isinstance(value, VariableTracker) and value.is_python_constant()
    return known and _is_frozen(value.as_python_constant())


def _said(value: Any) -> str:
    if nothing.are_done(value):
        return f"{len(value.items)}"
    if nothing.is_done(value) or nothing.is_wait(value):
        return type(value).__name__
    return repr(value.as_python_constant())


def _is_frozen(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_frozen, value))
    return isinstance(value, (str, bytes, bool, int, float, complex, torch.dtype, torch.device, type(None)))


def rows_of(items: CollectedItems, values: list[Any]) -> Rows | None:
    """The rows that a list consists of, by the one of each traced iteration; None if they are not alike."""
    made = [parts_of(items.region.tx, value) for value in values]
    if None in made or len({(kind, names, len(parts)) for kind, names, parts in made}) > 1:  # type: ignore[misc]
        return None
    kind, names, _ = made[0]  # type: ignore[misc]
    columns = columns_of(items, list(zip(*(parts for _, _, parts in made), strict=True)))  # type: ignore[misc]
    source = getattr(getattr(values[0], "mutation_type", None), "cls_source", None)
    return None if columns is None else Rows(kind, names, columns, source)


def columns_of(items: CollectedItems, columns: list[tuple[Any, ...]], shared: bool = False) -> list[Any] | None:
    """What all documents have at each place of a row, by the values of the traced iterations: a list, or a constant;
    ``shared``: or one object of the program. None if they are not alike."""
    found: list[Any] = []
    for column in columns:
        if all(map(_is_constant, column)):
            if len({_said(value) for value in column}) > 1:
                return None
            found.append(column[0])
        elif shared and _is_one(column):
            found.append(column[0])
        else:
            own = type(items)(items.region)
            own.values = [[value] for value in column]
            own.close()
            found.append(own)
    return found


def _is_one(column: tuple[Any, ...]) -> bool:
    """Is this one object that was there before the loop, a function or a group, say?"""
    if all(value is column[0] for value in column):
        return not isinstance(column[0], SymNodeVariable)
    own = [vars(value) for value in column]  # a method is one of an object of its own
    objects = [None if "obj" in held else held.get("fn", held.get("value")) for held in own]
    return objects[0] is not None and all(one is objects[0] for one in objects)
