"""Going over documents: what the call hook answers where Python's own functions meet a sequence over documents.

The sequences themselves are plain Python (`packpass.capture.plain`). This is the side of the tracer: which calls make
one, when a loop over one begins and ends, and which uses refuse the loop.
"""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy

from packpass.capture import plain, ranges, watch
from packpass.capture.dynamo import (
    ListVariable,
    LocalGeneratorObjectVariable,
    NumpyNdarrayVariable,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    attribute,
    call,
    constant,
    variable,
)
from packpass.capture.lists import CollectedItems, is_collected, is_documents, items_of, looped_over_again
from packpass.capture.matrices import goes_over_rows, is_column, is_single, rows_of
from packpass.capture.region import ITERATIONS, Region
from packpass.capture.state import (
    LOOP_MODES,
    Mode,
    active,
    current_frame,
    is_run_by_a_loop,
    location_of,
    refuse,
    resumes,
)
from packpass.decisions.location import is_library

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase as Translator
    from packpass.capture.dynamo import VariableTracker as Value


# === What is a sequence over documents =======================================================================


def documents_of(tx: Translator, value: Any) -> Any:
    """``value`` as a sequence over documents, or None: one of ours, a list that a loop over documents has filled, a 1-D
    integer tensor, a matrix with one row of sizes for each, or a batch of padded rows."""
    if is_documents(value):
        return value
    items = items_of(value)
    if items is not None:
        return looped_over_again(tx, items)
    if isinstance(value, NumpyNdarrayVariable):
        if watch.is_vector(value) and watch.made_from(value.as_proxy().node) is not None:
            raise refuse_use(tx, "going over a numpy array of boundaries, instead of their tolist(),")
        return None
    if isinstance(value, TensorVariable) and watch.is_matrix(value):
        return rows_of(tx, value)
    if current_frame().mode is Mode.STOCK or not isinstance(value, TensorVariable):
        return None
    if watch.is_vector(value) or watch.is_batch(value):
        if is_single(tx, value) or (is_column(value) and goes_over_rows(tx, value)):
            return call(tx, plain.of_tensor, value)
        size = value.as_proxy().node.meta["example_value"].shape[0]
        known = isinstance(size, int) or size.node.expr.is_number
        if known and (watch.is_vector(value) or watch.batches(tx, {int(size)})):
            watch.enter_loop_mode(tx, watch.static_sizes(int(size)), padded=watch.is_batch(value))
        elif not known and watch.loop_mode_for_symint(tx, size.node.expr):
            return call(tx, plain.of_tensor, value)
    return None


def _is_once(value: Any) -> bool:
    return issubclass(value.python_type(), plain.Once)


def expression(value: Any) -> Any:
    """The sympy expression (or int) behind an integer of the traced program."""
    return value.sym_num.node.expr if isinstance(value, SymNodeVariable) else value.as_python_constant()


def _length(tx: Translator, documents: Any) -> Any:
    return attribute(tx, documents, "length")


def _number(value: Any) -> int | None:
    known = value.as_python_constant() if value.is_python_constant() else None
    return known if type(known) is int else None


# === Questions of plain code =================================================================================


def _advance(tx: Translator, iterator: Value) -> Value:
    """`plain.advance`, called by ``__next__``, which the loop's FOR_ITER has called."""
    user: Any = tx.parent
    location = location_of(tx)
    driven = user is not None and user.current_instruction.opname == "FOR_ITER"
    if not driven or user.stack[-1].realize() is not iterator or not is_run_by_a_loop(user):
        raise refuse("iterator-use", "the sequence of documents is advanced outside a plain for loop", location)
    region = active.trace.regions.get(iterator)
    if region is None:
        if active.regions:
            raise refuse("nested-loops", "a loop over documents inside a loop over documents", location)
        region = Region(user, iterator, _length(tx, attribute(tx, iterator, "documents")), location)
        active.trace.regions[iterator] = region
        active.regions.append(region)
    else:
        if not active.regions or active.regions[-1] is not region or user is not region.tx:
            raise refuse("early-exit", "an inner loop was left by break or return", location)
        region.end_iteration()
        if region.iteration == ITERATIONS:
            active.regions.pop()
            region.close()
            return constant(None)
    region.begin_iteration()
    return region.index


def _in_range(key: Any, length: Value) -> bool:
    """Is ``0 <= key < length`` in every iteration of the open loop, where its index is below the loop's length?"""
    if not active.regions:
        return False
    region = active.regions[-1]
    ahead = key - expression(region.index)
    watch.settle(length, region.length)
    spare = expression(length) - expression(region.length) - ahead
    return all(getattr(n, "is_number", True) and bool(n >= 0) for n in (ahead, spare))


def refuse_use(tx: Translator, what: str) -> Exception:
    reason = f"{what} needs the number of documents to be a constant"
    return refuse("sequence-use", reason, location_of(tx))


def _position(tx: Translator, documents: Value, key: Value) -> Value:
    """`plain.position`."""
    key = key.realize()
    length = _length(tx, documents)
    number = _number(key)
    if number is not None:
        # In range for at least one document; beyond that eager's IndexError would become a wrong read.
        if number == 0:
            return key
        if number == -1:
            return call(tx, operator.sub, length, constant(1))
        raise refuse_use(tx, f"entry [{number}] of a sequence with one entry per document")
    if isinstance(key, SymNodeVariable):
        # A negative number counts from the end, one too large raises: neither is what the entry of it would be.
        if _in_range(expression(key), length):
            return key
        raise refuse_use(tx, f"entry [{key.sym_num}] of a sequence with one entry per document")
    raise refuse_use(tx, "this subscript")


def _bounds(tx: Translator, documents: Value, key: Value) -> Value:
    """`plain.bounds`."""
    key = key.realize()
    assert isinstance(key, SliceVariable)
    start, stop, step = (None if v.is_python_constant() and v.as_python_constant() is None else v for v in key.items)
    if step is not None and _number(step) != 1:
        raise refuse_use(tx, "a slice with a step")
    first, last = (0 if end is None else _number(end) for end in (start, stop))
    if (first, last) not in ((0, 0), (1, 0), (0, -1)):
        raise refuse_use(tx, "a slice other than [1:] or [:-1]")
    return TupleVariable([constant(first), constant(-1 * last if last else 0)], mutation_type=ValueMutationNew())


def take(tx: Translator, documents: Any) -> Value:
    """`plain.take`; and where another iterator uses this one up."""
    if _is_once(documents):
        if documents in active.trace.spent:
            raise refuse("iterator-use", "an iterator over documents is used a second time", location_of(tx))
        active.trace.spent.add(documents)
    return constant(None)


def _refuse_use(tx: Translator, what: Value) -> Value:
    raise refuse_use(tx, str(what.as_python_constant()))


QUESTIONS: dict[Any, Callable[..., Any]] = {
    # What is no mutable list to Dynamo, it does not trace changes of.
    plain.row: lambda tx, numbers: ListVariable(list(numbers.realize().items)),
    plain.advance: _advance,
    plain.position: _position,
    plain.bounds: _bounds,
    plain.take: take,
    plain.refuse_use: _refuse_use,
}
"""Function of `plain` -> ``answer(tx, *arguments)``."""


# === Python's functions ======================================================================================


def _range(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or not 1 <= len(args) <= 3:
        return None
    own = ranges.of_document(tx, args)
    if own is not None or (len(args) == 3 and _number(args[2]) != 1):
        return own
    start, stop = (constant(0), args[0]) if len(args) == 1 else args[:2]
    if all(a.is_python_constant() for a in (start, stop)):
        n = stop.as_python_constant()
        if isinstance(n, int) and n >= 1:
            watch.enter_loop_mode(tx, watch.static_sizes(n))
        return None
    if not all(isinstance(a, SymNodeVariable) or a.is_python_constant() for a in (start, stop)):
        return None
    # Only the difference counts: range(1, n) runs as often as range(n - 1).
    if not watch.loop_mode_for_symint(tx, expression(stop) - expression(start)):
        return None
    return call(tx, plain.of_count, stop) if _number(start) == 0 else call(tx, plain.of_range, start, stop)


def _shortest(tx: Translator, items: list[Any], what: str, strict: bool) -> Any:
    """The length of a zip: that of the shortest, if the lengths differ by constants."""
    shortest = _length(tx, items[0])
    for item in items[1:]:
        length = _length(tx, item)
        watch.settle(length, shortest)
        difference = sympy.sympify(expression(length) - expression(shortest))
        if not difference.is_Integer or (strict and difference != 0):
            lengths = f"{expression(shortest)} and {expression(length)}"
            reason = f"{what} of sequences whose lengths are not provably equal ({lengths})"
            raise refuse("unequal-lengths", reason, location_of(tx))
        shortest = length if difference < 0 else shortest
    return shortest


def _zip(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if set(kwargs) - {"strict"}:
        return None
    found = [documents_of(tx, a) for a in args]
    known = [f for f in found if f is not None]
    if not known:
        return None
    if len(known) != len(found):
        reason = "zip of a sequence with one entry per document and one of constant length"
        if resumes(tx):
            reason += ", perhaps a list of numbers made before a graph break: that break is what to look at"
        raise refuse("unequal-lengths", reason, location_of(tx))
    strict = "strict" in kwargs and bool(kwargs["strict"].as_python_constant())
    length = _shortest(tx, known, "zip", strict)
    calls = any(_calls(tx, item) for item in known)
    for item in known:
        take(tx, item)
    return call(tx, plain.of_zip, length, constant(calls), *known)


def _calls(tx: Translator, documents: Any) -> bool:
    """Does making an entry call code of the user?"""
    return bool(attribute(tx, documents, "calls").as_python_constant())


def _map(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = [documents_of(tx, a) for a in args[1:]]
    if kwargs or not found or any(f is None for f in found):
        return None
    length = _shortest(tx, found, "map", strict=False)
    for item in found:
        take(tx, item)
    return call(tx, plain.of_map, length, args[0], *found)


def _enumerate(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = documents_of(tx, args[0]) if args else None
    if found is None:
        return None
    take(tx, found)
    start = args[1] if len(args) > 1 else kwargs.get("start", constant(0))
    if _number(start) == 0:
        return call(tx, plain.of_enumerate, found)
    return call(tx, plain.of_enumerate_from, found, start)


def _pairwise(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = documents_of(tx, args[0]) if len(args) == 1 else None
    if found is None:
        return None
    take(tx, found)
    return call(tx, plain.of_pairwise, found)


def _list(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return None
    if is_collected(args[0]):
        return args[0]
    if not is_documents(args[0]):
        return None
    # A copy of a sequence that is never changed is the sequence, unless making it calls code of the user.
    if _calls(tx, args[0]):
        return collect(tx, args[0])
    return call(tx, plain.listed, args[0], variable(tx, list)) if _is_once(args[0]) else args[0]


def _list_or_generator(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and isinstance(args[0], LocalGeneratorObjectVariable) and current_frame().mode in LOOP_MODES:
        return call(tx, plain.collected, args[0])
    return _list(tx, args, kwargs)


def _tuple(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    out = _list_or_generator(tx, args, kwargs)
    # The entries of a list over documents are only looked at together.
    return call(tx, tuple, out) if type(out) is ListVariable and not is_collected(out) else out


def _iter(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or is_documents(args[0]):
        return None  # our own __iter__
    found = documents_of(tx, args[0])
    return None if found is None else iterate(tx, found)


def iterate(tx: Translator, documents: Any) -> Any:
    """``iter(documents)``, where it was something else for Dynamo."""
    take(tx, documents)
    return call(tx, plain.entries, documents)


def _isinstance(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not is_documents(args[0]) or is_ours(tx):
        return None
    wanted = args[1]
    if wanted.is_python_constant() and wanted.as_python_constant() in (*plain.OURS, plain.Once):
        return None  # while one is being made
    kind = attribute(tx, args[0], "kind")
    if not kind.is_python_constant() or not wanted.is_python_constant():
        raise refuse_use(tx, "isinstance")
    return constant(issubclass(kind.as_python_constant(), wanted.as_python_constant()))


def is_ours(tx: Any) -> bool:
    """Is this our own plain code, or torch's, and not the user's?"""
    return is_library(tx.f_code.co_filename)


FUNCTIONS: dict[Any, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    builtins.range: _range,
    builtins.zip: _zip,
    builtins.map: _map,
    builtins.enumerate: _enumerate,
    itertools.pairwise: _pairwise,
    builtins.list: _list_or_generator,
    builtins.tuple: _tuple,
    builtins.iter: _iter,
    builtins.isinstance: _isinstance,
}
"""Function of Python -> ``replacement(tx, args, kwargs)``, None if the call is what it seems."""

_UNDERSTOOD = frozenset({len, slice, type(None), getattr, hasattr, *FUNCTIONS})


def refuse_unknown(tx: Any, function: Any, args: list[Any]) -> None:
    """A function of Python that is given a sequence over documents, and would look at all of its entries."""
    known = function is None or function in _UNDERSTOOD or is_ours(tx)
    if not known and getattr(function, "__module__", None) in ("builtins", "itertools", "functools", "math"):
        if any(is_documents(arg) for arg in args):
            raise refuse_use(tx, f"{getattr(function, '__name__', function)}()")


def collect(tx: Translator, documents: Any) -> Any:
    """``list(documents)`` where entries call code of the user: trace two of them, as a loop that appends would."""
    location = location_of(tx)
    if active.regions:
        raise refuse("nested-loops", "a loop over documents inside a loop over documents", location)
    take(tx, documents)
    region = Region(tx, documents, _length(tx, documents), location)
    active.regions.append(region)
    items = CollectedItems(region)
    region.lists.append(items)
    for _ in range(ITERATIONS):
        region.begin_iteration()
        items.append(call(tx, attribute(tx, documents, "get"), region.index))
        region.end_iteration()
    active.regions.pop()
    region.close()
    out = ListVariable([], mutation_type=ValueMutationNew())
    out.items = items
    return out
