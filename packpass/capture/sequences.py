"""Going over documents: what is a sequence over documents, when a loop over one begins and ends, which uses refuse it.

The sequences themselves are plain Python (`packpass.capture.plain`). This is the side of the tracer; Python's own
functions, which make one from another, are in `packpass.capture.python_functions`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from packpass.capture import (
    arrays,
    edges,
    given_numbers,
    layers,
    lone,
    nothing,
    number_lists,
    part_ends,
    plain,
    plain_nested,
    plain_parts,
    sized,
    stops,
    watch,
)
from packpass.capture.columns import columns_of
from packpass.capture.dynamo import (
    ConstDictVariable,
    ListVariable,
    NumpyNdarrayVariable,
    SliceVariable,
    SymNodeVariable,
    TensorVariable,
    TupleVariable,
    ValueMutationNew,
    attribute,
    call,
    constant,
    current_scope_id,
    expression,
    size_of,
    variable,
)
from packpass.capture.frame import Mode
from packpass.capture.in_range import in_range, is_below
from packpass.capture.lists import CollectedItems, is_documents, items_of
from packpass.capture.made_vectors import enter_for_several, is_as_data_says
from packpass.capture.matrices import goes_over_rows, is_column, is_single, numbers_of_rows, rows_of
from packpass.capture.region import MOST_LAYERS, Region
from packpass.capture.state import active, current_frame, is_run_by_a_loop, location_of, refuse

if TYPE_CHECKING:
    from packpass.capture.dynamo import InstructionTranslatorBase as Translator
    from packpass.capture.dynamo import VariableTracker as Value


# === What is a sequence over documents =======================================================================


def documents_of(tx: Translator, value: Any) -> Any:
    """``value`` as a sequence over documents, or None: one of ours, a list that a loop has filled, a 1-D integer
    tensor, a matrix with one row of sizes for each, or a batch of padded rows."""
    if is_documents(value):
        active.trace.lent.add(value)
        return value
    items = items_of(value)
    if items is not None:
        return looped_over_again(tx, items)
    if isinstance(value, NumpyNdarrayVariable):
        return arrays.entries_of(tx, value, documents_of)
    if isinstance(value, TensorVariable) and (watch.is_matrix(value) or watch.is_batch(value)) and layers.is_one(tx):
        return None
    if isinstance(value, TensorVariable) and watch.is_matrix(value):
        columns = columns_over_documents(tx, value)
        return rows_of(tx, value) if columns is None else _of_columns(tx, columns, plain.of_vectors)
    if current_frame().mode is Mode.STOCK or not isinstance(value, TensorVariable):
        return None
    if watch.is_jagged(value):
        offsets = value.call_method(tx, "offsets", [], {})
        return None if documents_of(tx, offsets) is None else call(tx, plain_nested.of_jagged, value)
    if watch.is_vector(value):
        layers.watch_vector(tx, value)
    if watch.is_vector(value) or watch.is_batch(value):
        if is_single(tx, value) or (is_column(value) and goes_over_rows(tx, value)):
            return call(tx, plain.of_tensor, value)
        size = value.as_proxy().node.meta["example_value"].shape[0]
        known = isinstance(size, int) or size.node.expr.is_number
        if known and watch.loops_are_sought() and (names := given_numbers.cut_by(tx, value.as_proxy().node)):
            watch.make_dynamic(names)
        if known and (watch.is_vector(value) or watch.batches(tx, {int(size)})):
            watch.enter_loop_mode(tx, watch.static_sizes(int(size)), padded=watch.is_batch(value))
            enter_for_several(value, int(size))
        if known and lone.is_lone(tx, int(size), sure=watch.is_vector(value)):
            return call(tx, plain.of_tensor, value)
        if known and watch.is_vector(value) and lone.are_boundaries(int(size)):
            return call(tx, plain.of_tensor, value)
        if not known and (watch.loop_mode_for_symint(tx, size.node.expr) or is_as_data_says(value)):
            return call(tx, plain.of_tensor, value)
    return None


def looped_over_again(tx: Any, items: CollectedItems) -> Any:
    """A list that an earlier loop over documents filled, looped over again."""
    if items.numbers is not None:
        return items.numbers
    if items.rows is not None:
        return items.rows.again(tx, looped_over_again, items.region.length)
    collected = items.collected()
    if items.region.skips:
        current_frame().not_replayable = "a list that lacks the skipped documents is looped over again"
    return call(tx, plain.of_collected, collected, items.region.length)


def again_by_number(tx: Translator, value: Value, key: Value) -> Any:
    """Such a list as the sequence of its entries, for ``parts[i]`` by the number of a later loop's document, and for
    the first of them behind the loop, which says of what kind all are (``parts[0].new_zeros``); or None."""
    items, key = items_of(value.realize()), key.realize()
    if items is None or not items.region.closed or any(map(nothing.is_none, next(iter(items.values), []))):
        return None
    if active.regions:
        known = isinstance(key, SymNodeVariable) and watch.is_unknown(key.sym_num)
    else:
        length = items.region.length
        some = not watch.is_unknown(length.sym_num) if isinstance(length, SymNodeVariable) else bool(number_of(length))
        known = number_of(key) == 0 and some and type(items) is CollectedItems and not items.region.skips
    return looped_over_again(tx, items) if known else None


def columns_over_documents(tx: Translator, matrix: Any) -> list[Any] | None:
    """The columns of a matrix that is made of vectors with one entry per document; None if it is another."""
    columns = columns_of(tx, matrix)
    if columns is None or any(documents_of(tx, column) is None for column in columns):
        return None
    return columns


def _of_columns(tx: Translator, columns: list[Any], function: Any, *args: Any) -> Any:
    length = columns[0].call_method(tx, "size", [constant(0)], {})
    return call(tx, function, length, ListVariable(columns, mutation_type=ValueMutationNew()), *args)


def rows_of_numbers(tx: Translator, matrix: Any) -> Any:
    """``matrix.tolist()``: a list of numbers per document; None if its rows are not known to be over documents."""
    columns = columns_over_documents(tx, matrix)
    if columns is None:
        return numbers_of_rows(tx, matrix)
    return _of_columns(tx, columns, plain.of_columns, variable(tx, plain.row))


def is_once(value: Any) -> bool:
    return issubclass(value.python_type(), plain.Once)


def length_of(tx: Translator, documents: Any) -> Any:
    return attribute(tx, documents, "length")


def number_of(value: Any) -> int | None:
    known = value.as_python_constant() if value.is_python_constant() else None
    return known if type(known) is int else None


# === Questions of plain code =================================================================================


def _advance(tx: Translator, iterator: Value) -> Value:
    """`plain.advance`, called by ``__next__``, which the loop's FOR_ITER has called."""
    user: Any = tx.parent
    location = location_of(tx)
    driven = user is not None and user.current_instruction.opname == "FOR_ITER"
    if not driven or user.stack[-1].realize() is not iterator:
        raise refuse("iterator-use", "the sequence of documents is advanced outside a plain for loop", location)
    return step(user, iterator, location)


def step(user: Any, iterator: Any, location: str) -> Value:
    """End an iteration of the loop in the frame ``user``, if one is open, and begin the next: its number, or None."""
    if not is_run_by_a_loop(user):
        raise refuse("iterator-use", "the sequence of documents is advanced outside a plain for loop", location)
    region = active.trace.regions.get(iterator)
    if region is None:
        length = length_of(user, attribute(user, iterator, "documents"))
        if active.regions:
            raise _nested(user, length, location)
        key = user.f_code, user.current_instruction.offset
        region = Region(user, iterator, stops.shortened(user, key, length), location, length)
        active.trace.regions[iterator] = region
        active.regions.append(region)
    else:
        if not active.regions or active.regions[-1] is not region or user is not region.tx:
            raise refuse("early-exit", "an inner loop was left by break or return", location)
        region.end_iteration()
        if not region.goes_on():
            _end(region)
            return constant(None)
    region.begin_iteration()
    return region.index


def _nested(tx: Translator, length: Value, location: str) -> Exception:
    again = number_lists.without_settings(tx, length)
    rows = f"loops over up to {MOST_LAYERS} rows are traced row by row"
    reason = f"a loop over documents inside a loop over documents ({rows})"
    return again or refuse("nested-loops", reason, location)


def _end(region: Region) -> None:
    """All iterations of the innermost loop are traced."""
    edges.check(region)
    sized.check(region.location, region.key)
    active.regions.pop()
    region.close()


def refuse_use(tx: Translator, what: str) -> Exception:
    reason = f"{what} needs the number of documents to be a constant"
    return refuse("sequence-use", reason, location_of(tx))


def _position(tx: Translator, documents: Value, key: Value) -> Value:
    """`plain.position`."""
    key = key.realize()
    length = length_of(tx, documents)
    number = number_of(key)
    if number is not None:
        # In range for at least one document; beyond that eager's IndexError would become a wrong read.
        if number == 0:
            return key
        if number == -1:
            return call(tx, operator.sub, length, constant(1))
        if names := given_numbers.counted_by(tx):
            watch.make_dynamic(names)
        raise refuse_use(tx, f"entry [{number}] of a sequence with one entry per document")
    if isinstance(key, SymNodeVariable):
        # A negative number counts from the end, one too large raises: neither is what the entry of it would be.
        if in_range(expression(key), length) or edges.is_neighbour(expression(key)):
            return key
        within = attribute(tx, documents, "within").as_python_constant()
        if active.regions and can_be_picked(tx, documents) and (not within or is_below(expression(key), length)):
            return constant(None)
        raise refuse_use(tx, f"entry [{key.sym_num}] of a sequence with one entry per document")
    raise refuse_use(tx, "this subscript")


def _bounds(tx: Translator, documents: Value, key: Value) -> Value:
    """`plain.bounds`."""
    key = key.realize()
    assert isinstance(key, SliceVariable)
    start, stop, step = (None if v.is_python_constant() and v.as_python_constant() is None else v for v in key.items)
    if step is not None and number_of(step) != 1:
        raise refuse_use(tx, "a slice with a step")
    first, last = (0 if end is None else number_of(end) for end in (start, stop))
    if (first, last) not in ((0, 0), (1, 0), (0, -1)):
        if names := given_numbers.names_of(tx, last or 0):
            watch.make_dynamic(names)
        raise refuse_use(tx, "a slice other than [1:] or [:-1]")
    return TupleVariable([constant(first), constant(-1 * last if last else 0)], mutation_type=ValueMutationNew())


def _front(tx: Translator, documents: Value, key: Value) -> Value:
    """`plain.front`."""
    key, origin = key.realize(), attribute(tx, documents, "origin")
    assert isinstance(key, SliceVariable)
    start, stop, step = (item.realize() for item in key.items)
    whole = all(
        item.is_python_constant() and item.as_python_constant() in (None, one) for item, one in ((start, 0), (step, 1))
    )
    length = length_of(tx, documents)
    but_first = number_of(start) == 1 and step.is_python_constant() and step.as_python_constant() in (None, 1)
    if not active.regions and (whole or but_first) and given_numbers.is_within(stop, size_of(length)):
        return stop
    if not whole or origin.is_python_constant() or not isinstance(stop, SymNodeVariable):
        return constant(None)
    known = any(in_range(expression(stop) - more, length) for more in (0, 1))
    return stop if known else constant(None)


def can_be_picked(tx: Translator, documents: Value) -> bool:
    pick = attribute(tx, documents, "pick")
    return not (pick.is_python_constant() and pick.as_python_constant() is None)


def _steps(tx: Translator, documents: Value, key: Value) -> Value:
    """`plain.steps`."""
    key = key.realize()
    assert isinstance(key, SliceVariable)
    known = [v.as_python_constant() if v.is_python_constant() else v for v in key.items]
    start, stop, step = known
    whole = stop is None and can_be_picked(tx, documents)
    forward = type(step) is int and step > 1 and (start is None or (type(start) is int and 0 <= start < step))
    return constant(whole and (forward or (step == -1 and start is None)))


def take(tx: Translator, documents: Any) -> Value:
    """`plain.take`; and where another iterator uses this one up."""
    if is_once(documents):
        if documents in active.trace.spent:
            raise refuse("iterator-use", "an iterator over documents is used a second time", location_of(tx))
        active.trace.spent.add(documents)
    return constant(None)


def _refuse_use(tx: Translator, what: Value) -> Value:
    raise refuse_use(tx, str(what.as_python_constant()))


def _row(tx: Translator, numbers: Any) -> Value:
    """A list of a document. Outside of loops it is no mutable list to Dynamo, so that no change of it is traced; in an
    iteration it is one of another scope, of which a change is refused in words."""
    inside = current_scope_id() > 1
    return ListVariable(list(numbers.realize().items), mutation_type=_of_nobody(ValueMutationNew()) if inside else None)


def _named(tx: Translator, names: Value, values: Any) -> Value:
    entries = zip(names.as_python_constant(), values.realize().items, strict=True)
    made = {constant(name): value for name, value in entries}
    return ConstDictVariable(made, mutation_type=_of_nobody(ValueMutationNew()))


def _kept(tx: Translator, made: Value) -> Value:
    _of_nobody(made.realize().mutation_type)
    return made.realize()


def _of_nobody(mutation: Any) -> Any:
    """Of what is made anew wherever it is asked for: a change would be lost, so no iteration may make one."""
    if mutation is not None:
        mutation.scope = -1
    return mutation


QUESTIONS: dict[Any, Callable[..., Any]] = {
    plain.row: _row,
    plain.named: _named,
    plain.kept: _kept,
    plain.advance: _advance,
    plain.position: _position,
    plain.bounds: _bounds,
    plain.front: _front,
    plain.steps: _steps,
    plain_parts.ends_of_part: part_ends.ends_of_part,
    plain.take: take,
    plain.refuse_use: _refuse_use,
}
"""Function of `plain` -> ``answer(tx, *arguments)``."""


# === Going over one ==========================================================================================


def iterate(tx: Translator, documents: Any) -> Any:
    """``iter(documents)``, where it was something else for Dynamo."""
    take(tx, documents)
    return call(tx, plain.entries, documents)


def collect(tx: Translator, documents: Any) -> Any:
    """``list(documents)`` where entries call code of the user: trace two of them, as a loop that appends would."""
    location = location_of(tx)
    length = length_of(tx, documents)
    if active.regions:
        raise _nested(tx, length, location)
    take(tx, documents)
    region = Region(tx, documents, length, location)
    active.regions.append(region)
    items = CollectedItems(region)
    region.lists.append(items)
    while region.goes_on():
        region.begin_iteration()
        items.append(call(tx, attribute(tx, documents, "get"), region.index))
        region.end_iteration()
    _end(region)
    out = ListVariable([], mutation_type=ValueMutationNew())
    out.items = items
    return out
