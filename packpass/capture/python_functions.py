"""Python's own functions where they meet a sequence over documents: range, zip, map, enumerate, list and so on."""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from packpass import markers
from packpass._compat import free_unbacked_symbols, hint_of, values_of
from packpass.capture import (
    given_numbers,
    joins,
    layers,
    lone,
    number_lists,
    one_by_one,
    plain,
    plain_messages,
    plain_numbers,
    ranges,
    unbound,
    watch,
)
from packpass.capture.dynamo import (
    ListVariable,
    LocalGeneratorObjectVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    attribute,
    call,
    callee,
    constant,
    example,
    expression,
    variable,
)
from packpass.capture.frame import LOOP_MODES, Mode
from packpass.capture.lists import CollectedItems, is_collected, is_documents, items_of
from packpass.capture.sequences import (
    can_be_picked,
    collect,
    documents_of,
    is_once,
    iterate,
    length_of,
    number_of,
    refuse_use,
    take,
)
from packpass.capture.state import active, current_frame, is_noted, leave_to_stock, location_of, note, refuse, resumes
from packpass.decisions.location import is_library

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase as Translator


def _range(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or not 1 <= len(args) <= 3:
        return None
    args = [_asked(tx, arg) for arg in args]
    own = ranges.of_document(tx, args)
    backwards = len(args) == 3 and number_of(args[2]) == -1
    if own is None and (len(args) < 3 or backwards):
        ranges.refuse_tokens(tx, args[:2])
    if own is not None:
        return own
    if len(args) == 3 and number_of(args[2]) != 1:
        return _steps(tx, *args)
    start, stop = (constant(0), args[0]) if len(args) == 1 else args[:2]
    if layers.is_one(tx):
        return None
    if not all(isinstance(a, SymNodeVariable) or a.is_python_constant() for a in (start, stop)):
        return None
    layers.watch_count(tx, start, stop)
    if all(a.is_python_constant() for a in (start, stop)):
        n = stop.as_python_constant()
        if isinstance(n, int) and n >= 1:
            given_numbers.note_range(tx, n)
            watch.enter_loop_mode(tx, watch.static_sizes(n))
        return call(tx, plain.of_count, stop) if number_of(start) == 0 and lone.is_lone_range(tx, n) else None
    # Only the difference counts: range(1, n) runs as often as range(n - 1).
    if not watch.loop_mode_for_symint(tx, expression(stop) - expression(start)):
        if not active.regions and any(isinstance(a, SymNodeVariable) and watch.is_unknown(a.sym_num) for a in args):
            note("lengths-unknown", watch.READ.format("range() of a number that is data"), location_of(tx))
        return None
    data = current_frame().counts and free_unbacked_symbols(expression(stop))
    if watch.is_largest_number(tx, expression(stop)) or data or ranges.may_be_less(stop, start):
        # It may be less than nothing, which is as many as nothing.
        stop = call(tx, torch.sym_max, stop, start)
    return call(tx, plain.of_count, stop) if number_of(start) == 0 else call(tx, plain.of_range, start, stop)


def _asked(tx: Translator, value: Any) -> Any:
    """``range(ids.max() + 1)``: the number that a tensor of one integer holds, in front of a loop over documents."""
    value = value.realize()
    if active.regions or not isinstance(value, TensorVariable) or not watch.is_scalar(value):
        return value
    watch.watch_item(tx, value)
    if current_frame().mode is not Mode.SYMBOLIC:
        return value
    return given_numbers.item(tx, value) or value.call_method(tx, "item", [], {})


def _steps(tx: Translator, start: Any, stop: Any, step: Any) -> Any:
    """``range(start, stop, step)``, of documents in another order or some of them; None if it is what it seems."""
    by = number_of(step)
    ends = (start, stop) if by is None or by > 0 else (stop, start)
    if not by or not _counts_documents(tx, *ends, backwards=by < 0):
        current_frame().stepped.add(location_of(tx))
        return None
    span = call(tx, operator.sub, ends[1], ends[0])
    _may_be_tokens()
    if abs(by) > 1:  # rounded up
        span = call(tx, operator.floordiv, call(tx, operator.add, span, constant(abs(by) - 1)), constant(abs(by)))
    return call(tx, plain.of_steps, span, start, step)


def _counts_documents(tx: Translator, first: Any, last: Any, backwards: bool) -> bool:
    """Are there as many numbers between two as documents, in steps perhaps? Enters symbolic mode if that is new."""
    if all(a.is_python_constant() for a in (first, last)):
        n = number_of(last)
        if n is not None and n >= 1:
            watch.enter_loop_mode(tx, watch.static_sizes(n + backwards))
        return False
    known = all(isinstance(a, SymNodeVariable) or a.is_python_constant() for a in (first, last))
    return known and watch.loop_mode_for_symint(tx, expression(last) - expression(first))


def _may_be_tokens() -> None:
    """Steps of a recurrence, or chunks of tokens, look the same until the body is seen; stock torch unrolls them."""
    frame = current_frame()
    frame.not_replayable = frame.not_replayable or "a loop over range() in steps, or from the last on"


def _reversed(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = documents_of(tx, args[0]) if len(args) == 1 and not kwargs else None
    if found is None or is_once(found):
        return None
    counted = attribute(tx, found, "kind").as_python_constant() is range
    if counted:
        _may_be_tokens()
    return call(tx, plain.backwards, found) if counted or can_be_picked(tx, found) else None


def _settled(one: Any, other: Any, difference: Any) -> Any:
    """The difference of two lengths; for halves of one number, which of them is longer is asked."""
    sizes = [value.sym_num for value in (one, other) if isinstance(value, SymNodeVariable)]
    halves = any(type(part).__name__ == "FloorDiv" for part in difference.atoms(sympy.Function))
    if not halves or len(sizes) < 2 or any(free_unbacked_symbols(size) for size in sizes):
        return difference
    one_hint, other_hint = (hint_of(size) for size in sizes)
    if one_hint is None or other_hint is None:
        return difference
    apart = one_hint - other_hint
    return sympy.Integer(apart) if sizes[0] - sizes[1] == apart else difference


def _shortest(tx: Translator, items: list[Any], what: str, strict: bool) -> Any:
    """The length of a zip: that of the shortest, if the lengths differ by constants."""
    shortest = length_of(tx, items[0])
    for item in items[1:]:
        length = length_of(tx, item)
        watch.settle(length, shortest)
        difference = _settled(length, shortest, sympy.sympify(expression(length) - expression(shortest)))
        apart = None if strict or difference.is_Integer else values_of(tx.output.shape_env, difference)
        if apart and (min(apart) >= 0 or max(apart) <= 0):
            # Where they differ, it is always the same that is longer.
            difference = sympy.Integer(max(apart) or min(apart))
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
        found = [_single(tx, a, known[0]) if f is None else f for f, a in zip(found, args, strict=True)]
        known = [f for f in found if f is not None]
    if len(known) != len(found):
        for value, of_documents in zip(args, found, strict=True):
            if of_documents is None:
                unbound.watch(tx, value)
                number_lists.watch(tx, value)
        reason = "zip of a sequence with one entry per document and one of constant length"
        if resumes(tx) and is_noted(location_of(tx)):
            raise leave_to_stock(reason)
        if resumes(tx):
            reason += ", perhaps a list of numbers made before a graph break: that break is what to look at"
        raise refuse("unequal-lengths", reason, location_of(tx))
    strict = "strict" in kwargs and bool(kwargs["strict"].as_python_constant())
    length = _shortest(tx, known, "zip", strict)
    calls = any(_calls(tx, item) for item in known)
    for item in known:
        take(tx, item)
    return call(tx, plain.of_zip, length, constant(calls), *known)


def _single(tx: Translator, value: Any, documents: Any) -> Any:
    """A tensor with one entry, which torch takes for a constant, beside one document; None if it is another."""
    fake = example(value) if isinstance(value, TensorVariable) else None
    entries = fake.shape[0] if isinstance(fake, torch.Tensor) and fake.dim() else None
    length = length_of(tx, documents)
    documents = hint_of(length.sym_num) if isinstance(length, SymNodeVariable) else number_of(length)
    one = type(entries) is int and entries == 1 and documents == 1
    return call(tx, plain.of_tensor, value) if one else None


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
    if number_of(start) == 0:
        return call(tx, plain.of_enumerate, found)
    return call(tx, plain.of_enumerate_from, found, start)


def _pairwise(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = documents_of(tx, args[0]) if len(args) == 1 else None
    if found is None:
        return None
    take(tx, found)
    return call(tx, plain.of_pairwise, found)


def _starmap(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = documents_of(tx, args[1]) if len(args) == 2 and not kwargs else None
    if found is None:
        return None
    take(tx, found)
    return call(tx, plain.of_starmap, args[0], found)


def _list(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        return None
    if is_collected(args[0]):
        return copy_of(args[0])
    if not is_documents(args[0]):
        return None
    active.trace.lent.add(args[0])
    active.trace.listed.add(args[0])
    # A copy of a sequence that is never changed is the sequence, unless making it calls code of the user.
    if _calls(tx, args[0]):
        return collect(tx, args[0])
    return call(tx, plain.listed, args[0], variable(tx, list)) if is_once(args[0]) else args[0]


def _accumulate(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    found = documents_of(tx, args[0]) if len(args) == 1 and not set(kwargs) - {"initial"} else None
    initial = kwargs.get("initial", constant(None))
    known = found is not None and is_documents(found) and initial.is_python_constant()
    if not known or initial.as_python_constant() not in (None, 0) or not _has_origin(tx, found):
        return None
    take(tx, found)
    return call(tx, plain_numbers.of_accumulate, found, initial)


def _has_origin(tx: Translator, documents: Any) -> bool:
    return isinstance(attribute(tx, documents, "origin"), TensorVariable)


def listed(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``list(entries)``; None if it is what it seems."""
    if len(args) == 1 and isinstance(args[0], LocalGeneratorObjectVariable) and current_frame().mode in LOOP_MODES:
        return call(tx, plain.collected, args[0])
    return _list(tx, args, kwargs)


def copy_of(value: Any, kind: type[ListVariable] = ListVariable) -> Any:
    """A list of its own with the entries that a loop over documents has made, which are only looked at together."""
    made = kind([], mutation_type=ValueMutationNew())
    made.items = value.items.copied()
    return made


class CollectedTuple(ListVariable):
    """A tuple of what a loop over documents has put into a list."""

    def python_type(self) -> type:
        return tuple


def unpacked(tx: Translator, function: Any, entries: Any, keywords: Any = None) -> tuple[Any, Any] | None:
    """``torch.block_diag(*squares)`` and ``zip(*rows)`` of what a loop over documents has put into a list: what is
    called in their place, and with what; None if it is something else."""
    called = callee(function)
    if called is torch.block_diag and keywords is None and (diagonal := joins.block_diagonal(entries)) is not None:
        return variable(tx, markers.LIST_DIAGONAL), diagonal
    items = items_of(entries.realize()) if called is builtins.zip else None
    if items is None or items.rows is None or not items.region.closed:
        return None
    filled = all(isinstance(column, CollectedItems) for column in items.rows.columns)
    if not filled or not issubclass(items.rows.kind, (tuple, list)):
        raise items.refusal()  # a constant in the place of a list; or a dict, of which Python gives the keys
    lists: list[Any] = [CollectedTuple([], mutation_type=ValueMutationNew()) for _ in items.rows.columns]
    for column, own in zip(items.rows.columns, lists, strict=True):
        own.items = column.copied()
    return variable(tx, plain.columns), TupleVariable(lists)


def _tuple(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    out = listed(tx, args, kwargs)
    if out is not None and is_documents(out) and not is_once(out):
        return call(tx, plain.listed, out, variable(tx, tuple))
    if is_collected(out):
        return copy_of(out, CollectedTuple)
    return call(tx, tuple, out) if type(out) is ListVariable else out


def _iter(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or is_documents(args[0]):
        return None  # our own __iter__
    found = documents_of(tx, args[0])
    return None if found is None else iterate(tx, found)


def _isinstance(tx: Translator, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or not is_documents(args[0]) or is_ours(tx):
        return None
    wanted = args[1]
    if wanted.is_python_constant() and wanted.as_python_constant() in (*plain_messages.OURS, plain.Once):
        return None  # while one is being made
    kind = attribute(tx, args[0], "kind")
    if not kind.is_python_constant() or not wanted.is_python_constant():
        raise refuse_use(tx, "isinstance")
    return constant(issubclass(kind.as_python_constant(), wanted.as_python_constant()))


def _bool(tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``bool(lengths)``: are there documents?"""
    value = args[0].realize() if len(args) == 1 and not kwargs else None
    known = value is not None and is_documents(value) and not is_once(value)
    return call(tx, operator.ne, length_of(tx, value), constant(0)) if known else None


def is_ours(tx: Any) -> bool:
    """Is this our own plain code, or torch's, and not the user's?"""
    return is_library(tx.f_code.co_filename)


FUNCTIONS: dict[Any, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    builtins.range: _range,
    builtins.zip: _zip,
    builtins.map: _map,
    builtins.enumerate: _enumerate,
    itertools.pairwise: _pairwise,
    itertools.starmap: _starmap,
    itertools.accumulate: _accumulate,
    builtins.reversed: _reversed,
    builtins.list: listed,
    builtins.tuple: _tuple,
    builtins.iter: _iter,
    builtins.next: one_by_one.following,
    builtins.isinstance: _isinstance,
    builtins.bool: _bool,
}
"""Function of Python -> ``replacement(tx, args, kwargs)``, None if the call is what it seems."""

_UNDERSTOOD = frozenset({len, slice, type(None), getattr, hasattr, *FUNCTIONS})


def refuse_unknown(tx: Any, function: Any, args: list[Any]) -> None:
    """A function of Python that is given a sequence over documents, and would look at all of its entries."""
    known = function is None or function in _UNDERSTOOD or is_ours(tx)
    if not known and getattr(function, "__module__", None) in ("builtins", "itertools", "functools", "math"):
        if any(is_documents(arg) for arg in args):
            raise refuse_use(tx, f"{getattr(function, '__name__', function)}()")
