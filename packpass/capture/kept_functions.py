"""Functions that a loop over documents puts into a list, for a later loop to call: ``waits.append(wait)``.

A function that the program makes for a document is its code, which is the same for all, and the values that it keeps:
variables of the call that has made it, defaults, the arguments of a ``functools.partial``. The list is one of rows of
these values (`packpass.capture.rows`), and a function is made of a row again wherever an entry is asked for.

Variables that several documents' functions share (those of the loop's own function) stay what they are: what they hold
is read when the function is called, as in Python.

Does not handle: functions that assign to a variable that they keep, keyword-only defaults, attributes of functions,
functions that keep each other.
"""

from __future__ import annotations

import copy
import dataclasses
import dis
import functools
import types
from typing import TYPE_CHECKING, Any

from packpass.capture import plain
from packpass.capture.dynamo import (
    AttributeMutationNew,
    CellVariable,
    FunctoolsPartialVariable,
    ListVariable,
    TupleVariable,
    ValueMutationNew,
    call,
    constant,
    variable,
)
from packpass.capture.rows import Rows, columns_of, is_function

if TYPE_CHECKING:
    from packpass.capture.lists import CollectedItems

MOST = 4
"""Functions that keep functions that keep functions."""


@dataclasses.dataclass(frozen=True)
class Functions(Rows):
    """Rows of what functions keep.

    Attributes:
        template: one of them.
        own: which of the values that it keeps the columns are; it shares the others with all.
    """

    template: Any = None
    own: tuple[int, ...] = ()

    def again(self, tx: Any, over: Any, length: Any) -> Any:
        columns = ListVariable(self.entries(tx, over, length), mutation_type=ValueMutationNew())
        return call(tx, plain.of_functions, length, self.template, constant(self.own), columns)


def functions_of(items: CollectedItems, made: list[Any]) -> Rows | None:
    """The list as one of rows, by the function of each traced iteration; None if they are not alike."""
    if not all(map(is_function, made)) or not all(_is_plain(items.region.tx, value, MOST) for value in made):
        return None
    if len({_likeness(value) for value in made}) > 1:
        return None
    places = [_places(value) for value in made]
    own = [k for k, values in enumerate(zip(*places, strict=True)) if not _is_shared(values)]
    held = [tuple(_held(items.region.tx, values[k]) for values in places) for k in own]
    columns = columns_of(items, held, shared=True)
    return None if columns is None else Functions(types.FunctionType, None, columns, None, made[0], tuple(own))


def _likeness(function: Any) -> Any:
    """What functions that do the same with what they keep have in common."""
    if isinstance(function, FunctoolsPartialVariable):
        return len(function.args), tuple(function.keywords)
    return function.get_code(), id(function.f_globals), len(_cells(function)), len(_defaults(function))


def _is_plain(tx: Any, function: Any, most: int) -> bool:
    """Does a function do nothing with what it keeps but read it, and nothing else with it?"""
    if isinstance(function, FunctoolsPartialVariable):
        inner = list(map(_realized, _places(function)))
    else:
        keywords = function.kwdefaults
        only = keywords is None or (keywords.is_python_constant() and not keywords.as_python_constant())
        written = tx.output.side_effects.store_attr_mutations.get(function) or ()
        if not only or function.wrapped_fn is not None or set(written) - {"__annotations__"}:
            return False
        if _assigns(function.get_code()) or not all(_is_filled(tx, cell) for cell in _cells(function)):
            return False
        inner = [_held(tx, place) for place in _places(function)]
    return most > 0 and all(_is_plain(tx, value, most - 1) for value in inner if is_function(value))


def _assigns(code: types.CodeType) -> bool:
    """Does a function, or one that it makes, assign to a variable of the call that has made it?"""
    free = set(code.co_freevars)
    writes = [op for op in dis.get_instructions(code) if op.opname in ("STORE_DEREF", "DELETE_DEREF")]
    inner = [made for made in code.co_consts if isinstance(made, types.CodeType)]
    return any(op.argval in free for op in writes) or any(map(_assigns, inner))


def _is_filled(tx: Any, cell: Any) -> bool:
    known = isinstance(cell, CellVariable) and cell.pre_existing_contents is not None
    return known or "cell_contents" in (tx.output.side_effects.store_attr_mutations.get(cell) or ())


def _cells(function: Any) -> list[Any]:
    return list(getattr(function.closure, "items", ()))


def _defaults(function: Any) -> list[Any]:
    return list(getattr(function.defaults, "items", ()))


def _places(function: Any) -> list[Any]:
    """The values that a function keeps, and the variables that hold such."""
    if isinstance(function, FunctoolsPartialVariable):
        return [function.func, *function.args, *function.keywords.values()]
    return [*_cells(function), *_defaults(function)]


def _held(tx: Any, place: Any) -> Any:
    return _realized(tx.output.side_effects.load_cell(place) if isinstance(place, CellVariable) else place)


def _realized(value: Any) -> Any:
    return value.realize()


def _is_shared(places: tuple[Any, ...]) -> bool:
    """Is this a variable that all these functions have in common?"""
    return isinstance(places[0], CellVariable) and all(place is places[0] for place in places)


# === Entries =================================================================================================


def made_again(tx: Any, template: Any, own: Any, values: Any) -> Any:
    """`plain.function`."""
    function, places = template.realize(), _places(template.realize())
    for k, value in zip(own.as_python_constant(), values.realize().items, strict=True):
        places[k] = _variable_of(value) if isinstance(places[k], CellVariable) else value
    if isinstance(function, FunctoolsPartialVariable):
        count = 1 + len(function.args)
        keywords = dict(zip(function.keywords, places[count:], strict=True))
        return variable(tx, functools.partial).call_function(tx, places[:count], keywords)
    made, cells = copy.copy(function), len(_cells(function))
    made.closure = TupleVariable(places[:cells]) if cells else function.closure
    made.defaults = TupleVariable(places[cells:]) if places[cells:] else function.defaults
    return made


def _variable_of(value: Any) -> Any:
    """A variable that holds a value, and that nobody may assign to."""
    mutation = AttributeMutationNew()
    mutation.scope = -1
    return CellVariable(value, mutation_type=mutation)


QUESTIONS: dict[Any, Any] = {plain.function: made_again}
"""Function of `plain` -> ``answer(tx, *arguments)``."""
